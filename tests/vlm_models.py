"""Tiny random vision-language models, one of each class that takes images, and pictures to show them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers import AutoModelForImageTextToText

TEXT = {
    "vocab_size": 192,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
HIDDEN = TEXT["hidden_size"]
SPECIAL = [
    *("<pad>", "<s>", "</s>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    *("<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>"),
    *("<|end_of_video|>", "<image>", "<video>", "<fake_token_around_image>", "<global-img>"),
    *("<end_of_utterance>", "[IMG]", "[IMG_BREAK]", "[IMG_END]", "<img>", "</img>", "<IMG_CONTEXT>"),
    *("<start_of_image>", "<image_soft_token>", "<end_of_image>"),
    *(f"<row_{row}_col_{col}>" for row in range(1, 7) for col in range(1, 7)),
]


def token_id(token: str) -> int:
    return SPECIAL.index(token)


def _grid_vision(**own: Any) -> dict[str, Any]:
    base = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
    return {**base, "initializer_range": 0.2, **own}


def _square_vision(model_type: str, **own: Any) -> dict[str, Any]:
    base = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return {
        "model_type": model_type,
        **base,
        "image_size": 32,
        "patch_size": 8,
        "initializer_range": 0.2,
        **own,
    }


def _mrope(*sections: int, **own: Any) -> dict[str, Any]:
    return {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections), **own}
    }


MOE = {
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
QWEN = {"image_token_id": token_id("<|image_pad|>"), "video_token_id": token_id("<|video_pad|>")}
GLM = {"image_token_id": token_id("<|image|>"), "video_token_id": token_id("<|video|>")}
GLM_VISION = _grid_vision(hidden_size=32, out_hidden_size=HIDDEN, intermediate_size=32, image_size=32)
SIGLIP = _square_vision("siglip_vision_model", vision_use_head=False)
LLAMA = {"model_type": "llama"}
SMOL = {"image_token_id": token_id("<image>"), "scale_factor": 2, "pad_token_id": 0}

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {**QWEN, "text": _mrope(2, 3, 3), "vision": _grid_vision(embed_dim=32, hidden_size=HIDDEN)},
    "qwen2_5_vl": {
        **QWEN,
        "text": _mrope(2, 3, 3),
        "vision": _grid_vision(
            hidden_size=32,
            out_hidden_size=HIDDEN,
            intermediate_size=32,
            window_size=16,
            fullatt_block_indexes=[1],
        ),
    },
    "qwen3_vl": {
        **QWEN,
        "text": _mrope(4, 2, 2, mrope_interleaved=True),
        "vision": _grid_vision(
            hidden_size=32,
            out_hidden_size=HIDDEN,
            intermediate_size=32,
            num_position_embeddings=64,
            deepstack_visual_indexes=[0, 1],
        ),
    },
    "glm4v": {**GLM, "text": _mrope(2, 1, 1, partial_rotary_factor=0.5), "vision": GLM_VISION},
    "glm46v": {
        **GLM,
        "text": {"model_type": "glm4v_text", **_mrope(2, 1, 1, partial_rotary_factor=0.5)},
        "vision": {"model_type": "glm4v_vision", **GLM_VISION},
    },
    "glm4v_moe": {**GLM, "text": {**MOE, **_mrope(2, 1, 1, partial_rotary_factor=0.5)}, "vision": GLM_VISION},
    "smolvlm": {**SMOL, "text": LLAMA, "vision": _square_vision("smolvlm_vision")},
    "idefics3": {**SMOL, "text": LLAMA, "vision": _square_vision("idefics3_vision")},
    "llava": {
        "image_token_index": token_id("<image>"),
        "text": LLAMA,
        "vision": _square_vision("clip_vision_model", projection_dim=16),
    },
    "llava_onevision": {
        "image_token_index": token_id("<image>"),
        "video_token_index": token_id("<video>"),
        "image_grid_pinpoints": [[32, 64], [64, 32], [64, 64]],
        "text": {"model_type": "qwen2"},
        "vision": SIGLIP,
    },
    "internvl": {
        "image_token_id": token_id("<IMG_CONTEXT>"),
        "image_seq_length": 4,
        "text": {"model_type": "qwen2"},
        "vision": _square_vision("internvl_vision", image_size=[32, 32], patch_size=[8, 8]),
    },
    "mistral3": {
        "image_token_index": token_id("[IMG]"),
        "spatial_merge_size": 2,
        "text": {"model_type": "mistral", "sliding_window": None},
        "vision": _square_vision("pixtral", image_size=64),
    },
    "gemma3": {
        "image_token_index": token_id("<image_soft_token>"),
        "boi_token_index": token_id("<start_of_image>"),
        "eoi_token_index": token_id("<end_of_image>"),
        "mm_tokens_per_image": 4,
        "text": {"query_pre_attn_scalar": 16, "sliding_window": 8},
        "vision": SIGLIP,
    },
    "deepseek_vl": {"image_token_id": token_id("<image>"), "text": LLAMA, "vision": SIGLIP},
}
"""One model of each class that takes images."""


def vlm(model_type: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    """A random model in eval mode; the same arguments give the same weights."""
    fields = dict(CONFIGS[model_type])
    text = {**TEXT, **fields.pop("text")}
    vision = fields.pop("vision")
    config = transformers.CONFIG_MAPPING[model_type](text_config=text, vision_config=vision, **fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config, experts_implementation="eager")
        for weight in model.parameters():
            if weight.dim() > 1 and not weight.any():  # gemma3's projector: every image would be nothing
                torch.nn.init.normal_(weight, std=0.2)
    return model.to(dtype).eval()


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """An image of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)
