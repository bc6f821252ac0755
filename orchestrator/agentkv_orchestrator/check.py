"""Rules a plan must satisfy before a tensor moves. Each is a function that yields what is wrong.

They are written from the window's point of view and share nothing with the planner, so that one can be wrong
without the other.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isclose

from .chunks import Chunk, set_key
from .diff import Wanted
from .errors import PlanError
from .lineage import EMPTY, Lineage
from .plan import (
    Applying,
    ApplyOrbit,
    ApplyPatch,
    ApplyRemoval,
    Evict,
    FormCanonical,
    FormPatch,
    Keep,
    Load,
    Mending,
    Op,
    PlaceCanonical,
    Placing,
    Plan,
    Prefill,
    Repair,
    Rotate,
    Stash,
)
from .residency import Residency, Resident, removal_key
from .window import WindowGraph


@dataclass(frozen=True)
class Case:
    """A plan and what it is judged against."""

    plan: Plan
    graph: WindowGraph
    wanted: Sequence[Wanted]
    residency: Residency
    max_rows: int

    @cached_property
    def fronts(self) -> dict[int, Lineage]:
        """By wanted uid: chunk ids that will stand in front."""
        fronts, front = dict[int, Lineage](), EMPTY
        for w in self.wanted:
            fronts[w.uid], front = front, front.then(w.chunk.id)
        return fronts

    @cached_property
    def by_uid(self) -> dict[int, Wanted]:
        return {w.uid: w for w in self.wanted}

    @cached_property
    def chunks(self) -> dict[int, Chunk]:
        return {p.uid: p.chunk for p in self.graph.placements} | {w.uid: w.chunk for w in self.wanted}

    @cached_property
    def placing(self) -> dict[int, Placing]:
        return {op.uid: op for op in self.plan.ops if isinstance(op, Placing)}


Problems = Iterator[tuple[str, str]]
"""(got, expected)"""


def same_revision(case: Case) -> Problems:
    """The plan was made for this window."""
    if case.plan.base_revision != case.graph.revision:
        yield f"a plan for revision {case.plan.base_revision}", f"one for revision {case.graph.revision}"


def placed_once(case: Case) -> Problems:
    """Every wanted chunk gets one placing op, nothing else does."""
    counts = Counter(op.uid for op in case.plan.ops if isinstance(op, Placing))
    for uid in sorted(counts.keys() | case.by_uid.keys()):
        expected = int(uid in case.by_uid)
        if counts[uid] != expected:
            yield f"{counts[uid]} ops that place uid {uid}", str(expected)


def evicted_once(case: Case) -> Problems:
    """Every live chunk that is not wanted is evicted, nothing else is."""
    counts = Counter(op.uid for op in case.plan.ops if isinstance(op, Evict))
    live = {p.uid for p in case.graph.placements}
    for uid in sorted(counts.keys() | live):
        expected = int(uid in live and uid not in case.by_uid)
        if counts[uid] != expected:
            yield f"{counts[uid]} evictions of uid {uid}", str(expected)


def right_chunks(case: Case) -> Problems:
    """An op names the chunk of its uid and its length."""
    for op in case.plan.ops:
        chunk = case.chunks.get(op.uid) if op.uid is not None else None
        if chunk is not None and (op.chunk, op.tokens) != (chunk.id, chunk.length):
            yield f"{op.tokens} tokens of {op.chunk} for uid {op.uid}", f"{chunk.length} of {chunk.id}"


def rows_contiguous(case: Case) -> Problems:
    """Wanted chunks stand one behind the other from the start of the frame, in rows and in positions."""
    row, position = case.plan.frame.start, case.plan.frame.position
    for w in case.wanted:
        op = case.placing.get(w.uid)
        if op is not None and op.row != row:
            yield f"row {op.row} for uid {w.uid}", f"row {row}"
        if op is not None and op.position != position:
            yield f"position {op.position} for uid {w.uid}", f"position {position}"
        row, position = row + w.chunk.length, position + w.chunk.span


def rows_exist(case: Case) -> Problems:
    """The window ends inside the buffer, the buffer is no larger than it may be, and the model knows the
    positions."""
    frame = case.plan.frame
    stop = frame.start + sum(w.chunk.length for w in case.wanted)
    if not stop <= frame.capacity <= case.max_rows:
        yield f"rows to {stop} in a buffer of {frame.capacity}", f"no more than {case.max_rows}"
    last = frame.position + sum(w.chunk.span for w in case.wanted)
    if last > case.max_rows:
        yield f"positions to {last}", f"no more than {case.max_rows}"


def sources_live(case: Case) -> Problems:
    """Ops that read or give up rows name rows that are live; what is kept stays, a rotation moves."""
    for op in case.plan.ops:
        if not isinstance(op, Keep | Rotate | Stash | Evict):
            continue
        live = case.graph.get(op.uid)
        row = op.from_row if isinstance(op, Rotate) else op.row
        if live is None or live.row != row:
            yield f"{op.op} from row {row} for uid {op.uid}", f"row {live.row}" if live else "a live uid"
        position = (
            op.from_position if isinstance(op, Rotate) else op.position if isinstance(op, Keep) else None
        )
        if live is not None and position is not None and live.position != position:
            yield f"{op.op} from position {position} for uid {op.uid}", f"position {live.position}"
        if isinstance(op, Rotate) and (op.row, op.position) == (op.from_row, op.from_position):
            yield f"a rotation of uid {op.uid} by nothing", "keep"


def stored(case: Case) -> Problems:
    """What is brought from the store is there, or formed earlier in the plan."""
    formed: set[str] = set()
    for op in case.plan.ops:
        if isinstance(op, FormCanonical):
            formed.add(op.chunk)
        if not _held(op, case.residency.of(op.chunk), op.chunk in formed):
            yield f"{op.op} for chunk {op.chunk}", "something that the store holds"


def _held(op: Op, held: Resident, formed: bool) -> bool:
    match op:
        case Load():
            return op.context in held.conditioned
        case PlaceCanonical():
            return held.canonical or formed
        case ApplyPatch():
            return op.context in held.patches
        case ApplyOrbit():
            return op.antecedent_set in held.orbits
        case ApplyRemoval():
            return removal_key(op.before, op.after) in held.removals
        case FormPatch():
            return (held.canonical or formed) and op.context in held.conditioned
    return True


_BASES: dict[type, tuple[type, ...]] = {
    ApplyRemoval: (Keep, Rotate),
    Repair: (Keep, Rotate, Load, PlaceCanonical),
}
"""What an op may be applied to; anything else to a canonical."""


def applied_to_its_base(case: Case) -> Problems:
    """A patch follows the op that put its base in place."""
    previous: Op | None = None
    for op in case.plan.ops:
        if isinstance(op, Applying):
            bases = _BASES.get(type(op), (PlaceCanonical,))
            if previous is None or not isinstance(previous, bases) or previous.uid != op.uid:
                yield (
                    f"{op.op} of uid {op.uid} on {previous.op if previous else 'nothing'}",
                    "its base right before",
                )
        previous = op


def right_context(case: Case) -> Problems:
    """Conditioned KV and patches belong to the antecedents that will stand in front, or to known others."""
    known = case.residency.context
    for op in case.plan.ops:
        front = case.fronts.get(op.uid, EMPTY) if op.uid is not None else EMPTY
        if isinstance(op, Load | ApplyPatch) and op.context != front.key and not known(op.context):
            yield f"{op.op} of context {op.context} for uid {op.uid}", front.key
        if isinstance(op, ApplyOrbit) and op.antecedent_set != set_key(front):
            yield f"{op.op} of set {op.antecedent_set} for uid {op.uid}", set_key(front)
        if isinstance(op, ApplyRemoval):
            live = case.graph.get(op.uid)
            before = live.antecedents.key if live else "a live uid"
            if (op.before, op.after) != (before, front.key):
                yield f"removal from {op.before} to {op.after}", f"from {before} to {front.key}"


def clean_stays_clean(case: Case) -> Problems:
    """A clean view is a bare canonical, or live KV that was conditioned on nothing."""
    patched = {op.uid for op in case.plan.ops if isinstance(op, Applying)}
    for w in case.wanted:
        op, live = case.placing.get(w.uid), case.graph.get(w.uid)
        if not w.clean or op is None:
            continue
        bare = isinstance(op, PlaceCanonical) and w.uid not in patched
        stands = isinstance(op, Keep | Rotate) and live is not None and not live.antecedents
        if not (bare or stands):
            yield f"{op.op} for uid {w.uid}, wanted clean", "its canonical"


def stashed_in_time(case: Case) -> Problems:
    """A stash copies exact KV under its own context, before anything is written or given up."""
    touched = False
    for op in case.plan.ops:
        if not isinstance(op, Stash):
            touched = True
            continue
        live = case.graph.get(op.uid)
        if touched:
            yield f"a stash of uid {op.uid} behind other ops", "stashes first"
        if live is not None and not (live.exact and op.context == live.antecedents.key):
            yield f"a stash of uid {op.uid} as {op.context}", "exact KV under the context it was computed in"


def prefills_last(case: Case) -> Problems:
    """Prefills attend what the other ops put in place, so they come last and in row order."""
    row = -1
    for op in case.plan.ops:
        if isinstance(op, Prefill) and op.row > row:
            row = op.row
        elif row >= 0:
            yield f"{op.op} of uid {op.uid} behind the prefill of row {row}", "prefills last, in row order"


def mends_some(case: Case) -> Problems:
    """Rows that mend a chunk are no more than it has; a repair is for something computed behind it."""
    asked = max((op.row for op in case.placing.values() if isinstance(op, Prefill)), default=-1)
    for op in case.plan.ops:
        if not isinstance(op, Mending):
            continue
        if op.rows > op.tokens:
            yield f"{op.op} with {op.rows} rows of uid {op.uid}", f"at most {op.tokens}"
        placed = case.placing.get(op.uid)
        if isinstance(op, Repair) and placed is not None and placed.row >= asked:
            yield f"a repair of uid {op.uid} with nothing computed behind it", "a question behind it"


def sums_add_up(case: Case) -> Problems:
    """The totals are those of the ops, and the budget flag says what they say."""
    plan = case.plan
    for name, total, parts in (
        ("ms", plan.predicted_ms, sum(op.ms for op in plan.ops)),
        ("KL", plan.predicted_kl, sum(op.kl for op in plan.ops)),
    ):
        if not isclose(total, parts, rel_tol=1e-9, abs_tol=1e-6):
            yield f"a predicted {name} of {total}", f"the sum {parts}"
    if plan.over_budget != (plan.predicted_kl > plan.kl_budget + 1e-9):
        yield f"over_budget={plan.over_budget}", f"KL {plan.predicted_kl} against {plan.kl_budget}"


def policy_kept(case: Case) -> Problems:
    """Only fast may exceed the budget; exact keeps a prefix and computes the rest, clean views apart."""
    if case.plan.over_budget and case.plan.policy != "fast":
        yield f"a KL of {case.plan.predicted_kl} under {case.plan.policy}", f"at most {case.plan.kl_budget}"
    intact = True
    for w in case.wanted if case.plan.policy == "exact" else ():
        op = case.placing.get(w.uid)
        kept = isinstance(op, Keep)
        if op is not None and not ((kept and intact) or isinstance(op, Prefill) or w.clean):
            yield f"{op.op} of uid {w.uid} under exact", "a kept prefix and prefills"
        intact = intact and kept


Rule = Callable[[Case], Problems]
RULES: tuple[Rule, ...] = (
    same_revision,
    placed_once,
    evicted_once,
    right_chunks,
    rows_contiguous,
    rows_exist,
    sources_live,
    stored,
    applied_to_its_base,
    right_context,
    clean_stays_clean,
    stashed_in_time,
    prefills_last,
    mends_some,
    sums_add_up,
    policy_kept,
)


def check(
    plan: Plan, graph: WindowGraph, wanted: Sequence[Wanted], residency: Residency, max_rows: int
) -> None:
    """Raise PlanError naming the first rule that the plan breaks."""
    case = Case(plan, graph, wanted, residency, max_rows)
    for rule in RULES:
        for got, expected in rule(case):
            do = f"make a new plan; rule {rule.__name__}: {(rule.__doc__ or '').splitlines()[0]}"
            raise PlanError(got, expected, do)
