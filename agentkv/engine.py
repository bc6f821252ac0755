"""One model with its store: windows are opened on it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import numpy as np
import torch
from agentkv_orchestrator.chunks import Chunk
from agentkv_orchestrator.cost import CostTable
from agentkv_orchestrator.policy import Policy
from agentkv_orchestrator.registry import Registry
from agentkv_orchestrator.residency import FrozenResidency
from agentkv_orchestrator.spans import Span

from agentkv.backends.base import Backend
from agentkv.backends.torch import TorchBackend
from agentkv.backends.triton import TritonBackend
from agentkv.config import EngineConfig
from agentkv.corrections import Corrections
from agentkv.errors import ClosedError, NothingStored
from agentkv.executor import Executor
from agentkv.forward import Runner
from agentkv.inputs import SINK_TOKENS, Ids, template_of
from agentkv.media import Media, Tokens
from agentkv.mending import Estimator
from agentkv.models import embedded, hf
from agentkv.patches import Budget, Recipe
from agentkv.saving import open_window
from agentkv.store.base import Origin, Store, residency
from agentkv.store.known import known_texts
from agentkv.store.memory import MemoryStore
from agentkv.store.price import price_by, told
from agentkv.store.shelf import Shelf
from agentkv.store.tenancy import of_tenant
from agentkv.vision import VisionAdapter, tower_of
from agentkv.window import Window

FEWEST_CHUNKS = 1 << 14
"""As many chunks are remembered at least, whether anything holds them or not."""


class Engine:
    """Holds a model, what was ever stored for it, and the windows over it. Threads may share one engine.

    Build it with `from_pretrained` or `from_model`. `close` (or a ``with`` block) closes its windows.
    """

    def __init__(
        self,
        loaded: hf.LoadedModel,
        config: EngineConfig,
        store: Store | None = None,
        costs: CostTable | None = None,
        vision: VisionAdapter | None = None,
        estimator: Estimator | None = None,
    ) -> None:
        self.loaded, self.config = loaded, config
        self.tokenizer, self.layout = loaded.tokenizer, loaded.layout
        self.template = template_of(self.tokenizer if config.chat_template else _Plain(self.tokenizer))
        self.lead = self._lead()
        store = store if store is not None else MemoryStore(config.store_bytes)
        self.store: Store = of_tenant(store, config.tenant, config.share_canonicals)
        self.calibration = (costs if costs is not None else CostTable.shipped()).at_rank(config.patch_rank)
        if config.evictor is not None:
            told(store).evict_by(config.evictor, price_by(self.calibration))
        self.corrections = Corrections(
            config.corrections, config.tenant, loaded.fingerprint, self.calibration.kl.digest
        )
        self.costs = self.calibration.corrected(self.corrections.current.factor)
        self.runner = Runner(loaded.model, self.layout.axes)
        self.tower = tower_of(loaded.model, loaded.processor, vision, self.runner.lock)
        self.vocabulary = loaded.model.get_input_embeddings().num_embeddings
        self.sink = self._sink()
        self.fingerprint = (
            f"{loaded.fingerprint}:{self.sink.tobytes().hex()}"  # a canonical depends on its sink as well
        )
        self.recipe = self._recipe()
        self.backend = self._backend(self.sink)
        self.chunks = Registry(self.fingerprint)
        self._sweep_at = FEWEST_CHUNKS
        self._met, self._meeting = False, threading.Lock()
        self._media: WeakValueDictionary[str, Media] = (
            WeakValueDictionary()
        )  # alive as long as a message has it
        self.shelf = Shelf(self.store, self.origin, self.fingerprint)
        self.tower.remembered = self._shown_before
        self.executor = Executor(self.backend, self.shelf, self.tokens, estimator)
        self.worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="agentkv")
        self._next, self._lock = 1, threading.Lock()
        self._windows: WeakSet[Window] = WeakSet()  # a fork that nobody holds is gone
        self._closed = False

    @classmethod
    def from_pretrained(
        cls,
        path_or_hub_id: str | Path | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: str = "cpu",
        store: Store | None = None,
        costs: CostTable | None = None,
        vision: VisionAdapter | None = None,
        estimator: Estimator | None = None,
        **settings: Any,
    ) -> Engine:
        """An engine over a local model directory, a hub id, or (None) the embedded SmolLM2-135M-Instruct.

        vision: an image encoder for a text-only model. estimator: of patches, for a cost table that knows
        what it leaves (`agentkv.mending`). settings: fields of `EngineConfig`. Raises
        ModelNotFound, UnsupportedModel, and pydantic's ValidationError for an unknown setting.
        """
        config = EngineConfig(**settings)
        path = embedded.ensure() if path_or_hub_id is None else path_or_hub_id
        return cls(hf.load(path, dtype=dtype, device=device), config, store, costs, vision, estimator)

    @classmethod
    def from_model(
        cls,
        model: torch.nn.Module,
        tokenizer: Any,
        *,
        processor: Any = None,
        store: Store | None = None,
        costs: CostTable | None = None,
        vision: VisionAdapter | None = None,
        estimator: Estimator | None = None,
        **settings: Any,
    ) -> Engine:
        """An engine over a transformers model that is loaded already. The model is used, never changed.

        processor: the model's own, for images. vision: an image encoder for a text-only model.
        """
        loaded = hf.wrap(model, tokenizer, processor=processor)
        return cls(loaded, EngineConfig(**settings), store, costs, vision, estimator)

    def window(self, policy: str | Policy = "balanced", max_tokens: int | None = None) -> Window:
        """An empty window. policy: exact | balanced | fast, or a Policy. max_tokens: its length at most
        (None: what the model was built for)."""
        window = self.bare_window(Policy.parse(policy), max_tokens)
        if len(self.lead):
            window.append_ids(self.lead, kind="start", pin=True)
        return window

    def bare_window(self, policy: Policy, max_tokens: int | None = None) -> Window:
        """A window without what must open every window of this model: for one that is filled otherwise."""
        if self._closed:
            raise ClosedError(got="a closed engine", expected="an open one", do="build a new Engine")
        limit = self.layout.max_positions if max_tokens is None else max_tokens
        return self.adopt(Window(self, policy, limit))

    def open(self, name: str) -> Window:
        """The window that `Window.save` put into this engine's store, in this process or another one. What
        the store has lost since is loaded or computed by the next commit.

        Raises NothingStored, FingerprintMismatch for a window of another model, BadStore.
        """
        return open_window(self, name)

    def media_of(self, chunk_id: str) -> Media | None:
        """The image that a chunk stands for, from a message or from the store; None for text, and for an
        image that nobody holds."""
        media, digest = self._media.get(chunk_id), self.chunks.modality(chunk_id)
        if media is None and digest:
            stored = self._shown_before(digest)
            if stored is not None:
                with self._lock:
                    media = self._media.setdefault(chunk_id, stored)
        return media

    def _shown_before(self, digest: bytes) -> Media | None:
        """What the store has of an image, where this model wants it."""
        media = self.shelf.media(digest)
        return None if media is None else media.to(self.loaded.device)

    def close(self) -> None:
        """Close every window and stop the worker. The store is the caller's."""
        for window in list(self._windows):
            window.close()
        self._closed = True
        self.worker.shutdown(wait=True)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def numbers(self, count: int) -> int:
        """The first of ``count`` consecutive numbers that no handle and no placement of this engine has
        had."""
        with self._lock:
            first, self._next = self._next, self._next + count
        return first

    def register(self, ids: Ids, kind: str, media: Media | None = None) -> Chunk:
        """The chunk of these ids under this engine's model; ids are compared when its digest is known
        already.

        media: what they stand for; of equal ones the first stays, as long as someone holds what `tokens`
        gives.
        """
        self._sweep()
        if media is None:
            return self.chunks.register(ids, kind)
        chunk = self.chunks.register(ids, kind, media.digest, media.span)
        with self._lock:
            self._media.setdefault(chunk.id, media)  # the first one may be held by others
        return chunk

    def admit(
        self, ids: Ids, kind: str, boundaries: Iterable[int] = (), sink: int | None = None
    ) -> list[tuple[Chunk, Span]]:
        """A text as chunks, those that are known wherever they stood; see `Registry.admit`."""
        self._meet()
        self._sweep()
        return self.chunks.admit(ids, kind, boundaries, sink)

    def _meet(self) -> None:
        """Register what the store held before this engine, once."""
        with self._meeting:
            if not self._met:
                most, knows = self.config.stored_texts, self.chunks.knows
                self.chunks.register_all(known_texts(self.store, self.fingerprint, most, knows))
                self._met = True

    def _sweep(self) -> None:
        """Forget chunks that no window and no store holds, each time their number has doubled."""
        if len(self.chunks) < self._sweep_at:
            return
        held = {key.chunk for key in self.store.keys("")}
        for window in list(self._windows):
            held |= window.holds()
        self.chunks.retain(held)
        self._sweep_at = max(FEWEST_CHUNKS, 2 * len(self.chunks))

    def tokens(self, chunk_id: str) -> Tokens:
        """What a chunk stands for. Raises ChunkError for an unknown id, NothingStored for an image that no
        message holds any more."""
        ids, media = self.chunks.ids(chunk_id), self.media_of(chunk_id)
        if media is None and self.chunks.modality(chunk_id):
            raise NothingStored(
                got=f"no features for the image {chunk_id[:8]}",
                expected="an image that a message of some window holds, or the store",
                do="append the image again",
            )
        return Tokens(ids, media)

    def origin(self, chunk_id: str) -> Origin:
        """What a chunk's KV is computed from. Raises ChunkError for an unknown id."""
        return Origin(self.chunks.ids(chunk_id), self.chunks.modality(chunk_id), self.fingerprint)

    def residency(self) -> FrozenResidency:
        """All that the store has for chunks of this engine: for idle work, as it lists the whole store."""
        self._meet()
        lengths = {key.chunk: self.chunks.length(key.chunk) for key in self.store.keys("")}
        return residency(
            self.store, {chunk: tokens for chunk, tokens in lengths.items() if tokens is not None}
        )

    def heard(self, predicted: float, measured: float) -> None:
        """An audit's result, in nats: later plans are priced by what it says of the bound. Raises
        BadCorrection."""
        found = self.corrections.heard(predicted, measured, self.calibration.kl.level)
        self.costs = self.calibration.corrected(found.factor)

    def adopt(self, window: Window) -> Window:
        """Keep track of a window, so that `close` closes it."""
        with self._lock:
            self._windows.add(window)
        return window

    def forget(self, window: Window) -> None:
        """The window was closed."""
        with self._lock:
            self._windows.discard(window)

    def _lead(self) -> Ids:
        """What must open every window of a model without a chat template (BOS); empty otherwise."""
        if getattr(self.tokenizer, "chat_template", None) and self.config.chat_template:
            return np.empty(0, dtype=np.int64)
        return np.asarray(self.tokenizer("")["input_ids"], dtype=np.int64)

    def _sink(self) -> Ids:
        text = self.config.sink_text
        if text is None:
            text = self.template.render(
                "You are a helpful AI assistant that works on long documents.", "system"
            )
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return np.concatenate([self.lead, np.asarray(ids, dtype=np.int64)])[:SINK_TOKENS]

    def _recipe(self) -> Recipe:
        config, name = self.config, self.config.patch_dtype
        if name == "auto":
            name = "model" if self.loaded.dtype == torch.float64 else "bfloat16"
        dtype = None if name == "model" else getattr(torch, name)
        return Recipe(Budget(rank=config.patch_rank), config.patch_scheme, config.patch_depth, dtype)

    def _backend(self, sink: Ids) -> Backend:
        device = next(self.loaded.model.parameters()).device
        name = self.config.backend
        if name == "auto":
            name = "triton" if device.type == "cuda" else "torch"
        kind = TritonBackend if name == "triton" else TorchBackend
        return kind(self.runner, self.layout, sink, self.recipe)


class _Plain:
    """A tokenizer seen without its chat template."""

    chat_template = None

    def __init__(self, tokenizer: Any) -> None:
        self.eos_token_id = tokenizer.eos_token_id
