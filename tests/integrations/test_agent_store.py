"""A store for agents: langgraph's contract, kept inside a store of agentkv."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

from agentkv.errors import BadStore, InvalidInput, NotJSON, StoreFull
from agentkv.handles import Handle
from agentkv.integrations.cards import card_of
from agentkv.integrations.store import AgentKVStore
from agentkv.store.base import Document, Key, Store
from agentkv.store.disk import DiskStore
from agentkv.store.memory import MemoryStore
from agentkv.store.redis import RedisStore
from agentkv.store.tenancy import of_tenant
from agentkv.store.tiers import TieredStore
from tests.redis_server import redis_server

NOTES = ("notes", "ada")


class Clock:
    """Seconds that pass when a test says so."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def pass_minutes(self, minutes: float) -> None:
        self.now += 60 * minutes


def agent_store(**settings: Any) -> AgentKVStore:
    return AgentKVStore(MemoryStore(1 << 24), **settings)


@pytest.fixture(params=["memory", "disk", "redis", "tiers"])
def behind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Every kind of store that items may be kept in."""
    with ExitStack() as held:
        if request.param == "redis":
            store: Store = RedisStore(held.enter_context(redis_server()).url)
        elif request.param == "tiers":
            store = TieredStore(MemoryStore(1 << 20), DiskStore(tmp_path))
        else:
            store = MemoryStore(1 << 20) if request.param == "memory" else DiskStore(tmp_path)
        yield store
        store.close()


# What langgraph's own store does with the same ops.

LABELS = st.sampled_from(["a", "b", "c"])
NAMESPACES = st.lists(LABELS, min_size=1, max_size=3).map(tuple)
KEYS = st.sampled_from(["k1", "k2", 'k"3', "κ\ud800"])
LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text(max_size=3)
VALUES = st.fixed_dictionaries(
    {"n": st.integers(0, 3)},
    optional={
        "tag": st.sampled_from(["x", "y"]),
        "inner": st.dictionaries(st.sampled_from(["p", "q"]), LEAVES, max_size=2),
        "list": st.lists(LEAVES, max_size=3),
    },
)
COMPARED = st.builds(
    lambda op, n: {op: n}, st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), st.integers(0, 3)
)
EQUALS = st.builds(lambda op, x: {op: x}, st.sampled_from(["$eq", "$ne"]), LEAVES)
FILTERS = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "n": st.integers(0, 3) | COMPARED | EQUALS,
        "tag": st.sampled_from(["x", "y"]) | EQUALS,
        "inner": st.dictionaries(st.sampled_from(["p", "q"]), LEAVES, max_size=1),
        "list": st.lists(LEAVES, max_size=2),
    },
)
CONDITIONS = st.builds(
    MatchCondition,
    st.sampled_from(["prefix", "suffix"]),
    st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=2).map(tuple),
)
PUTS = st.builds(PutOp, NAMESPACES, KEYS, VALUES, st.none(), st.none())
OPS = st.one_of(
    PUTS,
    PUTS,
    st.builds(PutOp, NAMESPACES, KEYS, st.none(), st.none(), st.none()),
    st.builds(GetOp, NAMESPACES, KEYS, st.booleans()),
    st.builds(
        SearchOp,
        NAMESPACES | st.just(()),
        FILTERS,
        st.sampled_from([1, 2, 1000]),
        st.integers(0, 2),
        st.none(),
        st.booleans(),
    ),
    st.builds(
        ListNamespacesOp,
        st.none() | st.lists(CONDITIONS, max_size=2).map(tuple),
        st.none() | st.integers(1, 3),
        st.just(1000),
        st.integers(0, 2),
    ),
)


class Live(InMemoryStore):
    """langgraph's store without the namespaces that nothing is in: it goes on listing those it was asked for,
    or that were emptied, where its stores over a database do not."""

    def batch(self, ops: Any) -> list[Any]:
        for namespace in [ns for ns, there in self._data.items() if not there]:
            del self._data[namespace]
        return super().batch(ops)


def told(result: Any) -> Any:
    """A result without times: langgraph's store forgets when an item was first put."""
    if isinstance(result, Item):
        return (result.namespace, result.key, result.value)
    return list(map(told, result)) if isinstance(result, list) else result


def same(op: Op, ours: Any, theirs: Any, every: list[Any]) -> bool:
    """Whether two results are one. every: what a search gives here without limit. Between namespaces the
    order is a store's own: here by age, there by when a namespace was first used."""
    if not isinstance(op, SearchOp):
        return bool(told(ours) == told(theirs))
    if op.limit < 1000:
        one = len({item.namespace for item in every}) <= 1
        paged = told(ours) == told(every)[op.offset : op.offset + op.limit]
        return paged and len(ours) == len(theirs) and (not one or told(ours) == told(theirs))
    if op.offset:
        return len(ours) == len(theirs)
    by_namespace = [sorted(told(r), key=lambda item: item[0]) for r in (ours, theirs)]  # stable
    return bool(by_namespace[0] == by_namespace[1])


@settings(max_examples=120, deadline=None)
@given(st.lists(st.lists(OPS, min_size=1, max_size=4), max_size=12))
def test_random_ops_give_what_langgraph_s_own_store_gives(batches: list[list[Op]]) -> None:
    ours, theirs = agent_store(), Live()
    for drawn in batches:
        ops = sorted(drawn, key=lambda op: isinstance(op, GetOp))  # there a get makes a namespace
        whole = [op._replace(limit=1000, offset=0) if isinstance(op, SearchOp) else op for op in ops]
        every = ours.batch([op for op in whole if not isinstance(op, PutOp)])
        results = zip(ops, ours.batch(ops), theirs.batch(ops), strict=True)
        for op, mine, other in results:
            before = every.pop(0) if not isinstance(op, PutOp) else None
            assert same(op, mine, other, before), (op, told(mine), told(other))  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(st.lists(OPS, max_size=12))
def test_the_asynchronous_batch_gives_what_the_other_one_gives(ops: list[Op]) -> None:
    first, second = agent_store(), agent_store()
    assert told(asyncio.run(first.abatch(ops))) == told(second.batch(ops))
    wanted = [SearchOp((), limit=1000), ListNamespacesOp()]
    assert told(asyncio.run(first.abatch(wanted))) == told(second.batch(wanted))


def embed(texts: list[str]) -> list[list[float]]:
    """A vector that counts three letters."""
    return [[float(text.count(letter)) for letter in "abc"] for text in texts]


async def aembed(texts: list[str]) -> list[list[float]]:
    return embed(texts)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(KEYS, st.text("abc ", min_size=1, max_size=6), max_size=4), st.text("abc", min_size=1))
def test_a_search_by_meaning_ranks_as_langgraph_s_own_store_does(values: dict[str, str], query: str) -> None:
    index: Any = {"dims": 3, "embed": embed, "fields": ["text"]}
    stores = agent_store(index=index), InMemoryStore(index=index)
    unique = {text: key for key, text in values.items()}  # it counts vectors wrong where two texts are one
    for store in stores:
        for text, key in unique.items():
            store.put(NOTES, key, {"text": text})
        store.put(NOTES, "no text", {"number": 1})
    ours, theirs = (store.search(NOTES, query=query) for store in stores)
    assert [item.score for item in ours] == pytest.approx([item.score for item in theirs], nan_ok=True)
    assert {item.key for item in ours} == {item.key for item in theirs}


# What is kept, and where.


def test_items_come_back_from_every_store(behind: Store) -> None:
    store = AgentKVStore(behind)
    value = {"text": "zwölf", "odd": "\ud800", "list": [1, None, {"x": 0.1}], "big": 2**70}
    store.put(NOTES, "κ/1 \x00", value)
    store.put(("notes",), "other", {"text": "x"})
    store.flush()
    found = store.get(NOTES, "κ/1 \x00")
    assert found is not None
    assert found.value == value
    assert [item.key for item in store.search(("notes",))] == ["κ/1 \x00", "other"]
    assert store.list_namespaces(prefix=("notes",)) == [("notes",), NOTES]
    store.delete(NOTES, "κ/1 \x00")
    assert store.get(NOTES, "κ/1 \x00") is None
    assert store.list_namespaces() == [("notes",)]


def test_items_outlive_their_process(tmp_path: Path) -> None:
    with_ttl = {"default_ttl": 5.0}
    first = DiskStore(tmp_path)
    AgentKVStore(first, ttl=with_ttl).put(NOTES, "a", {"text": "kept"})
    first.close()
    clock = Clock()
    again = AgentKVStore(DiskStore(tmp_path), clock=clock)
    found = again.get(NOTES, "a", refresh_ttl=False)
    assert found is not None
    assert found.value == {"text": "kept"}
    clock.now = found.created_at.timestamp() + 301
    assert again.sweep() == 1


def test_items_make_no_room_for_kv_nor_for_each_other() -> None:
    behind = MemoryStore(4000)
    store = AgentKVStore(behind)
    full = [PutOp(NOTES, str(number), {"text": "word " * 20}) for number in range(100)]
    with pytest.raises(StoreFull, match="refused"):
        store.batch(full)
    kept = [item.key for item in store.search(NOTES, limit=100)]
    assert kept == [str(number) for number in range(len(kept))]
    assert len(kept) > 3
    before = store.get(NOTES, "0")
    with pytest.raises(StoreFull):
        store.put(NOTES, "0", {"text": "word " * 2000})
    assert store.get(NOTES, "0") == before
    assert not behind.put(Key("canonical", "c"), Document(b"x" * 3000))


def test_nothing_passes_between_tenants_or_names() -> None:
    behind = MemoryStore(1 << 20)
    ada, bob = AgentKVStore(behind, tenant="ada"), AgentKVStore(behind, tenant="bob")
    nobody, other = AgentKVStore(behind), AgentKVStore(behind, tenant="ada", name="other")
    ada.put(NOTES, "secret", {"text": "plum"}, ttl=5)
    for store in (bob, nobody, other):
        assert store.get(NOTES, "secret") is None
        assert store.search((), query="plum") == store.search(()) == []
        assert store.list_namespaces() == []
        store.delete(NOTES, "secret")
        store.put(NOTES, "secret", {"text": "pear"})
    found = ada.get(NOTES, "secret")
    assert found is not None
    assert found.value == {"text": "plum"}


def test_a_tenant_inside_a_tenant_s_store_is_refused() -> None:
    inside = of_tenant(MemoryStore(), "ada", False)
    with pytest.raises(InvalidInput, match="one tenant"):
        AgentKVStore(inside, tenant="bob")
    AgentKVStore(inside).put(NOTES, "a", {"text": "fine"})


def test_an_update_keeps_when_an_item_was_created() -> None:
    clock = Clock()
    store = agent_store(clock=clock)
    store.put(NOTES, "a", {"n": 1})
    clock.pass_minutes(3)
    store.put(NOTES, "a", {"n": 2})
    found = store.get(NOTES, "a")
    assert found is not None
    assert (found.updated_at - found.created_at).total_seconds() == 180
    assert isinstance(found.created_at, datetime)
    assert found.created_at.tzinfo is not None


def test_what_comes_back_is_the_caller_s_to_change() -> None:
    store, value = agent_store(), {"list": [1]}
    store.put(NOTES, "a", value)
    value["list"].append(2)
    found = store.get(NOTES, "a")
    assert found is not None
    found.value["list"].append(3)
    again = store.get(NOTES, "a")
    assert again is not None
    assert again.value == {"list": [1]}


def test_threads_may_share_a_store() -> None:
    store = agent_store(max_items=64)

    def work(number: int) -> None:
        for round_ in range(10):
            store.put(("t", str(number)), str(round_ % 4), {"n": round_})
            assert store.get(("t", str(number)), str(round_ % 4)) is not None
            store.search(("t",), query="3")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(16)))
    assert len(store.search(("t",), limit=1000)) == 64


# Expiry.


def test_an_item_expires_after_its_last_read() -> None:
    clock = Clock()
    store = agent_store(clock=clock, ttl={"default_ttl": 10, "omit_expired": True})
    for key in ("read", "searched", "looked at", "left"):
        store.put(NOTES, key, {"text": key})
    store.put(NOTES, "for good", {"text": "stays"}, ttl=None)
    clock.pass_minutes(8)
    store.get(NOTES, "read")
    store.search(NOTES, query="searched")
    store.get(NOTES, "looked at", refresh_ttl=False)
    clock.pass_minutes(8)
    assert {item.key for item in store.search(NOTES, refresh_ttl=False)} == {"read", "searched", "for good"}
    assert store.get(NOTES, "left") is None
    assert store.sweep() == 2
    clock.pass_minutes(60)
    assert store.list_namespaces() == [NOTES]
    assert store.sweep() == 2
    assert [item.key for item in store.search(NOTES)] == ["for good"]


def test_an_expired_item_is_there_until_it_is_swept() -> None:
    """As langgraph has it where omit_expired is not set; a read in time saves it."""
    clock = Clock()
    store = agent_store(clock=clock, ttl={"sweep_interval_minutes": 30})
    for key in ("read", "left"):
        store.put(NOTES, key, {"text": key}, ttl=10)
    clock.pass_minutes(25)
    assert store.get(NOTES, "read") is not None
    clock.pass_minutes(6)
    assert [item.key for item in store.search(NOTES)] == ["read"]


def test_reads_refresh_only_where_the_config_says_so() -> None:
    clock = Clock()
    store = agent_store(clock=clock, ttl={"default_ttl": 10, "refresh_on_read": False})
    store.put(NOTES, "a", {"text": "x"})
    clock.pass_minutes(9)
    store.get(NOTES, "a")
    store.search(NOTES)
    clock.pass_minutes(2)
    assert store.sweep() == 1


def test_a_put_without_ttl_makes_an_item_stay() -> None:
    clock = Clock()
    store = agent_store(clock=clock)
    store.put(NOTES, "a", {"n": 1}, ttl=1)
    store.put(NOTES, "a", {"n": 2})
    clock.pass_minutes(5)
    assert store.sweep() == 0
    assert store.get(NOTES, "a") is not None


# Search by words.


def test_cards_are_found_by_their_words() -> None:
    store = agent_store()
    texts = {
        1: ("image", "Screenshot of the invoice list, March", ("invoices",)),
        2: ("tool", "The weather in Lisbon is mild", ()),
        3: ("user", "Please pay the invoice from March before Friday", ("todo",)),
        4: ("user", "What is the weather like", ()),
    }
    for id_, (kind, text, tags) in texts.items():
        card = card_of(Handle(id_, kind, 30, text[:48]), text, "thread-1", tags)
        store.put(("cards",), str(id_), card.value())

    def found(query: str, **more: Any) -> list[str]:
        return [item.key for item in store.search(("cards",), query=query, **more)]

    assert found("pay INVOICE march") == ["3", "1"]
    assert found("lisbon weather") == ["2", "4"]
    assert found("weather", filter={"kind": "user"}) == ["4"]
    assert found("todo") == ["3"]
    assert found("kind words tokens") == []  # names of fields are not words of it
    assert set(found("thread-1")) == {"1", "2", "3", "4"}
    scores = [item.score for item in store.search(("cards",), query="pay invoice march")]
    assert all(score is not None and score > 0 for score in scores)
    assert scores == sorted(scores, reverse=True)  # type: ignore[type-var]


def test_an_item_is_found_by_the_paths_it_was_put_with() -> None:
    store = agent_store()
    value = {"title": "plum", "parts": [{"text": "pear"}, {"text": "fig"}]}
    store.put(NOTES, "title", value, index=["title"])
    store.put(NOTES, "parts", value, index=["parts[*].text"])
    store.put(NOTES, "none", value, index=False)
    assert [item.key for item in store.search(NOTES, query="plum")] == ["title"]
    assert [item.key for item in store.search(NOTES, query="fig")] == ["parts"]
    assert len(store.search(NOTES)) == 3


def test_a_rare_word_weighs_more_than_a_common_one() -> None:
    store = agent_store()
    for number in range(8):
        store.put(NOTES, str(number), {"text": "common common" if number else "rare word"})
    assert [item.key for item in store.search(NOTES, query="common rare", limit=1)] == ["0"]


# Search by meaning.


def test_an_asynchronous_embedding_works_in_the_asynchronous_calls() -> None:
    store = agent_store(index={"dims": 3, "embed": aembed})

    async def run() -> list[str]:
        await store.aput(NOTES, "a", {"text": "aaa"})
        await store.aput(NOTES, "b", {"text": "bbb"})
        await store.aput(NOTES, "c", {"text": "ccc"}, index=False)
        return [item.key for item in await store.asearch(NOTES, query="b")]

    assert asyncio.run(run())[0] == "b"
    assert asyncio.run(run())[-1] == "c"
    with pytest.raises(ValueError, match="async"):
        store.put(NOTES, "d", {"text": "x"})
    assert store.get(NOTES, "d") is None


def test_vectors_follow_their_item() -> None:
    """Putting again forgets the older vectors, and another process needs no second embedding."""
    behind = MemoryStore()
    index: Any = {"dims": 3, "embed": embed}
    store = AgentKVStore(behind, index=index)
    store.put(NOTES, "a", {"text": "aaaa"})
    store.put(NOTES, "b", {"text": "bbbb"})
    store.put(NOTES, "a", {"text": "cccc"})
    again = AgentKVStore(behind, index=index)
    scores = {item.key: item.score or 0 for item in again.search(NOTES, query="a")}
    assert max(scores.values()) < 0.9
    assert again.search(NOTES, query="c")[0].key == "a"


@pytest.mark.parametrize(
    "index",
    [
        {},
        {"embed": embed},
        {"dims": 3},
        {"dims": 0, "embed": embed},
        {"dims": 3, "embed": embed, "metric": "dot"},
    ],
)
def test_an_index_that_cannot_be_followed_is_refused(index: Any) -> None:
    with pytest.raises(InvalidInput, match="index"):
        agent_store(index=index)


@pytest.mark.parametrize(
    "wrong",
    [lambda texts: [[1.0, 2.0]] * len(texts), lambda texts: [], lambda texts: [[1.0, 2.0, float("nan")]]],
)
def test_vectors_of_another_size_are_refused(wrong: Callable[[list[str]], Any]) -> None:
    store = agent_store(index={"dims": 3, "embed": wrong})
    with pytest.raises(InvalidInput, match="vectors"):
        store.put(NOTES, "a", {"text": "x"})
    assert store.get(NOTES, "a") is None


# Bad input.

CYCLE: dict[str, Any] = {}
CYCLE["self"] = CYCLE


@pytest.mark.parametrize(
    "value",
    [
        {"x": float("nan")},
        {"x": float("inf")},
        {"x": b"bytes"},
        {"x": {1, 2}},
        {"x": (1, 2)},
        {1: "x"},
        {"x": {2: "y"}},
        {"x": datetime(2026, 1, 1)},
        CYCLE,
        ["no mapping"],
        "text",
    ],
)
def test_what_is_not_json_is_refused_and_nothing_is_lost(value: Any) -> None:
    store = agent_store()
    store.put(NOTES, "a", {"n": 1})
    with pytest.raises(NotJSON):
        store.batch([PutOp(NOTES, "b", {"n": 2}), PutOp(NOTES, "a", value)])
    assert told(store.search(NOTES)) == [(NOTES, "a", {"n": 1})]


@pytest.mark.parametrize("namespace", [(), ("langgraph", "x"), ("a.b",), ("",), (1,), ("a", None), ("\x00",)])
def test_a_namespace_that_is_none_is_refused(namespace: Any) -> None:
    store = agent_store()
    with pytest.raises(InvalidNamespaceError):
        store.put(namespace, "a", {"n": 1})
    with pytest.raises(InvalidNamespaceError):
        store.batch([PutOp(NOTES, "b", {"n": 2}), PutOp(namespace, "a", {"n": 1})])
    assert store.search(()) == []


@pytest.mark.parametrize(
    "op",
    [
        SearchOp(NOTES, limit=-1),
        SearchOp(NOTES, offset=-1),
        SearchOp(NOTES, {"n": {"$near": 1}}),
        SearchOp(NOTES, {"n": {"$gt": "many"}}),
        SearchOp(NOTES, ["n"]),  # type: ignore[arg-type]
        ListNamespacesOp(max_depth=0),
        ListNamespacesOp(limit=-1),
        ListNamespacesOp((MatchCondition("middle", ("a",)),)),  # type: ignore[arg-type]
        GetOp(NOTES, 1),  # type: ignore[arg-type]
        PutOp(NOTES, "a", {}, ttl=0),
        PutOp(NOTES, "a", {}, ttl=float("nan")),
        PutOp(NOTES, "a", {}, ttl=True),
        PutOp(NOTES, "a", {}, index="text"),  # type: ignore[arg-type]
        PutOp(NOTES, "a", {}, index=True),  # type: ignore[arg-type]
        "get",
    ],
)
def test_an_op_that_is_none_is_refused(op: Any) -> None:
    store = agent_store()
    store.put(NOTES, "a", {"n": 1})
    with pytest.raises(InvalidInput):
        store.batch([PutOp(NOTES, "b", {"n": 2}), op])
    assert told(store.search(NOTES)) == [(NOTES, "a", {"n": 1})]


@pytest.mark.parametrize(
    "settings",
    [
        {"name": ""},
        {"max_items": 0},
        {"item_bytes": 0},
        {"ttl": {"default_ttl": -1}},
        {"ttl": {"sweep_interval_minutes": 0}},
        {"ttl": {"minutes": 5}},
    ],
)
def test_a_setting_that_is_none_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        agent_store(**settings)


def test_limits_are_kept() -> None:
    store = agent_store(max_items=2, item_bytes=40)
    for key in ("a", "b"):
        store.put(NOTES, key, {"n": 1})
    with pytest.raises(StoreFull, match="2 items"):
        store.put(NOTES, "c", {"n": 1})
    store.put(NOTES, "a", {"n": 2})
    with pytest.raises(InvalidInput, match="bytes"):
        store.batch([PutOp(NOTES, "b", {"n": 3}), PutOp(NOTES, "a", {"text": "x" * 40})])
    assert told(store.search(NOTES)) == [(NOTES, "a", {"n": 2}), (NOTES, "b", {"n": 1})]


@pytest.mark.parametrize("text", [b"no json", b"{}", json.dumps({"format": 2}).encode(), b"[" * 5000])
def test_something_else_under_an_item_s_key_is_said(text: bytes) -> None:
    behind = MemoryStore()
    store = AgentKVStore(behind)
    store.put(NOTES, "a", {"n": 1})
    (key,) = behind.keys()
    behind.put(key, Document(text))
    with pytest.raises(BadStore, match="no item"):
        store.get(NOTES, "a")
    store.delete(NOTES, "a")
    assert store.get(NOTES, "a") is None


def test_the_snippets_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/agents/store.md").read_text()
    snippets = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert snippets
    for snippet in snippets:
        exec(compile(snippet, "docs/agents/store.md", "exec"), {})
    assert "invoice" in capsys.readouterr().out
