"""The file of a run: written whole after every window, so that a run that was stopped goes on from it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from agentkv.demo.output import write_whole
from agentkv.diagnose.errors import BrokenState, OtherRun
from agentkv.diagnose.report import Diagnosis, Subject
from agentkv.diagnose.summary import summarise


class Run(Protocol):
    """A run that can go on: whose figures they are, and all that decides them but the number of windows."""

    @property
    def model(self) -> Subject: ...

    @property
    def settings(self) -> BaseModel: ...


R = TypeVar("R", bound=Run)


def resume(path: Path, fresh: R, command: str) -> R:
    """What `command` left at ``path``, or ``fresh`` when nothing is there.

    Raises BrokenState for a file that is none of its own, OtherRun for one of another model or settings.
    """
    if not path.exists():
        return fresh
    try:
        found = TypeAdapter(type(fresh)).validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error.strerror
        raise BrokenState(
            got=f"{str(path)!r}, which is no run to go on from ({why})",
            expected=f"a file that {command} wrote, or none",
            do="remove it, or choose another one (--out)",
        ) from error
    for name, wanted, there in _facts(fresh, found):
        if wanted != there:
            raise OtherRun(
                got=f"{str(path)!r}, a run with {name} {there!r}",
                expected=f"{name} {wanted!r}, as asked for now",
                do="ask for the same again, remove the file, or choose another one (--out)",
            )
    return found


def _facts(fresh: Run, found: Run) -> list[tuple[str, object, object]]:
    """What must be the same, by name: (name, now, then)."""
    facts: list[tuple[str, object, object]] = [
        ("model", fresh.model.name, found.model.name),
        ("model fingerprint", fresh.model.fingerprint, found.model.fingerprint),
    ]
    then = found.settings.model_dump()
    return facts + [(name, now, then[name]) for name, now in fresh.settings.model_dump().items()]


def save(path: Path, found: Diagnosis) -> Diagnosis:
    """Write the run with the summary of its windows; returns what was written. Raises BadOutput."""
    if found.windows:
        summary = summarise(found.windows, found.settings.chunk_tokens, found.model.token_bytes)
        found = found.model_copy(update={"summary": summary})
    text = found.model_dump_json(indent=1) + "\n"
    write_whole(path, lambda scratch: scratch.write_text(text, encoding="utf-8"))
    return found
