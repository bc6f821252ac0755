"""How a multimodal model takes images: token ids, position axes and masks, read from its config.

What cannot be read there, the family's row says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentkv.models.families import family_of, text_family_of


@dataclass(frozen=True)
class MediaSpec:
    """One multimodal model.

    model_type: as in its config. shown: whether it may be shown images. image_id, video_id: the tokens that
    stand for features (video_id None: videos use image_id, or there are none). axes: position ids of a token,
    3 for M-RoPE. merge: patches a side that become one token. tokens_per_second: position ids a second of a
    whole video takes (qwen2_5_vl); None where frames are one apart. both_ways: image tokens attend to later
    ones of their image. time_behind: as in its family's row.
    """

    model_type: str
    shown: bool
    image_id: int
    video_id: int | None
    axes: int
    merge: int
    tokens_per_second: float | None
    both_ways: bool
    time_behind: bool

    @property
    def placeholder_ids(self) -> tuple[int, ...]:
        """The ids that no text may contain."""
        return (self.image_id,) if self.video_id is None else (self.image_id, self.video_id)


def media_spec(config: Any) -> MediaSpec | None:
    """What a transformers config says about images; None for a text-only model."""
    image_id, vision = getattr(config, "image_token_id", None), getattr(config, "vision_config", None)
    if image_id is None or vision is None:
        return None
    family = family_of(config)
    return MediaSpec(
        model_type=config.model_type,
        shown=family.images,
        image_id=image_id,
        video_id=getattr(config, "video_token_id", None),
        axes=text_family_of(config).axes,
        merge=getattr(vision, "spatial_merge_size", 1),
        tokens_per_second=getattr(vision, "tokens_per_second", None),
        both_ways=family.both_ways,
        time_behind=family.time_behind,
    )
