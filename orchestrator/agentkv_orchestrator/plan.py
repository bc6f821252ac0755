"""A plan: ordered operations on rows and stored KV, without tensors. It prints, diffs and travels as JSON."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, dataclass_transform, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PlainSerializer,
    PositiveInt,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from .policy import PolicyName
from .window import Frame

if TYPE_CHECKING:
    from .explain import Format

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def _frozen(kind: type[_T]) -> type[_T]:
    """A plan has thousands of these. The planner makes them of figures of its own; they are checked where
    they come from outside, as part of a Plan that is read."""
    made = dataclass(frozen=True, slots=True, kw_only=True)(kind)
    made.__init__ = _through_slots(made)  # type: ignore[method-assign]
    return made


def _through_slots(kind: type[Any]) -> Callable[..., None]:
    """The __init__ that a frozen dataclass has, in 60 % of its time: that one looks every field up by name to
    get past the class's own __setattr__. Written out as there, since a loop over the fields takes longer."""
    names = [field.name for field in fields(kind)]
    given: dict[str, Any] = {f"default_{f.name}": f.default for f in fields(kind)}
    asked = [f.name if f.default is MISSING else f"{f.name}=default_{f.name}" for f in fields(kind)]
    lines = [f"put_{name}(self, {name})" for name in names]
    scope = given | {f"put_{name}": getattr(kind, name).__set__ for name in names}
    exec(f"def __init__(self, *, {', '.join(asked)}):\n " + "\n ".join(lines), scope)
    init: Callable[..., None] = scope["__init__"]
    return init


class Alternative(NamedTuple):
    """What could have been done instead."""

    name: str
    ms: float
    kl: float
    reason: str
    """What it would have started from, as the reason of an op says it."""
    why_not: str


@_frozen
class BaseOp:
    __pydantic_config__ = ConfigDict(extra="forbid")

    chunk: str
    """Chunk id."""
    tokens: NonNegativeInt
    reason: str
    ms: float = 0.0
    """Predicted time of this op."""
    kl: float = 0.0
    """Predicted KL of the chunk; where several ops make one chunk's KV, the last carries it."""
    alternatives: tuple[Annotated[Alternative, PlainSerializer(Alternative._asdict)], ...] = ()


@_frozen
class _LiveOp(BaseOp):
    uid: int


@_frozen
class _PlacingOp(_LiveOp):
    row: int
    """First row of the chunk once the plan has run."""
    position: int
    """Position id of its first token then; the same number as `row` unless images stand in front."""


@_frozen
class _Corrects(_LiveOp):
    leaves: NonNegativeFloat = 0.0
    """KL that stays behind in a window that is corrected like this throughout: hearsay of the chunk then."""


@_frozen
class _StoreOp(BaseOp):
    uid: int | None = None
    """The placement that asked for it; None for idle work on the store."""


@_frozen
class Keep(_PlacingOp):
    """Leave the rows as they are."""

    op: Literal["keep"] = "keep"


@_frozen
class Rotate(_PlacingOp):
    """Move rows and rotate their RoPE band by position - from_position. Sources are read before any row is
    written."""

    op: Literal["rotate"] = "rotate"
    from_row: int
    from_position: int


@_frozen
class Load(_PlacingOp):
    """Bring stored KV that was conditioned on the antecedents of `context`, rotated to `position`."""

    op: Literal["load"] = "load"
    context: str


@_frozen
class PlaceCanonical(_PlacingOp):
    """Bring the canonical, rotated to `position`."""

    op: Literal["place_canonical"] = "place_canonical"


@_frozen
class ApplyPatch(_Corrects):
    """Add the stored patch for exactly the antecedents of `context` to the canonical just placed."""

    op: Literal["apply_patch"] = "apply_patch"
    context: str


@_frozen
class ApplyOrbit(_Corrects):
    """Add the stored patch for this set of antecedents, in whatever order, to the canonical just placed."""

    op: Literal["apply_orbit"] = "apply_orbit"
    antecedent_set: str


@_frozen
class ApplyRemoval(_Corrects):
    """Add the stored patch that takes conditioned KV from context `before` to context `after`."""

    op: Literal["apply_removal"] = "apply_removal"
    before: str
    after: str


@_frozen
class EstimatePatch(_Corrects):
    """Compute `rows` of the chunk's rows in context, estimate the patch on the others from them, and add it
    to the canonical just placed."""

    op: Literal["estimate_patch"] = "estimate_patch"
    rows: PositiveInt


@_frozen
class Repair(_LiveOp):
    """Compute those `rows` of the chunk's rows in context that what is asked attends most; the others stay as
    they were just put in place."""

    op: Literal["repair"] = "repair"
    rows: PositiveInt


@_frozen
class Prefill(_PlacingOp):
    """Compute the chunk behind whatever stands in front of `row` by then."""

    op: Literal["prefill"] = "prefill"


@_frozen
class Stash(_LiveOp):
    """Copy exact conditioned KV from `row` to the store before it is lost."""

    op: Literal["stash"] = "stash"
    row: int
    context: str


@_frozen
class Evict(_LiveOp):
    """Give the rows up."""

    op: Literal["evict"] = "evict"
    row: int
    bring_back_ms: float | None = None
    """What it would take to put the chunk back where it stood, were the plan taken back at once; None where
    nobody asked (`bring_back.with_bring_back`)."""
    bring_back_kl: float | None = None

    @model_serializer(mode="wrap")
    def _without_what_nobody_asked(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        page: dict[str, Any] = write(self)
        return {name: value for name, value in page.items() if value is not None}


@_frozen
class FormCanonical(_StoreOp):
    """Compute the chunk behind nothing and store it."""

    op: Literal["form_canonical"] = "form_canonical"


@_frozen
class FormPatch(_StoreOp):
    """Compress stored conditioned KV minus canonical into a patch and store it."""

    op: Literal["form_patch"] = "form_patch"
    context: str


Placing = Keep | Rotate | Load | PlaceCanonical | Prefill
"""Every wanted chunk gets exactly one of these."""
Applying = ApplyPatch | ApplyOrbit | ApplyRemoval | EstimatePatch | Repair
"""Follows the placing op of the same uid."""
Mending = EstimatePatch | Repair
"""Runs some rows through the model."""
Op = Annotated[
    Placing | Applying | Stash | Evict | FormCanonical | FormPatch,
    Field(discriminator="op"),
]
PLACING: frozenset[type] = frozenset(get_args(Placing))
NAMES: dict[type, str] = {kind: kind.__dataclass_fields__["op"].default for kind in get_args(get_args(Op)[0])}
"""What each kind of op is called."""


class Plan(BaseModel):
    """What to do, in order, and what it is expected to cost."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ops: tuple[Op, ...]
    frame: Frame
    """Start and capacity once the plan has run."""
    policy: PolicyName
    kl_budget: float
    predicted_ms: float
    predicted_kl: float
    over_budget: bool
    """Only a fast plan may be; it then says that balanced would have done more."""
    base_revision: int
    """Revision of the window it was made for; it is void for any other."""

    def tokens(self) -> dict[str, int]:
        """Tokens reused in place, rotated, patched (anything brought from the store) and recomputed; rows
        that are computed to mend others count twice, as both."""
        groups: dict[str, tuple[type, ...]] = {
            "reused": (Keep,),
            "rotated": (Rotate,),
            "patched": (Load, PlaceCanonical),
            "recomputed": (Prefill,),
        }
        counts = {
            name: sum(op.tokens for op in self.ops if isinstance(op, kinds)) for name, kinds in groups.items()
        }
        counts["recomputed"] += sum(op.rows for op in self.ops if isinstance(op, Mending))
        return counts

    def and_then(self, idle: "Plan") -> "Plan":
        """This plan with the idle work on the store that followed it."""
        return self.model_copy(
            update={"ops": self.ops + idle.ops, "predicted_ms": self.predicted_ms + idle.predicted_ms}
        )

    def explain(self, fmt: "Format" = "text", names: Mapping[int, str] = MappingProxyType({})) -> str:
        """The plan written out: text, json, mermaid or html. See `agentkv_orchestrator.explain.explain`."""
        from .explain import explain  # which needs this module

        return explain(self, fmt, names)

    def to_json(self, indent: int | None = None) -> str:
        return self.model_dump_json(indent=indent)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Inverse of to_json. Raises pydantic.ValidationError for anything else."""
        return cls.model_validate_json(text)
