"""Images and videos as chunks: sources in, token ids with features and positions out."""

from agentkv.vision.adapter import VisionAdapter
from agentkv.vision.tower import VisionTower, prepare, require_text, tower_of
from agentkv.vision.videos import Video

__all__ = ["Video", "VisionAdapter", "VisionTower", "prepare", "require_text", "tower_of"]
