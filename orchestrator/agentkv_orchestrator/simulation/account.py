"""What an arm of a simulation did, added up."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..plan import Plan


@dataclass
class Account:
    """Tokens by what became of them, predicted milliseconds, KL and bytes."""

    reused: int = 0
    rotated: int = 0
    brought: int = 0
    recomputed: int = 0
    ms: float = 0.0
    """In front of answers: edits, loads, prefill."""
    idle_ms: float = 0.0
    """While the agent waits for a tool: settling."""
    kl: list[float] = field(default_factory=list)
    """Predicted, by turn."""
    peak_bytes: int = 0
    """Most that the store held."""
    written_bytes: int = 0
    evicted: int = 0

    def add(self, plan: Plan) -> None:
        tokens = plan.tokens()
        self.reused += tokens["reused"]
        self.rotated += tokens["rotated"]
        self.brought += tokens["patched"]
        self.recomputed += tokens["recomputed"]
        self.ms += plan.predicted_ms
        self.kl.append(plan.predicted_kl)

    def grew(self, stood: int, came: int, ms: float) -> None:
        """As `add`, for a plan that keeps so many tokens and computes so many, at no KL."""
        self.reused += stood
        self.recomputed += came
        self.ms += ms
        self.kl.append(0.0)

    @property
    def tokens(self) -> int:
        return self.reused + self.rotated + self.brought + self.recomputed
