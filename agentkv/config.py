"""Settings of an engine. Unknown keys raise."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class EngineConfig(BaseModel):
    """What an engine is built with; every field has a default that works."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: Literal["auto", "torch", "triton"] = "auto"
    """"auto": triton on a CUDA device, torch elsewhere."""
    patch_rank: int = Field(default=32, ge=1)
    """Bytes of a patch, as those of a patch of this rank in every corrected layer and slot."""
    patch_scheme: Literal["energy", "uniform"] = "energy"
    """How a patch spends its bytes: by energy over all layers and slots, or the same rank everywhere."""
    patch_depth: float = Field(default=1.0, gt=0, le=1)
    """Share of the layers that patches correct, deepest first (`agentkv.patches.calibrate_depth`)."""
    patch_dtype: Literal["auto", "model", "bfloat16", "float16"] = "auto"
    """How patches are stored. "auto": bfloat16, which cost no KL that could be measured (docs/quality.md),
    but for fp64 models; "model": as the model's own numbers, fp32 at least."""
    store_bytes: int = Field(default=2 << 30, ge=1)
    """Byte budget of the in-memory store that the engine makes when none is given."""
    evictor: Literal["lru", "benefit"] | None = None
    """Who leaves the store when it is full, in memory and on a disk: the least recently used entry, or the
    one that saves least time by its bytes, as the cost table has it. None: as the store was made ("lru")."""
    tenant: str = ""
    """Whose windows these are. Tenants that share a store never see what another one stored."""
    share_canonicals: bool = False
    """Share canonicals, which depend on the chunk and the model alone, with the tenants that do so too.
    Whoever shares can learn from the time of a look-up that another tenant has used the same text."""
    chat_template: bool = True
    """Wrap appended text in the markers of the model's chat template."""
    sink_text: str | None = None
    """Text in front of every canonical; by default the head of a system message, or BOS, or a line of
    text."""
    corrections: Path | None = None
    """Folder in which what audits find out about predicted KL is kept, by tenant; None: only as long as the
    engine."""
    stored_texts: int = Field(default=4096, ge=0)
    """Chunks in the store, those used last, whose tokens an engine reads before it cuts its first text, so
    that parts of what other processes have stored are found."""
    remembered: int = Field(default=1 << 14, ge=0)
    """Messages out of a window that it still knows, about 2 KB each, so that they can be recalled. Of more,
    those are forgotten that came, or were recalled, longest ago; what `undo` goes back to stays."""
    first_rows: int = Field(default=1024, ge=64)
    """Rows a new window starts with; it grows by itself."""
