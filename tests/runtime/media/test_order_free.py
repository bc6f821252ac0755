"""Images in windows that place messages: moved where they were marked, left where they were not."""

from __future__ import annotations

import pytest

from agentkv.errors import InvalidInput
from tests.runtime.cases import STRICT
from tests.runtime.media.cases import TALL, WIDE
from tests.runtime.media.windows import assert_shows, engine
from tests.vlm_models import picture

FAMILY = "qwen2_vl"


def test_a_marked_image_changes_places_and_the_window_is_that_of_a_reprefill() -> None:
    with engine(FAMILY) as built:
        window = built.window(STRICT)
        window.append("abc", kind="system")
        wide, note, tall = (window.append(part, order_free=True) for part in (WIDE, "defg", TALL))
        window.commit()
        for handle in (wide, note):
            window.evict(handle)
        window.commit()
        for handle in (note, wide):  # asked for behind the other image, in the other order
            window.recall(handle)
        window.commit()
        shown = {wide.id: WIDE, note.id: "defg", tall.id: TALL}
        order = [e.handle.id for e in window.content.live()[1:]]
        assert order != [tall.id, note.id, wide.id]
        assert_shows(FAMILY, window, "abc", *(shown[i] for i in order))
        assert built.tower.runs == 2


def test_an_image_that_was_not_marked_stays_and_so_does_what_stands_on_its_other_side() -> None:
    with engine(FAMILY) as built:
        window = built.window(STRICT)
        window.append("abc", kind="system")
        a = window.append("defg", order_free=True)
        window.append(WIDE)
        b = window.append("hi", order_free=True)
        window.commit()
        window.evict(a)
        window.commit()
        window.recall(a)
        window.commit()
        behind = [e.handle for e in window.content.live()[2:]]
        assert set(behind) == {a, b}
        assert window.content.live()[1].media
        shown = {a: "defg", b: "hi"}
        assert_shows(FAMILY, window, "abc", WIDE, *(shown[handle] for handle in behind))


def test_the_frames_of_a_video_keep_their_order() -> None:
    with engine(FAMILY) as built:
        window = built.window(STRICT)
        with pytest.raises(InvalidInput, match="order_free for a video"):
            window.append([picture(8, 8, seed=i) for i in range(4)], order_free=True)
        assert len(window) == 0
