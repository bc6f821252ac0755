"""A small real vision-language model in closed form: frozen encoders → ridge → frozen language model.

A clean screenshot is cut into rows, icons and text. An icon goes through EfficientNet and becomes two
visual tokens (what colour, what shape); a piece of text goes through PP-OCR and becomes one visual token
for each character. A projector for each kind was fitted by ridge regression onto the language model's
input embeddings of the words or characters that the pictures show: no backpropagation, seconds to fit.
Pieces of a row are parted by the embedding of a space, rows by that of a line break. Positions are 1-D.

It is ours and small: it reads what it was fitted for, and nothing else is claimed of it. The language
model is Qwen2.5-Coder-0.5B, or the embedded SmolLM2-135M, which needs no large download and sees as
much, but answers next to nothing from it.

    python -m bench.models.vlm                   # fits, prints the directory
    python -m bench.models.vlm --score           # held-out scores, to bench/results
"""

import argparse
import json
import os
import random
import string
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from PIL import Image, ImageOps
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer

from agentkv.models import embedded
from bench.models import drawing, efficientnet, ocr, qwen_coder, ridge, segments
from bench.models.wheels import built

TILE = 112  # px of a side of what EfficientNet sees
# The regime of the fit; it enters the digest.
FIT: dict[str, Any] = {
    "version": 1,
    "seed": 1,
    "icons of a kind": 16,
    "lines": 320,
    "icon penalty": 0.3,
    "character penalty": 0.003,
}
_POOLS = (string.ascii_lowercase, string.ascii_lowercase, string.ascii_letters, string.digits)
CHARACTERS = string.ascii_letters + string.digits + string.punctuation + " "


@dataclass(frozen=True)
class Language:
    """A text model that projectors are fitted for. name: of the two together. placeholder: a token of its
    vocabulary that no text contains. sha256: of its weights as they were downloaded. ensure: its directory,
    made on the first call."""

    name: str
    placeholder: str
    sha256: str
    ensure: Callable[[], Path]


QWEN = Language("qwen2.5-coder-0.5b-screens", "<|image_pad|>", qwen_coder.MATERIAL.sha256, qwen_coder.ensure)
SMOLLM2 = Language("smollm2-135m-screens", "<file_sep>", embedded.GGUF_SHA256, embedded.ensure)


@dataclass(frozen=True, eq=False)
class ScreenVision:
    """Turns screenshots into embeddings that stand where `placeholder_id` stands in a prompt.

    language: the text model whose input embeddings these are. icons: projector
    2848 → 2E. characters: projector 120 → E. marks: fp32 [2, E], the embeddings of space and line break.
    """

    language: Language
    placeholder_id: int
    encoder: efficientnet.Weights
    reader: ocr.Reader
    icons: ridge.Projector
    characters: ridge.Projector
    marks: Tensor

    def encode(self, image: Image.Image) -> Tensor:
        """fp32 [n, E]: two embeddings for each icon, one for each character, one between pieces.

        Raises InvalidInput for a picture of one colour.
        """
        space, line_break = self.marks.split(1)
        parts: list[Tensor] = []
        for row in segments.rows(image):
            for index, segment in enumerate(row):
                if parts:
                    parts.append(space if index else line_break)
                parts.append(self.icon(segment) if segment.coloured else self.text(segment))
        return torch.cat(parts)

    def icon(self, segment: segments.Segment) -> Tensor:
        """fp32 [2, E]."""
        return self.icons(efficientnet.features(self.encoder, tile(segment)[None])).unflatten(1, (2, -1))[0]

    def text(self, segment: segments.Segment) -> Tensor:
        """fp32 [characters, E]."""
        return self.characters(torch.from_numpy(self.reader.read(segment.image)[1]))

    def digest(self) -> bytes:
        """16 bytes: everything that decides what `encode` gives for the same pixels."""
        sums = (efficientnet.MATERIAL.sha256, ocr.MATERIAL.sha256, self.language.sha256)
        state = xxhash.xxh3_128(json.dumps([FIT, TILE, self.placeholder_id, *sums]).encode())
        for name, value in sorted(_tensors(self.icons, self.characters, self.marks).items()):
            state.update(f"{name} {list(value.shape)}".encode())
            state.update(value.numpy().tobytes())
        return state.digest()


def tile(segment: segments.Segment) -> Tensor:
    """uint8 [3, TILE, TILE]: the icon in the middle of a square of its own ground."""
    image = segment.image
    side = max(image.size)
    ground = tuple(np.asarray(image)[0, 0].tolist())
    square = ImageOps.pad(image, (side, side), color=ground)
    pixels = np.array(square.resize((TILE, TILE), Image.Resampling.BILINEAR))
    return torch.from_numpy(pixels).permute(2, 0, 1)


def held_out() -> list[drawing.Icon]:
    """16 of the 64 kinds of icon: each colour and each shape twice; the fit never sees them."""
    colours, shapes = list(drawing.COLOURS), list(drawing.SHAPES)
    return [
        drawing.Icon(colour, shapes[(index + shift) % len(shapes)])
        for shift in (0, 3)
        for index, colour in enumerate(colours)
    ]


def icon_features(encoder: efficientnet.Weights, icons: list[drawing.Icon], rng: random.Random) -> Tensor:
    """fp32 [len(icons), 2848] of one drawing each."""
    tiles = []
    for icon in icons:
        shot = drawing.screenshot([drawing.Row(icon=icon)], rng, size=rng.choice((20, 26, 34)))
        tiles.append(tile(segments.rows(shot)[0][0]))
    return torch.cat([efficientnet.features(encoder, batch) for batch in torch.stack(tiles).split(32)])


def random_line(rng: random.Random) -> str:
    """A line of four made-up words, numbers and marks out of CHARACTERS."""
    words = []
    for _ in range(4):
        word = "".join(rng.choices(rng.choice(_POOLS), k=rng.randint(2, 7)))
        words.append(word + rng.choice(("", "", rng.choice(string.punctuation))))
    return " ".join(words)


def character_features(reader: ocr.Reader, lines: int, rng: random.Random) -> tuple[Tensor, str]:
    """(fp32 [n, 120], the n characters drawn) from random lines.

    A line of which another number of characters was read is left out: nothing says which is which.
    """
    features, truth = [], ""
    for _ in range(lines):
        text = random_line(rng)
        face, size = rng.choice(drawing.FONTS), rng.choice((20, 26, 32))
        shot = drawing.screenshot([drawing.Row(text)], rng, face, size)
        read = [reader.read(segment.image)[1] for row in segments.rows(shot) for segment in row]
        if len(read) == 1 and len(read[0]) == len(text):
            features.append(torch.from_numpy(read[0]))
            truth += text
    return torch.cat(features), truth


def fit(language_model: Path) -> dict[str, Tensor]:
    """Both projectors and the marks by name, for the text model in `language_model`."""
    tokenizer = AutoTokenizer.from_pretrained(language_model)
    table = embeddings(language_model)
    rng = random.Random(FIT["seed"])
    unseen = set(held_out())
    kinds = [icon for icon in drawing.icons() if icon not in unseen] * FIT["icons of a kind"]
    words = torch.tensor([single(tokenizer, icon.words, 2) for icon in kinds])  # [n, 2]
    seen = icon_features(efficientnet.load(), kinds, rng)
    letters, truth = character_features(ocr.load(), FIT["lines"], rng)
    return _tensors(
        ridge.fit(seen, table[words].flatten(1), FIT["icon penalty"]),
        ridge.fit(letters, table[character_ids(tokenizer, truth)], FIT["character penalty"]),
        table[character_ids(tokenizer, " \n")],
    )


def embeddings(language_model: Path) -> Tensor:
    """fp32 [vocabulary, E], the input embeddings."""
    with safe_open(language_model / "model.safetensors", "pt") as file:
        return file.get_tensor("model.embed_tokens.weight")


def single(tokenizer: Any, text: str, count: int) -> list[int]:
    """The ids of `text`. Raises ValueError unless they are `count`."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(ids) != count:
        raise ValueError(f"{text!r} is {len(ids)} tokens, expected {count}: use other words here")
    return ids


def character_ids(tokenizer: Any, text: str) -> Tensor:
    """int64 [len(text)]: each character as a token of its own."""
    return torch.tensor([single(tokenizer, character, 1)[0] for character in text])


def _tensors(icons: ridge.Projector, characters: ridge.Projector, marks: Tensor) -> dict[str, Tensor]:
    named = {"icons": icons, "characters": characters}
    parts = {f"{kind}.{f.name}": getattr(p, f.name) for kind, p in named.items() for f in fields(p)}
    return {name: value.contiguous() for name, value in {**parts, "marks": marks}.items()}


def _projector(tensors: dict[str, Tensor], kind: str) -> ridge.Projector:
    return ridge.Projector(*(tensors[f"{kind}.{f.name}"] for f in fields(ridge.Projector)))


def ensure(language: Language = QWEN) -> Path:
    """The directory of the fitted projectors, made on the first call."""

    def build(target: Path) -> None:
        save_file(fit(language.ensure()), target / "projectors.safetensors")
        (target / "fit.json").write_text(json.dumps(FIT, indent=1) + "\n")

    return built(f"{language.name}-v{FIT['version']}", build)


def load(language: Language = QWEN) -> ScreenVision:
    """The encoder that was fitted for a text model."""
    tensors = load_file(ensure(language) / "projectors.safetensors")
    tokenizer = AutoTokenizer.from_pretrained(language.ensure())
    return ScreenVision(
        language,
        tokenizer.convert_tokens_to_ids(language.placeholder),
        efficientnet.load(),
        ocr.load(),
        _projector(tensors, "icons"),
        _projector(tensors, "characters"),
        tensors["marks"],
    )


def main() -> None:
    """Fit if need be; with --score also measure."""
    from bench.models import vlm_scores  # it imports this module

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--score", action="store_true", help=f"write {vlm_scores.RESULT}")
    arguments = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(1)
    print(ensure())
    if arguments.score:
        vlm_scores.save(vlm_scores.scores())


if __name__ == "__main__":
    main()
