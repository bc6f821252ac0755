"""What a diagnosis found, in numbers. The keys of its JSON are a promise to whoever reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentkv.diagnose.edits import Edit

if TYPE_CHECKING:
    from agentkv.engine import Engine


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Slot(_Frozen):
    """One tensor that a layer caches. rotates: whether a band of it turns with the position."""

    name: str
    heads: int
    dim: int
    rotates: bool


class Subject(_Frozen):
    """The model that was measured. token_bytes: of one token's cache, all layers and slots."""

    name: str
    fingerprint: str
    dtype: str
    layers: int
    slots: tuple[Slot, ...]
    token_bytes: int

    @classmethod
    def of(cls, engine: Engine) -> Subject:
        """The engine's model."""
        loaded, layout = engine.loaded, engine.layout
        slots = (
            Slot(name=s.name, heads=s.heads, dim=s.dim, rotates=s.rope is not None) for s in layout.slots
        )
        return cls(
            name=loaded.name,
            fingerprint=loaded.fingerprint,
            dtype=str(loaded.dtype).removeprefix("torch."),
            layers=layout.layers,
            slots=tuple(slots),
            token_bytes=layout.token_bytes(loaded.dtype),
        )


class Settings(_Frozen):
    """All that decides the figures, but for the number of windows. documents: texts long enough for a chunk;
    digest: over all of their tokens."""

    chunk_tokens: int
    chunks: int
    seed: int
    device: str
    threads: int
    documents: int
    digest: str


class Gate(_Frozen):
    """A check that passed."""

    value: float
    limit: float


class WindowRecord(_Frozen):
    """One window. Every KL is KL(re-prefill ‖ arm) of the next token in nats, mean over the question.

    documents: "name:first token" per chunk. noise: KL between two exact ways, one forward and two.
    blind: canonical + R(δ). rank, depth, shared, orbit: with patches. oracle, random: with the rows of so
    many percent of the tokens made exact, those with the largest ‖Δ‖ or any. removal: slide_1 with removal
    patches. components: that hold 90 % of ‖Δ‖² in a layer. profile: ‖Δ‖/‖KV‖ per layer. patch_bytes: at
    rank 32.
    """

    documents: tuple[str, ...]
    noise: float
    blind: float
    rank: dict[int, float]
    depth: dict[str, float]
    shared: float
    orbit: float
    oracle: dict[int, float]
    random: dict[int, float]
    removal: float
    edits: dict[str, Edit]
    components: dict[str, float]
    profile: dict[str, tuple[float, ...]]
    patch_bytes: int


class Figure(_Frozen):
    """A mean, or an η, with its 95 % bootstrap interval over windows."""

    value: float
    low: float
    high: float


class Rank(_Frozen):
    """The smallest rank tried that has η ≥ 0.95, with its interval; null: none of them has."""

    value: int | None
    low: int | None
    high: int | None


class Repair(_Frozen):
    """η against blind reuse."""

    rank: dict[int, Figure]
    depth: dict[str, Figure]
    shared: Figure
    orbit: Figure
    oracle: dict[int, Figure]
    random: dict[int, Figure]


class EditFigures(_Frozen):
    """KL in nats. keep: survivors are only turned. canonical: those that were touched start over."""

    keep: Figure
    canonical: Figure


class Summary(_Frozen):
    """All figures over n windows. page_bytes: KV of one chunk; patch_bytes: its patch of rank 32."""

    n: int
    noise: Figure
    blind: Figure
    kl_rank: dict[int, Figure]
    edits: dict[str, EditFigures]
    removal: Figure
    eta: Repair
    functional_rank: Rank
    components: dict[str, Figure]
    profile: dict[str, tuple[float, ...]]
    page_bytes: int
    patch_bytes: int


class Diagnosis(_Frozen):
    """The file of a run, and what ``--json`` prints. summary: null before the first window."""

    version: Literal[2] = 2
    model: Subject
    settings: Settings
    hardware: str
    gates: dict[str, Gate] = Field(default_factory=dict)
    windows: tuple[WindowRecord, ...] = ()
    summary: Summary | None = None
