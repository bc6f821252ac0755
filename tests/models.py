"""Tiny random models of every family that loads, and their arithmetic in fp64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import wraps
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedTokenizerFast,
)

from agentkv.models.families import FAMILIES
from agentkv.models.layouts import body_of, decoder_of
from tests.family_configs import BASE, ROPES, TEXT, VOCAB, WRAPPERS

__all__ = ["ROPES", "VOCAB", "full_precision", "tiny_config", "tiny_model", "tiny_tokenizer"]


def tiny_config(model_type: str = "llama", /, **overrides: Any) -> Any:
    """A transformers config of a few thousand parameters. overrides: of its text model."""
    if model_type in WRAPPERS:
        fields = deepcopy(WRAPPERS[model_type])  # transformers writes into the dicts it is given
        text = _known({**BASE, **fields["text_config"], **overrides})
        return CONFIG_MAPPING[model_type](**{**fields, "text_config": text})
    return CONFIG_MAPPING[model_type](**_known(deepcopy({**BASE, **TEXT[model_type], **overrides})))


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    """Without what a family has no such field for; a window of None is a setting."""
    return {key: value for key, value in fields.items() if value is not None or key == "sliding_window"}


def tiny_model(
    model_type: str = "llama",
    /,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    attention: str | None = None,
    **overrides: Any,
) -> Any:
    """A random model in eval mode; the same arguments give the same weights. attention: transformers' name
    for the one it has outside of agentkv's forwards; None: its own choice."""
    sees = FAMILIES[model_type].loads == "image-text"
    kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind.from_config(
            tiny_config(model_type, **overrides),
            attn_implementation=attention,
            experts_implementation="eager",  # the grouped matrix product of experts has no fp64
        )
    return model.to(dtype).eval()


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token per word: "w3 w4" is [3, 4]."""
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, **{f"w{index}": index for index in range(3, VOCAB)}}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


class _Wide(TorchFunctionMode):
    """fp32 means fp64: what is asked for in single precision is done in double."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float:
            return args[0].double()
        widened = [torch.float64 if arg is torch.float32 else arg for arg in args]
        named = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        return func(*widened, **named)


@contextmanager
def full_precision(model: Any) -> Iterator[None]:
    """Let `model` take its rotary angles in fp64 and, if it is an fp64 model, all else as well.

    transformers takes angles, norms, softmaxes and expert weights in fp32 whatever the model's dtype. The
    angles alone are worth 1e-4 at position 20000, and what rounds to fp32 either hides a difference of
    1e-15 or makes 1e-7 of it, so that no fp64 bound could hold without this.
    """
    whole = next(model.parameters()).dtype == torch.float64
    modules = {body_of(model), model} if whole else {decoder_of(model).rotary_emb}
    for module in modules:
        module.forward = _widened(module.forward, None if whole else torch.float32)
    try:
        yield
    finally:
        for module in modules:
            del module.forward


def _widened(forward: Any, back: torch.dtype | None) -> Any:
    """`forward` in fp64, its outputs rounded to `back`."""

    @wraps(forward)  # transformers reads the signature
    def wide(*args: Any, **kwargs: Any) -> Any:
        with _Wide():
            out = forward(*args, **kwargs)
        if back is None:
            return out
        tensors = out if isinstance(out, tuple) else (out,)
        rounded = tuple(x.to(torch.complex64 if x.is_complex() else back) for x in tensors)
        return rounded if isinstance(out, tuple) else rounded[0]

    return wide
