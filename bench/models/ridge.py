"""Ridge regression in closed form: a frozen encoder's features onto a language model's input embeddings."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize


@dataclass(frozen=True, eq=False)
class Projector:
    """x → ((x - mean) / scale) @ weight + bias. mean, scale: [d]. weight: [d, E]. bias: [E]. All fp32."""

    mean: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """[n, E] for `features` [n, d]."""
        return (features - self.mean) / self.scale @ self.weight + self.bias


def fit(features: Tensor, targets: Tensor, penalty: float) -> Projector:
    """The minimum of |XW - Y|² + penalty · n · |W|² over standardised features, in fp64.

    features: [n, d]. targets: [n, E]. A feature that never varies gets no weight.
    """
    x, y = features.double(), targets.double()
    mean, bias = x.mean(0), y.mean(0)
    spread = x.std(0)
    scale = torch.where(spread > 0, spread, 1.0)
    x = (x - mean) / scale
    gram = x.T @ x + penalty * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
    weight = torch.linalg.solve(gram, x.T @ (y - bias))
    return Projector(mean.float(), scale.float(), weight.float(), bias.float())


def nearest(embeddings: Tensor, table: Tensor) -> Tensor:
    """int64 [n]: for each of `embeddings` [n, E] the row of `table` [m, E] at the smallest angle."""
    return (normalize(embeddings, dim=-1) @ normalize(table, dim=-1).T).argmax(-1)
