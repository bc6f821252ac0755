"""Processors for the tiny vision-language models, built without any download.

Each is the family's own class over its own image processor (Pillow backend, small sizes) and a tokenizer of
single characters. What transformers has only with torchvision is stood in for: `PlainVideoProcessor` makes
the patches of a video, `PlainPixtralProcessor` the token grid of an image.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers
import transformers.models.smolvlm.processing_smolvlm as smolvlm_processing
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import BatchFeature, PreTrainedTokenizerFast, ProcessorMixin
from transformers.video_utils import VideoMetadata

from tests.vlm_models import SPECIAL

NAMED = {
    "internvl": {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    },
    "gemma3": {
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
    },
    "deepseek_vl": {"image_token": "<image>"},
}


def tokenizer(model_type: str = "", chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """One token a character; special tokens have the first ids."""
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *string.printable])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    backend.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        chat_template=chat_template,
        extra_special_tokens=NAMED.get(model_type, {}),
    )


class PlainVideoProcessor:
    """Frames to model inputs, without sampling and resizing.

    shape: "patches" (Qwen-VL, GLM-V) or "frames"; key: what the frames are called in its output.
    """

    def __init__(self, shape: str, key: str = "pixel_values_videos", patch_size: int = 4) -> None:
        self.shape, self.key, self.patch_size = shape, key, patch_size
        self.merge_size = self.temporal_patch_size = 2

    def to_dict(self) -> dict[str, Any]:
        return vars(self)

    def __call__(self, videos: Any, video_metadata: Any = None, **_: Any) -> BatchFeature:
        (video,) = videos  # uint8 [F, 3, H, W]
        frames = np.asarray(video).astype(np.float32) / 127.5 - 1
        found: dict[str, Any] = {"video_metadata": [VideoMetadata(**meta) for meta in video_metadata]}
        if self.shape == "patches":
            found |= self.patches(frames)
        else:
            found[self.key] = torch.from_numpy(frames)[None]
        return BatchFeature(found)

    def patches(self, frames: np.ndarray) -> dict[str, torch.Tensor]:
        if len(frames) % 2:
            frames = np.concatenate([frames, frames[-1:]])
        p, (t, h, w) = (
            self.patch_size,
            (len(frames) // 2, frames.shape[2] // self.patch_size, frames.shape[3] // self.patch_size),
        )
        blocks = frames.reshape(t, 2, 3, h // 2, 2, p, w // 2, 2, p).transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)
        return {
            "pixel_values_videos": torch.from_numpy(blocks.reshape(t * h * w, -1).copy()),
            "video_grid_thw": torch.tensor([[t, h, w]]),
        }


class PlainPixtralProcessor(ProcessorMixin):
    """One [IMG] for each merged patch, [IMG_BREAK] behind a row, [IMG_END] behind the last."""

    image_token = "[IMG]"

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None) -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template)

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        height, width = (int(side) // 16 for side in image_inputs["image_sizes"][image_idx])
        return "[IMG_BREAK]".join(["[IMG]" * width] * height) + "[IMG_END]"


def _grid_images(kind: str) -> Any:
    size = {"shortest_edge": 64, "longest_edge": 4096}
    return getattr(transformers, kind)(patch_size=4, merge_size=2, temporal_patch_size=2, size=size)


def _split_images(kind: str) -> Any:
    return getattr(transformers, kind)(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})


def _square(kind: str, **own: Any) -> Any:
    return getattr(transformers, kind)(size={"height": 32, "width": 32}, **own)


def _smolvlm(cls: Any, tok: Any) -> Any:
    if smolvlm_processing.num2words is None:  # not installed; only asked how many frames there are
        smolvlm_processing.num2words = str
    return cls(
        _split_images("SmolVLMImageProcessorPil"),
        tok,
        PlainVideoProcessor("frames", "pixel_values"),
        image_seq_len=4,
    )


PROCESSORS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    **{
        name: (
            kind,
            lambda cls, tok: cls(
                _grid_images("Qwen2VLImageProcessorPil"), tok, PlainVideoProcessor("patches")
            ),
        )
        for name, kind in (
            ("qwen2_vl", "Qwen2VLProcessor"),
            ("qwen2_5_vl", "Qwen2_5_VLProcessor"),
            ("qwen3_vl", "Qwen3VLProcessor"),
        )
    },
    **{
        name: (
            kind,
            lambda cls, tok: cls(_grid_images("Glm4vImageProcessorPil"), tok, PlainVideoProcessor("patches")),
        )
        for name, kind in (
            ("glm4v", "Glm4vProcessor"),
            ("glm46v", "Glm46VProcessor"),
            ("glm4v_moe", "Glm4vProcessor"),
        )
    },
    "smolvlm": ("SmolVLMProcessor", _smolvlm),
    "idefics3": (
        "Idefics3Processor",
        lambda cls, tok: cls(_split_images("Idefics3ImageProcessorPil"), tok, image_seq_len=4),
    ),
    "llava": (
        "LlavaProcessor",
        lambda cls, tok: cls(
            transformers.CLIPImageProcessorPil(
                size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
            ),
            tok,
            patch_size=8,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        ),
    ),
    "llava_onevision": (
        "LlavaOnevisionProcessor",
        lambda cls, tok: cls(
            _square("LlavaOnevisionImageProcessorPil", image_grid_pinpoints=[[32, 64], [64, 32], [64, 64]]),
            tok,
            PlainVideoProcessor("frames"),
            num_image_tokens=16,
            vision_feature_select_strategy="full",
        ),
    ),
    "internvl": (
        "InternVLProcessor",
        lambda cls, tok: cls(
            _square("GotOcr2ImageProcessorPil", max_patches=4),
            tok,
            PlainVideoProcessor("frames"),
            image_seq_length=4,
        ),
    ),
    "mistral3": (
        "PlainPixtralProcessor",
        lambda cls, tok: cls(
            transformers.PixtralImageProcessorPil(size={"longest_edge": 64}, patch_size=16), tok
        ),
    ),
    "gemma3": (
        "Gemma3Processor",
        lambda cls, tok: cls(_square("Gemma3ImageProcessorPil"), tok, image_seq_length=4),
    ),
    "deepseek_vl": (
        "DeepseekVLProcessor",
        lambda cls, tok: cls(_square("DeepseekVLImageProcessorPil"), tok, num_image_tokens=16),
    ),
}


def processor(model_type: str, chat_template: str | None = None) -> Any:
    """The family's own processor, over `tokenizer`."""
    kind, build = PROCESSORS[model_type]
    cls = PlainPixtralProcessor if kind == "PlainPixtralProcessor" else getattr(transformers, kind)
    # Without torchvision, transformers cannot even name the class that it checks a video processor against.
    unchecked = {"check_argument_for_proper_class": lambda *_: object}
    return build(type(kind, (cls,), unchecked), tokenizer(model_type, chat_template))
