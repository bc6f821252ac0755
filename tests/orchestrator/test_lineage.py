"""Antecedents as chains, their keys, and how they are written."""

from __future__ import annotations

import pytest
from agentkv_orchestrator.chunks import context_key
from agentkv_orchestrator.errors import WindowError
from agentkv_orchestrator.lineage import EMPTY, Lineage, pack, unpack
from hypothesis import given
from hypothesis import strategies as st

lists = st.lists(st.sampled_from(["a", "b", "c", "aa", "bc"]), max_size=8)


@given(lists, lists)
def test_a_lineage_is_its_list_and_equal_keys_are_equal_lists(one: list[str], other: list[str]) -> None:
    lineage = Lineage.of(one)
    assert list(lineage) == one
    assert len(lineage) == len(one)
    assert bool(lineage) == bool(one)
    assert (lineage == Lineage.of(other)) == (one == other) == (context_key(one) == context_key(other))
    assert lineage.extended(other) == Lineage.of(one + other)


def test_ids_cannot_be_shifted_against_each_other() -> None:
    assert (
        len({context_key(ids) for ids in (["ab"], ["a", "b"], ["b", "a"], ["", "ab"], ["ab", ""], [])}) == 6
    )


@given(st.lists(lists, max_size=6))
def test_what_is_packed_comes_back(many: list[list[str]]) -> None:
    table, runs = pack(map(Lineage.of, many))
    assert len(set(table)) == len(table)
    assert [list(lineage) for lineage in unpack(table, runs)] == many


def test_prefixes_and_windows_that_slid_are_a_run_or_two() -> None:
    ids = [f"c{i}" for i in range(50)]
    slid = [Lineage.of(["c0", *ids[i : i + 10]]) for i in range(1, 40)]
    table, runs = pack([EMPTY.extended(ids[:i]) for i in range(50)] + slid)
    assert sorted(table) == sorted(ids[:49])
    assert max(map(len, runs)) == 2


@pytest.mark.parametrize("run", [(0, 3), (1, 1), (-1, 1), (2, 1)])
def test_a_run_outside_the_table_is_refused(run: tuple[int, int]) -> None:
    with pytest.raises(WindowError, match="a stretch of the 2 ids"):
        unpack(["a", "b"], [(run,)])


@given(lists)
def test_a_fold_follows_every_link_once(ids: list[str]) -> None:
    steps, known = list[str](), {EMPTY.key: 0}

    def count(so_far: int, link: Lineage) -> int:
        steps.append(link.chunk)
        return so_far + 1

    lineage = Lineage.of(ids)
    assert lineage.fold(known, count) == len(ids)
    assert lineage.then("z").fold(known, count) == len(ids) + 1
    assert steps == [*ids, "z"]
