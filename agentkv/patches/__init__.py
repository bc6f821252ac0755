"""Patches: what a chunk's KV misses when it was computed without its antecedents, in few bytes."""

from agentkv.patches.apply import apply, undo
from agentkv.patches.budget import Budget
from agentkv.patches.depth import calibrate_depth, calibrate_effect
from agentkv.patches.form import Patch, Spectrum, decompose, deficit, form
from agentkv.patches.orbit import OrbitMean
from agentkv.patches.recipe import Recipe
from agentkv.patches.removal import removal
from agentkv.patches.turn import turned

__all__ = [
    "Budget",
    "OrbitMean",
    "Patch",
    "Recipe",
    "Spectrum",
    "apply",
    "calibrate_depth",
    "calibrate_effect",
    "decompose",
    "deficit",
    "form",
    "removal",
    "turned",
    "undo",
]
