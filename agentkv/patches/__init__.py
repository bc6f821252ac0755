"""Patches: what a chunk's KV misses when it was computed without its antecedents, in few bytes."""

from agentkv.patches.budget import Budget
from agentkv.patches.form import Patch, deficit, form

__all__ = ["Budget", "Patch", "deficit", "form"]
