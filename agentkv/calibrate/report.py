"""What a calibration has measured so far, window by window: the file that a run goes on from."""

from __future__ import annotations

from typing import Literal

from agentkv_orchestrator.cost import Bytes, Time, Timed
from pydantic import BaseModel, ConfigDict

from agentkv.calibrate.cases import Case
from agentkv.calibrate.texts import Part
from agentkv.diagnose.report import Subject


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ArmRecord(_Frozen):
    """cases: what was approximate in the window. kl: to the re-prefill in nats, one a question."""

    cases: tuple[Case, ...]
    kl: tuple[float, ...]


class EditRecord(_Frozen):
    """One edit of a window, carried out in several ways."""

    name: str
    arms: tuple[ArmRecord, ...]


class WindowRecord(_Frozen):
    """One window. part: what its sources are used for."""

    part: Part
    sources: tuple[str, ...]
    edits: tuple[EditRecord, ...]


class Settings(_Frozen):
    """All that decides the figures, but for the number of windows. digest: over all tokens."""

    seed: int
    edits: int
    rank: int
    device: str
    sources: int
    digest: str


class Measurements(_Frozen):
    """The file of a run. times, bytes: null before the last window."""

    version: Literal[1] = 1
    model: Subject
    settings: Settings
    windows: tuple[WindowRecord, ...] = ()
    hardware: str = ""
    threads: int = 0
    times: dict[Timed, Time] | None = None
    bytes: dict[Timed, Bytes] | None = None
