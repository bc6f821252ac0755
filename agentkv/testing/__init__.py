"""For tests, ours and yours: an engine without a model, and what every store and every backend must do.

`recording_engine()` opens windows whose KV are token ids, so that a test sees in microseconds which token an
edit left in which row. To test a store or a backend of your own, subclass `StoreConformance` or
`BackendConformance` under a name that starts with ``Test``, build yours in `make`, and let pytest collect it.
`FaultyFiles` makes the disk fail at a step of your choice.
"""

from __future__ import annotations

from agentkv.backends.recording import RecordingBackend
from agentkv.testing.backends import BackendConformance
from agentkv.testing.blocks import kv_block, rows, same_bits
from agentkv.testing.engine import FakeTokenizer, RecordingEngine, recording_engine
from agentkv.testing.faults import Fault, FaultyFiles
from agentkv.testing.stores import StoreConformance

__all__ = [
    "BackendConformance",
    "FakeTokenizer",
    "Fault",
    "FaultyFiles",
    "RecordingBackend",
    "RecordingEngine",
    "StoreConformance",
    "kv_block",
    "recording_engine",
    "rows",
    "same_bits",
]
