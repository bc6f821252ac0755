"""The closed-form encoder for a model that has to act on what it reads: text as words, icons as before.

`vlm.ScreenVision` gives one embedding for each character, which shows what a projector can say; but a small
language model makes little of a word that is spelled out letter by letter. Here PP-OCR says what a piece
of text is, and the embeddings of its tokens stand for it: a third of the tokens, and the model reads them
as it reads any text. Icons are still what ridge regression makes of EfficientNet's features.
"""

from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer

from bench.models import segments, vlm


@dataclass(frozen=True, eq=False)
class WordVision:
    """An adapter like `vlm.ScreenVision`. table: fp32 [vocabulary, E], the model's input embeddings."""

    screens: vlm.ScreenVision
    tokenizer: Any
    table: Tensor

    @property
    def placeholder_id(self) -> int:
        """That of the encoder inside."""
        return self.screens.placeholder_id

    def encode(self, image: Image.Image) -> Tensor:
        """fp32 [n, E]: two embeddings for each icon, one for each token of the text.

        Raises InvalidInput for a picture of one colour.
        """
        parts, text = list[Tensor](), ""
        for number, row in enumerate(segments.rows(image)):
            text += "\n" if number else ""
            for place, segment in enumerate(row):
                if segment.coloured:  # its words begin with a space
                    parts += [self._tokens(text), self.screens.icon(segment)]
                    text = ""
                else:
                    text += (" " if place else "") + self.screens.reader.read(segment.image)[0]
        return torch.cat([*parts, self._tokens(text)])

    def digest(self) -> bytes:
        """16 bytes: everything that decides what `encode` gives for the same pixels."""
        return xxhash.xxh3_128(b"words 1" + self.screens.digest()).digest()

    def _tokens(self, text: str) -> Tensor:
        """fp32 [n, E]. A text that spells a special token is text all the same."""
        ids = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return self.table[torch.tensor(ids, dtype=torch.int64)]


def load(language: vlm.Language = vlm.QWEN) -> WordVision:
    """The encoder that was fitted for a text model."""
    directory = language.ensure()
    return WordVision(vlm.load(language), AutoTokenizer.from_pretrained(directory), vlm.embeddings(directory))
