"""What audits have found out about the error model, one factor per tenant, model and calibration.

Every audit says whether the measured KL stayed below the bound. If it did, the bound sinks a little, if not
it rises by more, so that in the long run the share `level` of the audits stays below it whatever the windows
are like (adaptive conformal inference, Gibbs & Candès 2021, here on the logarithm of the bound). The factor
never leaves [1/4, 4]: audits correct a calibration, they do not replace it.
"""

from __future__ import annotations

import math
import os
import tempfile
import threading
from pathlib import Path
from typing import Literal

import xxhash
from filelock import FileLock
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentkv.errors import BadCorrection

LIMIT = 4.0
"""The factor stays between 1/LIMIT and LIMIT."""
FIRST, LEAST = 0.5, 0.1
"""Step after the first audit, and after very many: a factor that stood still could not follow a change."""
NOTHING = 1e-5
"""Nats below which a prediction says nothing: rounding is as large."""


class Correction(BaseModel):
    """A factor on predicted KL, and from how many audits. Unknown keys raise."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    version: Literal[1] = 1
    tenant: str
    model: str
    """Fingerprint of the model."""
    calibration: str
    """Digest of the error model that is corrected."""
    log_factor: float = Field(default=0.0, ge=-math.log(LIMIT), le=math.log(LIMIT))
    audits: int = Field(default=0, ge=0)

    @property
    def factor(self) -> float:
        return math.exp(self.log_factor)

    def after(self, expected: float, measured: float, level: float) -> Correction:
        """One audit later. expected: the bound in nats without any correction; level: how often it is to
        hold."""
        if expected < NOTHING:
            return self
        missed = measured > expected * self.factor
        step = max(LEAST, FIRST * (1 + self.audits) ** -0.25)
        moved = self.log_factor + step * (missed - (1 - level))
        bounded = min(max(moved, -math.log(LIMIT)), math.log(LIMIT))
        return self.model_copy(update={"log_factor": bounded, "audits": self.audits + 1})


class Corrections:
    """The correction of one tenant, kept in a file of its own where a folder is given.

    folder: made when it is missing; None keeps the correction as long as the engine. Raises BadCorrection for
    a file that is damaged or somebody else's; it is left as it is.
    """

    def __init__(self, folder: Path | None, tenant: str, model: str, calibration: str) -> None:
        self._fresh = Correction(tenant=tenant, model=model, calibration=calibration)
        # Hashed, so that no tenant's name can lead out of the folder.
        name = xxhash.xxh3_128_hexdigest(repr((tenant, model, calibration)).encode())
        self._path = folder.expanduser() / f"{name}.json" if folder else None
        self._lock = threading.Lock()
        self._current = self._read()

    @property
    def current(self) -> Correction:
        return self._current

    def heard(self, predicted: float, measured: float, level: float) -> Correction:
        """Take in one audit: the bound as it was predicted, corrections included, and what was measured.

        Other processes of the same tenant may write to the same file: theirs is gone on from.
        """
        with self._lock:
            expected = predicted / self._current.factor
            if self._path is None:
                self._current = self._current.after(expected, measured, level)
                return self._current
            with FileLock(self._path.with_suffix(".lock")):
                self._current = self._read().after(expected, measured, level)
                _write(self._path, self._current.model_dump_json() + "\n")
            return self._current

    def _read(self) -> Correction:
        if self._path is None:
            return self._fresh
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            text = self._path.read_bytes()
        except FileNotFoundError:
            return self._fresh
        except OSError as error:
            raise _bad(self._path, error.strerror or str(error)) from error
        try:
            found = Correction.model_validate_json(text)
        except ValidationError as error:
            raise _bad(self._path, error.errors()[0]["msg"]) from error
        for name in ("tenant", "model", "calibration"):
            if getattr(found, name) != getattr(self._fresh, name):
                raise _bad(self._path, f"written for another {name}")
        return found


def _bad(path: Path, why: str) -> BadCorrection:
    return BadCorrection(
        got=f"{str(path)!r} ({why})",
        expected="what audits of this tenant left, or nothing",
        do="move it away, or choose another folder (corrections)",
    )


def _write(path: Path, text: str) -> None:
    """The whole file or nothing of it. Raises BadCorrection when the disk does not take it."""
    scratch = None
    try:
        handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=".agentkv-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(scratch).replace(path)
    except OSError as error:
        if scratch is not None:
            Path(scratch).unlink(missing_ok=True)
        raise _bad(path, error.strerror or str(error)) from error
