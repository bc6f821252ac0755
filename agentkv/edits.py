"""The edits of a window: each notes what is wanted and touches no row."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from agentkv_orchestrator.chunks import Chunk
from agentkv_orchestrator.history import History
from agentkv_orchestrator.policy import Policy
from agentkv_orchestrator.window import WindowGraph

from agentkv import messages, rules
from agentkv.errors import Busy, ClosedError, InvalidInput, TooLong
from agentkv.handles import Content, Entry, Handle, Unanswered, renumbered, words
from agentkv.inputs import Ids, tokenise
from agentkv.media import Media, Tokens
from agentkv.parts import take_along
from agentkv.prompts import prompted
from agentkv.replacing import replaced
from agentkv.showing import Known, Message, shown
from agentkv.sliding import By, first_to_leave
from agentkv.vision import require_text

if TYPE_CHECKING:
    from agentkv.engine import Engine


class Edits:
    """What `Window` is asked to hold. A call that is refused changes nothing."""

    engine: Engine
    policy: Policy
    max_tokens: int
    content: Content
    committed: Content
    past: History[tuple[Entry, ...]]
    graph: WindowGraph

    def __init__(self) -> None:
        self.content = Content()
        self.said: Known = {}
        self._lock = threading.RLock()
        self.unanswered: Unanswered | None = None
        self.closed = False

    @overload
    def append(
        self,
        content: str,
        kind: str = "note",
        pin: bool = False,
        before: Handle | None = None,
        *,
        order_free: bool = False,
    ) -> Handle: ...

    @overload
    def append(
        self,
        content: Any,
        kind: str = "note",
        pin: bool = False,
        before: Handle | None = None,
        *,
        order_free: bool = False,
        whole: bool = False,
        fps: float | None = None,
    ) -> Any: ...

    def append(
        self,
        content: Any,
        kind: str = "note",
        pin: bool = False,
        before: Handle | None = None,
        *,
        order_free: bool = False,
        whole: bool = False,
        fps: float | None = None,
    ) -> Any:
        """Add a message and return its handle; of a video, one message a frame and a tuple of handles.

        content: text (a str is always text), an image (PIL, `pathlib.Path`, encoded bytes, uint8 ``[H, W, 3
        or 4]``), a list of text and images, or a video (`agentkv.vision.Video`, a list of frames, uint8
        ``[F, H, W, C]``, the Path of a video file). kind: system, user and assistant are chat roles,
        anything else is shown as user text. pin: refuse to evict it. before: put it in front of this handle
        instead of at the end. order_free: neighbours that are order-free too may change places with it, so
        that KV stays valid; see docs/placement.md. whole, fps: of a video, see `agentkv.vision.prepare`.
        Raises EmptyChunk, InvalidInput, TooLong, UnsupportedModel, ForeignChunk, AlreadyEvicted (of
        ``before``), as a rule before a vision tower ran.
        """
        with self.editing():
            rules.kind(kind)
            if order_free:
                rules.order_free(kind, pin)
            self._index(before)
            showing = messages.Showing(self.max_tokens - self.content.tokens, whole, fps)
        showing.of_a_video(content)
        if not messages.is_clip(content):
            parts = messages.parts_of(content)
            pieces = messages.pieces(self.engine, parts, kind, showing)
            return self._append(pieces, kind, pin, before, parts, order_free)
        rules.unordered_clip(order_free)
        clip = messages.clip(self.engine, content, kind, showing)
        with self.editing():
            noted = self.content
            try:
                named = enumerate(clip, 1)
                return tuple(
                    self._append(frame, kind, pin, before, [f"frame {i} of {len(clip)}"])
                    for i, frame in named
                )
            except BaseException:
                self.content = noted
                raise

    def append_ids(
        self, ids: Ids, kind: str = "note", pin: bool = False, before: Handle | None = None, preview: str = ""
    ) -> Handle:
        """As `append`, for token ids int64 ``[T]`` that need no template."""
        rules.kind(kind)
        return self._append([Tokens(ids)], kind, pin, before, [preview])

    def _append(
        self,
        pieces: Sequence[Tokens],
        kind: str,
        pin: bool,
        before: Handle | None,
        parts: Sequence[Any],
        order_free: bool = False,
    ) -> Handle:
        with self.editing():
            rules.pieces(pieces, self.engine.vocabulary, self.engine.tower)
            count = sum(len(ids) for ids, _ in pieces)
            rules.fits(self.content.tokens + count, self.max_tokens)
            at = self._index(before)
            handle = Handle(self.engine.numbers(1), kind, count, words(messages.preview(parts)))
            entry = replace(self.cut(handle, pieces), pinned=pin, order_free=order_free)
            self.content = self.content.with_entry(entry, at)
            return handle

    def cut(self, handle: Handle, pieces: Sequence[Tokens]) -> Entry:
        """A message of these pieces as chunks under fresh uids: an image is one, text is cut by content."""
        parts = [part for ids, media in pieces for part in self._cut(ids, media, handle.kind)]
        images = (self.engine.tokens(chunk.id).media for _, chunk in parts)
        return Entry(handle, tuple(parts), media=tuple(media for media in images if media is not None))

    def _cut(self, ids: Ids, media: Media | None, kind: str) -> tuple[tuple[int, Chunk], ...]:
        if media is None:
            return self.cut_parts(ids, kind)
        return ((self.engine.numbers(1), self.engine.register(ids, kind, media)),)

    def set_prompt(
        self, ids: Ids, boundaries: Iterable[int] = (), kind: str = "prompt"
    ) -> tuple[Handle, ...]:
        """Hold exactly this prompt: what stood here and stands in it stays, at whatever place, what the store
        knows comes back, the rest is new. All that is not in it is evicted.

        ids: int64 ``[T]``, no template added; what opens every window may be left out. boundaries: edges of
        messages and tool schemas; each stretch between two is a message, with the handle that it had where it
        did not change. Raises PinnedChunk where a pinned one is missing, EmptyChunk, InvalidInput, TooLong.
        """
        with self.editing():
            rules.kind(kind)
            self.content, handles = prompted(self, ids, boundaries, kind)
            return handles

    def show(self, messages: Sequence[Message]) -> tuple[Handle, ...]:
        """Hold exactly these messages, in this order: those that stand here stay, at whatever place, those
        that this window held before come back, an edited one costs the tokens that differ, the rest is new.
        All that is not among them is evicted, pinned or not: the list says what is pinned.

        Returns a handle for each; an unchanged message has the one it had. Raises EmptyChunk, InvalidInput,
        TooLong.
        """
        with self.editing():
            self.content, handles = shown(self, messages, self.said)
            return handles

    def evict(self, handle: Handle) -> None:
        """Take it out of the window. Its KV goes to the store, so that it can be recalled.

        Raises ForeignChunk, PinnedChunk, AlreadyEvicted.
        """
        with self.editing():
            rules.unpinned(rules.live(self.content, handle))
            self.content = self.content.without({handle.id})

    def pin(self, handle: Handle, on: bool = True) -> None:
        """Refuse to evict a message from now on, or allow it again."""
        with self.editing():
            entry = rules.live(self.content, handle)
            self.content = self.content.with_entry(replace(entry, pinned=on))

    def recall(self, handle: Handle, before: Handle | None = None) -> Handle:
        """Bring an evicted message back, at the end or in front of ``before``.

        Raises InvalidInput when it is in the window already, ForeignChunk, TooLong.
        """
        with self.editing():
            entry = rules.evicted(self.content, handle)
            rules.fits(self.content.tokens + handle.tokens, self.max_tokens)
            entry = replace(
                entry,
                order_free=entry.order_free and before is None,
                recalls=entry.recalls + 1,
                used=self.engine.numbers(1),
            )
            self.content = self.content.with_entry(entry, self._index(before))
            return handle

    def move(self, handle: Handle, before: Handle | None = None) -> None:
        """Move a message to the end, or in front of ``before``. From then on its place is chosen: it is
        order-free no more."""
        with self.editing():
            entry = rules.live(self.content, handle)
            if before is handle:
                raise InvalidInput(
                    got="a move in front of itself", expected="another handle", do="pass another one"
                )
            self._index(before)
            rest = self.content.without({handle.id})
            at = len(rest.order) if before is None else rest.order.index(before.id)
            self.content = rest.with_entry(replace(entry, order_free=False), at)

    def reorder(self, handles: Sequence[Handle]) -> None:
        """Put these messages into this order, in the places they hold now; none of them is order-free any
        more."""
        with self.editing():
            ids = [rules.live(self.content, h).handle.id for h in handles]
            if len(set(ids)) != len(ids):
                raise InvalidInput(
                    got="a handle twice", expected="each handle once", do="drop the repetition"
                )
            for h in handles:
                entry = replace(rules.live(self.content, h), order_free=False)
                self.content = self.content.with_entry(entry)
            turn = iter(ids)
            self.content = self.content.with_order(
                tuple(next(turn) if i in ids else i for i in self.content.order)
            )

    def replace(self, handle: Handle, text: str) -> Handle:
        """Change a message in its place. What stands in both texts before and behind the change is kept as
        it is (a clock in a long header costs the tokens of the clock).

        Returns the handle of the new text; the old one counts as evicted.
        """
        ids = self._tokens(text, handle.kind if isinstance(handle, Handle) else "note")
        with self.editing():
            old = rules.live(self.content, handle)
            rules.text_only(old)
            require_text(ids, self.engine.tower)
            rules.fits(self.content.tokens - handle.tokens + len(ids), self.max_tokens)
            parts = replaced(self, old, ids)
            new = Handle(self.engine.numbers(1), handle.kind, len(ids), words(text))
            entry = Entry(new, parts, old.pinned, old.clean, old.order_free)
            content = self.content.with_entry(entry, self._index(handle))
            # The new text has the old one's placements; a recall of the old one asks for others.
            was = rules.live(self.content, handle)  # divided since where the texts agree
            fresh = renumbered(was, self.engine.numbers(len(was.parts)))
            content = content.with_entry(Entry(handle, fresh, old.pinned))
            self.content = content.without({handle.id})
            return new

    def slide(self, max_tokens: int | None = None, by: By = "oldest") -> list[Handle]:
        """Evict messages that are not pinned until at most ``max_tokens`` are left; returns them in order.

        by: the oldest first, or those first whose tokens are worth least: seldom recalled, cheap to bring
        back. Raises TooLong when the pinned ones alone are more, InvalidInput for an unknown ``by``.
        """
        with self.editing():
            limit = self.max_tokens if max_tokens is None else max_tokens
            over, gone = self.content.tokens - limit, []
            for entry in first_to_leave(self, by):
                if over > 0:
                    gone.append(entry.handle)
                    over -= entry.handle.tokens
            if over > 0:
                raise TooLong(
                    got=f"{limit + over} pinned tokens", expected=f"at most {limit}", do="raise the limit"
                )
            self.content = self.content.without({h.id for h in gone})
            return gone

    def clean_view(self, handle: Handle, on: bool = True) -> None:
        """Show a message as if nothing stood in front of it (its canonical); ``on=False`` puts its context
        back."""
        with self.editing():
            entry = rules.live(self.content, handle)
            self.content = self.content.with_entry(replace(entry, clean=on))

    def cut_parts(self, ids: Ids, kind: str) -> tuple[tuple[int, Chunk], ...]:
        """Content-defined chunks of one message (its edges are boundaries), each under a fresh uid.

        Known content is found in it wherever it stood before, and what the store holds of it is taken along.
        """
        found = self.engine.admit(ids, kind)
        take_along(self.engine, found)
        first = self.engine.numbers(len(found))
        return tuple((first + i, chunk) for i, (chunk, _) in enumerate(found))

    def holds(self) -> set[str]:
        """Ids of all chunks that stand here or that a handle or undo may bring back. No lock: values are
        replaced."""
        parts = [e.parts for c in (self.content, self.committed) for _, e in c.entries]
        parts += [e.parts for r in (*self.past.past, *self.past.future) for e in r.content]
        held = {chunk.id for part in parts for _, chunk in part}
        return held | {p.chunk.id for p in self.graph.placements}

    @property
    def streaming(self) -> bool:
        """Whether an answer is under way."""
        return self.unanswered is not None

    @contextmanager
    def editing(self) -> Iterator[None]:
        """One thread at a time, on an open window that is not in the middle of an answer."""
        with self._lock:
            self.require_open()
            if self.streaming:
                raise Busy(
                    got="an edit in the middle of an answer",
                    expected="a finished or closed stream",
                    do="read the stream to its end, or call close() on it",
                )
            yield

    def require_open(self) -> None:
        """Raises ClosedError on a closed window."""
        if self.closed:
            raise ClosedError(got="a closed window", expected="an open one", do="open another window")

    def _tokens(self, text: str, kind: str) -> Ids:
        if not isinstance(text, str):
            raise InvalidInput(got=type(text).__name__, expected="text", do="pass a str")
        if not text:
            return tokenise(self.engine.tokenizer, text)
        return tokenise(self.engine.tokenizer, self.engine.template.render(text, kind))

    def _index(self, before: Handle | None) -> int:
        """Where in the order: the end, or the place of ``before``."""
        if before is None:
            return len(self.content.order)
        return self.content.order.index(rules.live(self.content, before).handle.id)
