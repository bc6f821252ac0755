"""How a multimodal model takes images: token ids, position axes and masks, read from its config.

With `families.py` the only place that reads Hugging Face config names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SEEN = frozenset(
    (
        *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "glm46v", "glm4v_moe"),
        *("smolvlm", "idefics3", "llava", "deepseek_vl", "llava_onevision", "internvl", "mistral3", "gemma3"),
    )
)
"""Model types whose images were run against transformers; no other one is shown any."""

BOTH_WAYS = frozenset({"gemma3"})
"""Model types whose image tokens attend to each other in both directions."""

BEGIN_MARKED = frozenset({"glm4v", "glm46v", "glm4v_moe"})
"""Model types that write a frame's time behind its end marker; the others write it in front of its begin
marker."""


@dataclass(frozen=True)
class MediaSpec:
    """One multimodal model.

    model_type: as in its config. image_id, video_id: the tokens that stand for features (video_id None:
    videos use image_id, or there are none). axes: position ids of a token, 3 for M-RoPE. merge: patches a
    side that become one token. tokens_per_second: position ids a second of a whole video takes
    (qwen2_5_vl); None where frames are one apart. both_ways: image tokens attend to later ones of their
    image. begin_marked: see above.
    """

    model_type: str
    image_id: int
    video_id: int | None
    axes: int
    merge: int
    tokens_per_second: float | None
    both_ways: bool
    begin_marked: bool

    @property
    def placeholder_ids(self) -> tuple[int, ...]:
        """The ids that no text may contain."""
        return (self.image_id,) if self.video_id is None else (self.image_id, self.video_id)


def media_spec(config: Any) -> MediaSpec | None:
    """What a transformers config says about images; None for a text-only model."""
    image_id, vision = getattr(config, "image_token_id", None), getattr(config, "vision_config", None)
    if image_id is None or vision is None:
        return None
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    return MediaSpec(
        model_type=config.model_type,
        image_id=image_id,
        video_id=getattr(config, "video_token_id", None),
        axes=len(rope["mrope_section"]) if "mrope_section" in rope else 1,
        merge=getattr(vision, "spatial_merge_size", 1),
        tokens_per_second=getattr(vision, "tokens_per_second", None),
        both_ways=config.model_type in BOTH_WAYS,
        begin_marked=config.model_type in BEGIN_MARKED,
    )
