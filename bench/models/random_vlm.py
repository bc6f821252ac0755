"""A random vision-language model of a realistic shape, with its processor, built without a download.

Qwen2-VL at 12 layers of 512: M-RoPE, two KV heads of 64, a vision tower of 12 blocks. Its tokenizer has one
token a character; what an image costs does not depend on what the weights have learned.
"""

from __future__ import annotations

import string
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

SPECIAL = ("<pad>", "<s>", "</s>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
HIDDEN, LAYERS, HEAD = 512, 12, 64
PATCH, MERGE = 14, 2
SCALE = 0.1  # of the weights: at transformers' own, no token would see what stands in front of it
TEXT = {
    "initializer_range": SCALE,
    "vocab_size": len(SPECIAL) + len(string.printable),
    "hidden_size": HIDDEN,
    "intermediate_size": 4 * HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HIDDEN // HEAD,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "bos_token_id": SPECIAL.index("<s>"),
    "eos_token_id": SPECIAL.index("</s>"),
    "pad_token_id": SPECIAL.index("<pad>"),
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]},
}
VISION = {
    "initializer_range": SCALE,
    "depth": LAYERS,
    "embed_dim": HIDDEN,
    "hidden_size": HIDDEN,
    "num_heads": HIDDEN // HEAD,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "temporal_patch_size": 2,
}


def model(seed: int = 0) -> Any:
    """The model in fp32, in eval mode."""
    config = transformers.Qwen2VLConfig(
        text_config=TEXT,
        vision_config=VISION,
        image_token_id=SPECIAL.index("<|image_pad|>"),
        video_token_id=SPECIAL.index("<|video_pad|>"),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()


class _NoVideos:
    """In the place of a video processor, which transformers cannot build without torchvision."""

    merge_size = MERGE

    def to_dict(self) -> dict[str, Any]:
        return {}


def processor() -> Any:
    """Qwen2-VL's own processor over its own image processor (Pillow) and a tokenizer of characters."""
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *string.printable])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    backend.add_special_tokens(list(SPECIAL))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    images = transformers.Qwen2VLImageProcessorPil(
        patch_size=PATCH, merge_size=MERGE, temporal_patch_size=VISION["temporal_patch_size"]
    )
    # Without torchvision, transformers cannot even name the class that it checks a video processor against.
    unchecked = {"check_argument_for_proper_class": lambda *_: object}
    kind = type("Qwen2VLProcessor", (transformers.Qwen2VLProcessor,), unchecked)
    return kind(images, tokenizer, _NoVideos())


def picture(tokens: int, seed: int = 0) -> Image.Image:
    """Random pixels, as many as a square of `tokens` (a square number) merged patches has."""
    side = int(tokens**0.5) * PATCH * MERGE
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return Image.fromarray(pixels)
