"""The file of a run: written whole after every window, so that a run that was stopped goes on from it."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from agentkv.demo.output import write_whole
from agentkv.diagnose.errors import BrokenState, OtherRun
from agentkv.diagnose.report import Diagnosis
from agentkv.diagnose.summary import summarise


def resume(path: Path, fresh: Diagnosis) -> Diagnosis:
    """What is at ``path``, or ``fresh`` when nothing is.

    Raises BrokenState for a file that is no diagnosis, OtherRun for one of another model or other settings.
    """
    if not path.exists():
        return fresh
    try:
        found = Diagnosis.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error.strerror
        raise BrokenState(
            got=f"{str(path)!r}, which is no diagnosis to go on from ({why})",
            expected="a file that agentkv diagnose wrote, or none",
            do="remove it, or choose another one (--out)",
        ) from error
    for name, wanted, there in _facts(fresh, found):
        if wanted != there:
            raise OtherRun(
                got=f"{str(path)!r}, a diagnosis with {name} {there!r}",
                expected=f"{name} {wanted!r}, as asked for now",
                do="ask for the same again, remove the file, or choose another one (--out)",
            )
    return found


def _facts(fresh: Diagnosis, found: Diagnosis) -> list[tuple[str, object, object]]:
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
