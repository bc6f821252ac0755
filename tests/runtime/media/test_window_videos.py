"""Windows with videos: frames that leave one by one, and videos that do not."""

from __future__ import annotations

import pytest
import torch

from agentkv.vision import Video
from tests.runtime.cases import STRICT
from tests.runtime.media.cases import (
    GRIDDED,
    Rig,
    laid_out,
    our_logits,
    rig,
)
from tests.runtime.media.windows import (
    QUESTION,
    asked,
    assert_shows,
    engine,
    show,
    true_logits,
)
from tests.tolerances import LOGITS
from tests.vlm_models import picture

FILM = [picture(16, 16, seed) for seed in range(6)]


@pytest.mark.parametrize("family", [*GRIDDED, "internvl", "smolvlm", "llava_onevision"])
def test_frames_of_a_video_leave_one_by_one(family: str) -> None:
    """Checked against the pieces that are left, laid out one behind the other."""
    film = Video(FILM if family in GRIDDED else [picture(32, 32, seed) for seed in range(3)], fps=2.0)
    with engine(family) as built:
        window = built.window(STRICT)
        window.append("ab")
        handles = show(window, film)
        window.append("cd")
        window.commit()
        assert_shows(family, window, "ab", film, "cd")
        base = rig(family)
        found = Rig(base.model, base.processor, built.tower)
        pieces = laid_out(found, ["ab", film, "cd", QUESTION])
        chunks = [(piece.ids, piece.media) for piece in pieces]
        frames = [handle for handle, (_, media) in zip(handles, chunks[1:], strict=False) if media]
        for frame in (frames[1], frames[0]):
            window.evict(frame)
            window.commit()
            del chunks[1 + handles.index(frame)]
            handles.remove(frame)
            left, position = [], 0
            for ids, media in chunks:
                left.append(pieces[0]._replace(ids=ids, media=media, position=position))
                position += left[-1].span
            wanted = our_logits(found, family, left)[-len(QUESTION) :]
            assert float((asked(window) - wanted).abs().max()) <= LOGITS[torch.float64]
        assert built.tower.runs == 1


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_a_whole_video_is_one_chunk(family: str) -> None:
    film = Video(FILM, fps=2.0)
    with engine(family) as built:
        window = built.window(STRICT)
        window.append("abc")
        (handle,) = show(window, film, whole=True)
        window.append("de")
        window.commit()
        wanted = true_logits(family, window, ["abc", film, "de"], whole=True)
        assert float((asked(window) - wanted).abs().max()) <= LOGITS[torch.float64]
        window.move(handle)
        window.commit()
        wanted = true_logits(family, window, ["abc", "de", film], whole=True)
        assert float((asked(window) - wanted).abs().max()) <= LOGITS[torch.float64]
