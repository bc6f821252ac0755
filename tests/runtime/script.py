"""Random edits for a window, and books of their own about which words it should show."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from agentkv import Handle, Window
from tests.runtime.cases import words

SIZES = (1, 3, 17, 60, 260)
"""Tokens of messages: shorter than a chunk may be, one chunk, several chunks."""

Edit = tuple[str, int, int]
"""(name, which, where); the numbers are taken modulo what there is."""


class Script:
    """Plays edits. `text` says what the window must show now, handle by handle."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.here: list[Handle] = []
        self.gone: list[Handle] = []
        self.texts: dict[int, str] = {}
        self.pinned: set[int] = set()
        self.forks: list[tuple[Window, str]] = []

    @property
    def text(self) -> str:
        return " ".join(self.texts[handle.id] for handle in self.here)

    def play(self, edits: Sequence[Edit]) -> None:
        for edit in edits:
            self.one(edit)

    def one(self, edit: Edit) -> None:
        """One edit; what needs a message that is not there becomes an append."""
        name, which, where = edit
        needs = {"recall": len(self.gone), "append": 1, "commit": 1, "settle": 1, "fork": 1, "slide": 1}
        if not needs.get(name, len(self.here)):
            name = "append"
        plays: dict[str, Callable[[int, int], None]] = {
            kind: getattr(self, f"_{kind}") for kind in (*EDITS, "clean", "learn", "drop")
        }
        plays[name](which, where)

    def _append(self, which: int, where: int) -> None:
        text = words(SIZES[which % len(SIZES)], seed=which % 11)
        at = where % (len(self.here) + 1)
        before = self.here[at] if at < len(self.here) else None
        handle = self.window.append(text, pin=which % 7 == 0, before=before)
        if which % 7 == 0:
            self.pinned.add(handle.id)
        self.texts[handle.id] = text
        self.here.insert(at, handle)

    def _evict(self, which: int, where: int) -> None:
        free = [handle for handle in self.here if handle.id not in self.pinned]
        if free:
            handle = free[which % len(free)]
            self.window.evict(handle)
            self.here.remove(handle)
            self.gone.append(handle)

    def _recall(self, which: int, where: int) -> None:
        handle, at = self.gone.pop(which % len(self.gone)), where % (len(self.here) + 1)
        self.window.recall(handle, before=self.here[at] if at < len(self.here) else None)
        self.here.insert(at, handle)

    def _move(self, which: int, where: int) -> None:
        handle = self.here.pop(which % len(self.here))
        at = where % (len(self.here) + 1)
        self.window.move(handle, before=self.here[at] if at < len(self.here) else None)
        self.here.insert(at, handle)

    def _reorder(self, which: int, where: int) -> None:
        a, b = which % len(self.here), where % len(self.here)
        some = self.here[min(a, b) : max(a, b) + 1 : 2]
        turned = some[1:] + some[:1]
        self.window.reorder(turned)
        places = [self.here.index(handle) for handle in some]
        for place, handle in zip(places, turned, strict=True):
            self.here[place] = handle

    def _slide(self, which: int, where: int) -> None:
        pinned = sum(handle.tokens for handle in self.here if handle.id in self.pinned)
        for handle in self.window.slide(max(pinned, 40 * (which % 9))):
            self.here.remove(handle)
            self.gone.append(handle)

    def _replace(self, which: int, where: int) -> None:
        """Another word somewhere in the message."""
        at = which % len(self.here)
        old = self.here[at]
        spelled = self.texts[old.id].split()
        spelled[where % len(spelled)] = f"w{20 + which % 40}"
        new = self.window.replace(old, " ".join(spelled))
        self.texts[new.id] = " ".join(spelled)
        self.here[at] = new
        self.gone.append(old)
        if old.id in self.pinned:
            self.pinned.add(new.id)

    def _commit(self, which: int, where: int) -> None:
        self.window.commit()

    def _settle(self, which: int, where: int) -> None:
        self.window.settle()

    def _fork(self, which: int, where: int) -> None:
        """Go on in the fork or in what was forked; the other one must stay as it is."""
        twin = self.window.fork()
        other = twin if which % 2 else self.window
        self.window = self.window if which % 2 else twin
        self.forks.append((other, self.text))

    def _clean(self, which: int, where: int) -> None:
        self.window.clean_view(self.here[which % len(self.here)], on=bool(where % 3))

    def _learn(self, which: int, where: int) -> None:
        a = which % len(self.here)
        self.window.learn_orders(self.here[a : a + 1 + where % 2], orders=2)
        self.window.learn_removal(self.here[a])

    def _drop(self, which: int, where: int) -> None:
        """The store forgets something between two commits."""
        keys = tuple(self.window.engine.store.keys())
        if keys:
            self.window.engine.store.drop(keys[which % len(keys)])


EDITS = ("append", "evict", "recall", "move", "reorder", "slide", "replace", "commit", "settle", "fork")


def scripts(names: Sequence[str] = EDITS, most: int = 14) -> st.SearchStrategy[list[Edit]]:
    """Lists of edits by these names."""
    number = st.integers(0, 99)
    return st.lists(st.tuples(st.sampled_from(names), number, number), min_size=2, max_size=most)
