"""What operations cost and how much error reuse brings, from a calibration file.

Times are affine in tokens and, for patches, in the rank. Errors are KL of the next token against a
re-prefill, in nats: see `errors_model`.
"""

from importlib import resources
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from .errors import PlanError
from .errors_model import ErrorModel
from .reading import read_json
from .residency import Held

_N = TypeVar("_N", float, npt.NDArray[np.float64])
_SHIPPED = "smollm2-135m-cpu.json"

Timed = Literal[
    "rotate",
    "load",
    "place_canonical",
    "apply_patch",
    "apply_orbit",
    "apply_removal",
    "prefill",
    "stash",
    "form_canonical",
    "form_patch",
]
"""Ops that take time. Keep and Evict only keep books; rows that are computed to mend others cost what a
prefill of them costs."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Time(_Frozen):
    """Milliseconds: base + per_token·tokens + per_token_row·tokens·(rows each token attends); of a patch also
    per_rank·rank + per_token_rank·tokens·rank."""

    base: float = Field(default=0.0, ge=0)
    per_token: float = Field(default=0.0, ge=0)
    per_token_row: float = Field(default=0.0, ge=0)
    per_rank: float = Field(default=0.0, ge=0)
    per_token_rank: float = Field(default=0.0, ge=0)

    def of(self, tokens: _N, rows_in_front: _N | int = 0, rank: _N | int = 0) -> _N:
        """Of one chunk, or of each of several. rank: of the patch, at most the tokens."""
        patch = rank * (self.per_rank + self.per_token_rank * tokens)
        return self.base + patch + self.more(tokens, rows_in_front)

    def more(self, tokens: _N, rows_in_front: _N | int = 0) -> _N:
        """What these tokens take on top of the base."""
        # A token attends the rows in front and, on average, half of its own chunk.
        return tokens * (self.per_token + self.per_token_row * (rows_in_front + tokens / 2))


class Bytes(_Frozen):
    """Bytes that an op brings from the store, puts into it, or writes to rows: per_token·tokens +
    per_rank·rank + per_token_rank·tokens·rank."""

    per_token: float = Field(default=0.0, ge=0)
    per_rank: float = Field(default=0.0, ge=0)
    per_token_rank: float = Field(default=0.0, ge=0)

    def of(self, tokens: int, rank: int = 0) -> int:
        rank = min(rank, tokens)
        return round(tokens * self.per_token + rank * (self.per_rank + tokens * self.per_token_rank))


class Figure(_Frozen):
    """A figure and its 95 % bootstrap interval over windows."""

    value: float
    low: float
    high: float


class Judged(_Frozen):
    """How predictions did on windows of texts that they have not seen."""

    rank_correlation: Figure
    """Spearman's, between predicted and measured KL; 0 for a constant."""
    coverage: Figure
    """Share of windows whose KL stayed below the bound."""
    slack: Figure
    """Median of bound / measured KL."""


class Evaluation(_Frozen):
    """Errors judged on texts that were neither fitted nor bounded on."""

    windows: int
    """Windows that were judged on; `rows` counts their edits, arms and questions."""
    rows: int
    fitted_windows: int
    bounded_windows: int
    model: Judged
    others: dict[str, Judged] = Field(default_factory=dict)
    """Simpler models, bounded on the same windows, for comparison."""
    edits: dict[str, float] = Field(default_factory=dict)
    """Coverage by edit."""


class CostTable(_Frozen):
    """Times, bytes and errors of one model on one machine. Unknown keys raise."""

    model: str
    hardware: str
    threads: int = Field(gt=0)
    measured_on: str
    note: str = ""
    rank: int = Field(default=32, gt=0)
    """Rank of the patches that are priced."""
    ms: dict[Timed, Time]
    fetch_ms_per_mib: dict[str, float] = Field(default_factory=dict)
    """By tier of a store: what it takes, per MiB, to bring an entry into memory. Absent: it is in memory."""
    bytes: dict[Timed, Bytes] = Field(default_factory=dict)
    kl: ErrorModel
    evaluation: Evaluation | None = None

    @classmethod
    def load(cls, path: Path) -> "CostTable":
        """Read a calibration file. Raises PlanError naming the first field that is wrong."""
        return cls.parse(path.read_text(), str(path))

    @classmethod
    def shipped(cls) -> "CostTable":
        """The table that comes with the package: SmolLM2-135M on a two-core CPU."""
        return cls.parse(resources.files(__package__).joinpath("data", _SHIPPED).read_text(), _SHIPPED)

    @classmethod
    def parse(cls, text: str, name: str) -> "CostTable":
        """The table in a text of this name. Raises PlanError naming the first field that is wrong."""
        return read_json(cls, text, PlanError, "a cost table", "measure it again: agentkv calibrate", name)

    def at_rank(self, rank: int) -> "CostTable":
        """The same for patches of another rank."""
        return self.model_copy(update={"rank": rank, "kl": self.kl.at_rank(rank)})

    def corrected(self, factor: float) -> "CostTable":
        """The same with all errors times `factor`."""
        return self.model_copy(update={"kl": self.kl.scaled(factor)})

    def time(self, op: Timed, tokens: int, rows_in_front: int = 0) -> float:
        """Milliseconds of one op. Raises PlanError when the table does not know it."""
        return self.of(op).of(tokens, rows_in_front, min(self.rank, tokens))

    def fetch_ms(self, held: Held | None) -> float:
        """Milliseconds to bring a stored entry into memory; none where the store does not say where it is."""
        if held is None or not self.fetch_ms_per_mib:
            return 0.0
        return self.fetch_ms_per_mib.get(held.tier, 0.0) * held.bytes / (1 << 20)

    def of(self, op: Timed) -> Time:
        """The time of an op. Raises PlanError when the table does not know it."""
        found = self.ms.get(op)
        if found is None:
            raise PlanError(f"no time for {op}", f"one of {sorted(self.ms)}", "measure it again")
        return found

    def moved(self, op: Timed, tokens: int) -> int:
        """Bytes that one op moves. Raises PlanError when the table does not know it."""
        found = self.bytes.get(op)
        if found is None:
            raise PlanError(f"no bytes for {op}", f"one of {sorted(self.bytes)}", "measure it again")
        return found.of(tokens, self.rank)
