"""`agentkv diagnose` with screenshots for chunks, read by the closed-form encoder in front of Qwen2.5-0.5B.

    python -m bench.eval.screens --windows 6 --threads 1

A piece of a README is drawn as lines of a screenshot; the model sees one visual token a character. What is
measured, and how, is what it is for text. The model is ours and small (`bench.models.vlm`): it says how reuse
treats image chunks of a model that can read them, not how a large one would.
"""

import argparse
import os
import random
import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from agentkv import Engine
from agentkv.config import EngineConfig
from agentkv.diagnose import documents
from agentkv.diagnose.command import Options, run
from agentkv.diagnose.documents import Piece
from agentkv.diagnose.measure import Texts
from agentkv.inputs import Ids
from agentkv.media import Tokens
from agentkv.models import hf
from agentkv.vision import prepare
from bench.eval.diagnose import RESULTS, say
from bench.models import drawing, qwen_coder, vlm

LENGTH, BODY, COLUMNS = 192, 32, 38
"""Most tokens of a chunk, text tokens drawn on it, and characters of a line."""


class Screens(Texts):
    """Pieces as pictures of their words, inside the markers of a message."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, LENGTH)
        self.body = BODY

    def chunk(self, piece: Piece) -> Tokens:
        """The screenshot that shows a piece: as many tokens as it has characters, at most ``LENGTH``."""
        text = self.engine.tokenizer.decode(list(piece.ids))
        shown = "".join(c if c in vlm.CHARACTERS else " " for c in text)
        lines = textwrap.wrap(" ".join(shown.split()), COLUMNS)[: (LENGTH - 16) // COLUMNS]
        draw = random.Random(f"{piece.name}:{piece.start}")
        picture = drawing.screenshot([drawing.Row(line) for line in lines], draw)
        (image,) = prepare(picture, self.engine.tower)
        return _inside(self._head, image, self._tail)


def _inside(head: Ids, image: Tokens, tail: Ids) -> Tokens:
    """An image and the markers around it as one chunk, for an encoder with a position a token."""
    ids = np.concatenate([head, image.ids, tail])
    placeholders = torch.zeros(len(ids), dtype=torch.bool)
    placeholders[len(head) : len(head) + len(image.ids)] = True
    media = image.media
    assert media is not None  # `prepare` was given a picture
    offsets = torch.arange(len(ids))[None]
    return Tokens(ids, replace(media, offsets=offsets, span=len(ids), placeholders=placeholders))


def main() -> None:
    """All windows, to bench/results/diagnose_qwen_screens.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(args.threads)
    loaded = replace(hf.load(qwen_coder.ensure()), name=vlm.QWEN.name)
    with Engine(loaded, EngineConfig(), vision=vlm.load()) as engine:
        options = Options(
            windows=args.windows,
            chunk_tokens=LENGTH,
            out=args.out / "diagnose_qwen_screens.json",
        )
        run(engine, options, list(documents.readmes()), partial(say, "screens"), Screens(engine))


if __name__ == "__main__":
    main()
