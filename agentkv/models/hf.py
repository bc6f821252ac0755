"""Load a transformers model that generates text, refuse what cannot be moved, and say which model it is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from agentkv_orchestrator.identity import hasher
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    ProcessorMixin,
)
from transformers.utils import cached_file

from agentkv.errors import InvalidInput, ModelNotFound, UnsupportedModel
from agentkv.layout import Layout
from agentkv.models.families import family_of
from agentkv.models.layouts import judge, layout_of, rope_tables

FINGERPRINT_VERSION = 3
_SAMPLES = 256  # values hashed per parameter: a 135M model takes ~0.1 s, a changed layer cannot hide
# Where a model lies and how it is run say nothing about the KV it computes.
_VOLATILE = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "architectures"}
_USE_EMBEDDED = "pass agentkv.models.embedded.ensure() for the embedded model"


_ADAPTER_STATE = ("active_adapters", "scaling", "merged_adapters", "disable_adapters")
_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model that generates text, in eval mode, with what agentkv knows about it.

    tokenizer: None when the caller brought none. fingerprint: 40 hex digits. name: for people. processor:
    what turns images into pixels and placeholders; None for a text model, and where no processor lies
    beside the weights (text alone runs then).
    """

    model: Any
    tokenizer: Any
    layout: Layout
    fingerprint: str
    name: str
    processor: Any = None

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype


def load(
    source: str | Path, dtype: torch.dtype | None = None, device: str | torch.device = "cpu"
) -> LoadedModel:
    """Load model, tokenizer and processor from a local directory or a hub id, in eval mode.

    dtype: None takes fp32 on a CPU (bf16 is 2-3 times slower there) and the checkpoint's own elsewhere.
    The config is judged before any weight is read. Raises ModelNotFound when nothing usable lies
    there, UnsupportedModel when the cache cannot be moved.
    """
    device = torch.device(device)
    path = _locate(source)
    config = _config(path)
    judge(config)
    sees = family_of(config).loads == "image-text"
    kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    wanted = dtype or (torch.float32 if device.type == "cpu" else "auto")
    try:
        model, info = kind.from_pretrained(path, config=config, dtype=wanted, output_loading_info=True)
        tokenizer = AutoTokenizer.from_pretrained(path)
        processor = _processor(path) if sees else None
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        raise _not_found(path, f"that could not be read ({_first_line(error)})") from error
    if info["missing_keys"]:  # transformers would go on with random weights
        names = sorted(info["missing_keys"])
        raise _not_found(path, f"that lacks {len(names)} weights, among them {names[0]}")
    name = Path(path).name if Path(path).is_dir() else path
    return wrap(model.to(device), tokenizer, name, processor)


def wrap(model: Any, tokenizer: Any = None, name: str | None = None, processor: Any = None) -> LoadedModel:
    """Take a model that the caller built, with its tokenizer and, for images, its processor.

    The model is not changed: it must already be in eval mode and on one device, and whether its
    parameters require gradients stays the caller's choice. Raises InvalidInput otherwise, and
    UnsupportedModel when the cache cannot be moved.
    """
    if model.training:
        raise InvalidInput(got="a model in training mode", expected="eval mode", do="call model.eval() first")
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) != 1 or devices == ["meta"]:
        raise InvalidInput(
            got=f"parameters on {', '.join(devices)}",
            expected="all parameters on one device",
            do="load the model without device_map, then model.to(device)",
        )
    layout = layout_of(model)
    name = name or getattr(model.config, "_name_or_path", "") or model.config.model_type
    return LoadedModel(model, tokenizer, layout, fingerprint(model, tokenizer, processor), name, processor)


def fingerprint(model: Any, tokenizer: Any = None, processor: Any = None) -> str:
    """Which model computes this KV: 40 hex digits.

    Covers the config, the name, shape, dtype and 256 strided values of each weight (and of each buffer that
    is saved with them), adapters and which of them are on, the rotary tables, the tokenizer and the
    processor's settings. The same weights at another path have the same fingerprint; in another dtype they do
    not.
    """
    digest = hasher(b"agentkv model")

    def field(tag: str, value: bytes) -> None:
        digest.update(f"{tag}:{len(value)}:".encode())  # the length keeps fields from running together
        digest.update(value)

    field("version", str(FINGERPRINT_VERSION).encode())
    field("config", _canonical(_stable(model.config.to_dict())))
    for name, weight in sorted(model.state_dict().items()):
        field("weight", f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        field("values", _sample(weight))
    field("adapters", _canonical(_adapters(model)))
    for name, table in sorted(rope_tables(model).items()):
        field(f"rope {name}", table.numpy().tobytes())
    field("tokenizer", _tokenizer_bytes(tokenizer))
    field("processor", _canonical(processor.to_dict()) if processor is not None else b"")
    return digest.hexdigest()


def _adapters(model: Any) -> dict[str, Any]:
    """Settings of LoRA and its like, which the weights do not tell (a scale, which of several is on), as peft
    keeps them on the model and on each layer."""
    configs = getattr(model, "peft_config", None) or {}
    found: dict[str, Any] = {
        name: config.to_dict() if hasattr(config, "to_dict") else config for name, config in configs.items()
    }
    layers = {
        name: [str(getattr(layer, what, None)) for what in _ADAPTER_STATE]
        for name, layer in model.named_modules()
        if hasattr(layer, "merged_adapters")
    }
    return {"configs": found, "layers": layers} if configs or layers else {}


def _processor(path: str) -> Any:
    """None where no processor lies beside the weights, or a package that it needs is missing (torchvision for
    videos): text runs all the same, and whoever appends an image is told."""
    files = (
        cached_file(path, name, _raise_exceptions_for_missing_entries=False) for name in _PROCESSOR_FILES
    )
    if not any(files):
        return None
    try:
        found = AutoProcessor.from_pretrained(path)
    except ImportError:
        return None
    return found if isinstance(found, ProcessorMixin) else None  # transformers gives a tokenizer otherwise


def _sample(weight: Tensor) -> bytes:
    flat = weight.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLES)].contiguous().cpu().view(torch.uint8).numpy().tobytes()


def _tokenizer_bytes(tokenizer: Any) -> bytes:
    if tokenizer is None:
        return b""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return _canonical(tokenizer.get_vocab())
    state = json.loads(backend.to_str())
    # Both are switched by ordinary calls such as tokenizer(..., padding=True).
    return _canonical({key: value for key, value in state.items() if key not in ("padding", "truncation")})


def _stable(config: dict[str, Any]) -> dict[str, Any]:
    """A config, and those inside it, without what is volatile."""
    kept = {key: value for key, value in config.items() if key not in _VOLATILE}
    return {key: _stable(value) if isinstance(value, dict) else value for key, value in kept.items()}


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=_described).encode()


def _described(value: Any) -> Any:
    """What JSON has no form for, by its settings and never by its address, which is another one tomorrow."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if type(value).__repr__ is not object.__repr__:
        return str(value)
    plain = str | int | float | bool | list | tuple | dict | None
    settings = {name: x for name, x in vars(value).items() if isinstance(x, plain)}
    return {"class": f"{type(value).__module__}.{type(value).__qualname__}", **settings}


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _not_found(path: str, what: str, do: str = "") -> ModelNotFound:
    return ModelNotFound(
        got=f"{path!r} {what}",
        expected="a directory written by save_pretrained (model and tokenizer) or a reachable hub id",
        do=do or f"check the spelling, download the model again, or {_USE_EMBEDDED}",
    )


def _locate(source: str | Path) -> str:
    path = Path(source).expanduser()
    looks_local = isinstance(source, Path) or str(source).startswith(("/", "./", "../", "~"))
    if path.is_file():
        raise _not_found(str(source), "which is a file", do="pass the directory that holds config.json")
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise _not_found(str(source), "a directory without config.json")
        return str(path)
    if looks_local:
        raise _not_found(str(source), "which does not exist")
    return str(source)


def _config(path: str) -> Any:
    try:
        return AutoConfig.from_pretrained(path)
    except OSError as error:
        why = f"that could not be fetched ({_first_line(error)})"
        raise _not_found(path, why, do=f"go online, give a local directory, or {_USE_EMBEDDED}") from error
    except (ValueError, KeyError, StrictDataclassError) as error:
        raise UnsupportedModel(
            got=f"{path!r} whose config transformers does not accept ({_first_line(error)})",
            expected="a consistent config.json with a known model_type",
            do="upgrade transformers, or load another model",
        ) from error
