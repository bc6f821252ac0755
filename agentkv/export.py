"""A window's situation as files: what `agentkv plan` reads to make the plan that the window would make."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from agentkv_orchestrator.files import write_names, write_residency, write_wanted

from agentkv.committing import frame, held
from agentkv.errors import InvalidInput
from agentkv.queries import names

if TYPE_CHECKING:
    from agentkv.window import Window


def export(window: Window, folder: Path) -> str:
    """See `Window.export`."""
    stands, policy = frame(window), window.policy
    texts = {
        "window": window.graph.to_json(),
        "want": write_wanted(window.content.wanted()),
        "residency": write_residency(held(window)),
        "costs": window.engine.costs.model_dump_json(indent=2),
        "names": write_names(names(window)),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / f"{name}.json").write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(
            got=f"{folder}: {error.strerror or error}",
            expected="a folder that can be written to",
            do="pass another one",
        ) from error
    files = " ".join(f"--{name} {quote(str(folder / name) + '.json')}" for name in texts)
    stash = "" if policy.stash else " --no-stash"
    return (
        f"agentkv plan {files} --policy {policy.name} --kl-budget {policy.kl_budget!r}{stash} "
        f"--capacity {stands.capacity} --max-rows {window.engine.layout.max_positions}"
    )
