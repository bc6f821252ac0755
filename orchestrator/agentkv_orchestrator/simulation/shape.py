"""Sizes of what a store holds, from the shape of a model's cache."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ..errors import PlanError
from ..reading import read_json

_SHIPPED = "smollm2-135m-shape.json"


class Shape(BaseModel):
    """A model's cache. slots: features of one token and layer in each slot, H·D. itemsize: bytes of a number.

    patch_rank: a patch takes the bytes of one of this rank in every layer and slot.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    layers: int = Field(gt=0)
    slots: tuple[int, ...] = Field(min_length=1)
    itemsize: int = Field(gt=0)
    patch_rank: int = Field(gt=0)
    patch_itemsize: int = Field(gt=0)

    @classmethod
    def load(cls, path: Path) -> Shape:
        """Read a file. Raises PlanError naming the first field that is wrong."""
        return cls._parse(path.read_text(), str(path))

    @classmethod
    def shipped(cls) -> Shape:
        """That of the embedded model."""
        file = resources.files("agentkv_orchestrator").joinpath("data", _SHIPPED)
        return cls._parse(file.read_text(), _SHIPPED)

    @classmethod
    def _parse(cls, text: str, name: str) -> Shape:
        return read_json(cls, text, PlanError, "the shape of a cache", "see docs/simulate.md", name)

    def kv(self, tokens: int) -> int:
        """Bytes of the KV of so many tokens."""
        return tokens * self.layers * sum(self.slots) * self.itemsize

    def patch(self, tokens: int) -> int:
        """Bytes of a patch for so many tokens: r·(n + d) numbers a layer and slot, r at most n and d."""
        numbers = sum(min(self.patch_rank, tokens, d) * (tokens + d) for d in self.slots)
        return self.layers * numbers * self.patch_itemsize
