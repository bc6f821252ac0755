"""How deep a patch has to reach, calibrated per model.

Deficits grow with depth, so a patch of the deepest layers alone buys most of the effect for a share of
the bytes: the deepest half for 95 % in Kamera. `calibrate_effect` finds the share by what a caller
measures (an η from forwards) and is the one to trust; `calibrate_depth` needs deficits only and is too
optimistic: on SmolLM2 the deepest half holds 81 % of the energy and has 65 % of the effect, the deepest
two thirds 91 % and 83 % (bench/eval/quality.py, recall at rank 32).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from agentkv.errors import InvalidInput
from agentkv.patches.checks import check


def calibrate_depth(deltas: Sequence[Sequence[Tensor]], target: float = 0.95) -> float:
    """Smallest share of the layers, from the deepest up, that holds `target` of Σ‖Δ‖².

    deltas: deficits of several pairs, each per slot [L, n, H, D]; every pair counts the same, whatever
    its length. Raises InvalidInput for no pair, only zero deficits, or a target outside (0, 1].
    """
    _check_target(target)
    shares = []
    for delta in deltas:
        slots = check(delta)
        power = torch.stack([x.double().square().sum((1, 2, 3)) for x in slots]).sum(0)  # [L]
        if power.sum() > 0:
            shares.append(power / power.sum())
    if not shares:
        raise InvalidInput(got="no deficit above zero", expected="at least one", do="pass conditioned pairs")
    held = torch.stack(shares).mean(0).flip(0).cumsum(0)  # of the deepest 1, 2, ... layers
    return (int((held < target - 1e-12).sum()) + 1) / held.shape[0]


def calibrate_effect(effect: Callable[[float], float], layers: int, target: float = 0.95) -> float:
    """Smallest share of the layers whose patch has `target` of the effect of patching all of them.

    effect: share in (0, 1] -> measured effect, growing with the share (for example η). Called about
    1 + log2(layers) times. Raises InvalidInput for a target outside (0, 1] or layers < 1.
    """
    _check_target(target)
    if layers < 1:
        raise InvalidInput(got=layers, expected="layers >= 1", do="pass the model's layer count")
    goal = target * effect(1.0)
    low, high = 1, layers
    while low < high:
        middle = (low + high) // 2
        if effect(middle / layers) >= goal:
            high = middle
        else:
            low = middle + 1
    return high / layers


def _check_target(target: float) -> None:
    if not 0 < target <= 1:
        raise InvalidInput(got=target, expected="a target in (0, 1]", do="use 0.95")
