"""What a window has cost so far."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentkv_orchestrator.plan import Plan


@dataclass(frozen=True)
class Usage:
    """Totals over all commits: tokens by what happened to them, and milliseconds spent.

    reused: left where they stood. rotated: moved. patched: brought from the store. recomputed: run through
    the model.
    decoded: generated. commit_ms: planning, edits and prefill. idle_ms: settling.
    """

    commits: int = 0
    reused: int = 0
    rotated: int = 0
    patched: int = 0
    recomputed: int = 0
    decoded: int = 0
    commit_ms: float = 0.0
    idle_ms: float = 0.0

    def plus(self, plan: Plan, ms: float) -> Usage:
        counts = plan.tokens()
        return replace(
            self,
            commits=self.commits + 1,
            commit_ms=self.commit_ms + ms,
            **{name: getattr(self, name) + count for name, count in counts.items()},
        )
