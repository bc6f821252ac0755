"""What operations cost and how much error reuse brings, from a calibration file.

Times are affine in tokens. Errors are KL of the next token against a re-prefill, in nats, as measured on
whole windows; `stale` turns them into a share for each chunk.
"""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from .diff import Change
from .errors import PlanError
from .residency import Held

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
    """Milliseconds: base + per_token·tokens + per_token_row·tokens·(rows each token attends)."""

    base: float = Field(default=0.0, ge=0)
    per_token: float = Field(default=0.0, ge=0)
    per_token_row: float = Field(default=0.0, ge=0)

    def of(self, tokens: int, rows_in_front: int = 0) -> float:
        return self.base + self.more(tokens, rows_in_front)

    def more(self, tokens: int, rows_in_front: int = 0) -> float:
        """What these tokens take on top of the base."""
        # A token attends the rows in front and, on average, half of its own chunk.
        return tokens * (self.per_token + self.per_token_row * (rows_in_front + tokens / 2))


class Point(_Frozen):
    """A window measured: `share` of its tokens left (or came), and its KL was `kl`."""

    share: float = Field(gt=0, le=1)
    kl: float = Field(ge=0)
    affected: float = Field(default=1.0, gt=0, le=1)
    """Share of the tokens that were stale then: only those behind the edit."""


class Mended(_Frozen):
    """What computing a `share` of a chunk's rows leaves of its error."""

    share: float = Field(gt=0, le=1)
    leaves: float = Field(ge=0, le=1)


def _by_share(points: tuple[Point, ...]) -> tuple[Point, ...]:
    return tuple(sorted(points, key=lambda p: (p.share, p.kl / p.affected)))


Curve = Annotated[tuple[Point, ...], AfterValidator(_by_share)]


class KL(_Frozen):
    """Measured errors by method."""

    slide: Curve
    """Antecedents left from the front."""
    hole: Curve
    """Antecedents left from behind others that stayed."""
    inserted: Curve
    """Antecedents came in front of KV that has not seen them."""
    permuted: float = Field(ge=0)
    """The antecedents stand in another order."""
    canonical: float = Field(ge=0)
    """KV that has seen nothing of what stands in front; where the curves above end at a share of 1."""
    patch: float = Field(ge=0)
    orbit: float = Field(ge=0)
    removal: float = Field(ge=0, le=1)
    """Share of the stale error that a removal patch leaves."""
    repair: Mended | None = None
    """Rows that the question attends most, computed again; None: not measured, so never planned."""
    estimated: Mended | None = None
    """As `repair`, with the patch on the other rows estimated; None where no estimator was measured."""


class CostTable(_Frozen):
    """Times and errors of one model on one machine. Unknown keys raise."""

    model: str
    hardware: str
    threads: int = Field(gt=0)
    measured_on: str
    note: str = ""
    ms: dict[Timed, Time]
    fetch_ms_per_mib: dict[str, float] = Field(default_factory=dict)
    """By tier of a store: what it takes, per MiB, to bring an entry into memory. Absent: it is in memory."""
    kl: KL

    @classmethod
    def load(cls, path: Path) -> "CostTable":
        """Read a calibration file. Raises PlanError naming the first field that is wrong."""
        return cls._parse(path.read_text(), str(path))

    @classmethod
    def shipped(cls) -> "CostTable":
        """The table that comes with the package: SmolLM2-135M on a two-core CPU."""
        return cls._parse(resources.files(__package__).joinpath("data", _SHIPPED).read_text(), _SHIPPED)

    @classmethod
    def _parse(cls, text: str, name: str) -> "CostTable":
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            raise PlanError(
                f"{first['msg']} at {'.'.join(map(str, first['loc']))} of {name}",
                "a cost table",
                "measure it again",
            ) from error

    def time(self, op: Timed, tokens: int, rows_in_front: int = 0) -> float:
        """Milliseconds of one op. Raises PlanError when the table does not know it."""
        return self.of(op).of(tokens, rows_in_front)

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

    def stale(self, change: Change, window_tokens: int) -> float:
        """KL of a window whose conditioned KV all is left as it is behind antecedents changed like these.

        What left is measured against the window with it, what came against the window as it will be; the
        errors of leaving, coming and reordering add up.
        """
        left = change.lost_tokens / max(1, change.lost_tokens + window_tokens)
        came = change.gained_tokens / max(1, window_tokens)
        kl = self._at(self.kl.hole if change.hole else self.kl.slide, left) if left else 0.0
        kl += self._at(self.kl.inserted, came) if came else 0.0
        return kl + self.kl.permuted * change.reordered

    def _at(self, points: Sequence[Point], share: float) -> float:
        """Piecewise linear from (0, 0) through the points to (1, canonical)."""
        x0 = y0 = 0.0
        for p in points:
            x1, y1 = p.share, p.kl / p.affected
            if share <= x1:
                return y0 + (y1 - y0) * (share - x0) / (x1 - x0)
            x0, y0 = x1, y1
        return y0 + (self.kl.canonical - y0) * (share - x0) / (1 - x0) if x0 < 1 else y0
