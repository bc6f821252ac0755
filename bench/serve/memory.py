"""Peak resident memory of answering over a long window, each arm in a process of its own.

The peak is counted from when the model is loaded: loading it takes more than an answer, and would hide both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from agentkv.calibrate import hardware

_ARM = """
import json, sys
import numpy as np, torch
torch.set_num_threads({threads})
from agentkv import Engine
engine = Engine.from_pretrained()
open("/proc/self/clear_refs", "w").write("5")  # VmHWM starts anew
ids = np.random.default_rng(0).integers(3, 49000, {size})
if sys.argv[1] == "agentkv":
    window = engine.window(policy="balanced")
    window.append_ids(ids, kind="document")
    window.generate(max_new_tokens={decoded}, stop=False)
else:
    engine.loaded.model.generate(torch.as_tensor(ids)[None], max_new_tokens={decoded}, do_sample=False,
    pad_token_id=0)
(peak,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps(int(peak) * 1024))
"""


def measure(size: int, threads: int, decoded: int = 32) -> list[dict[str, Any]]:
    """One row: peak bytes of agentkv and of transformers' generate for the same prompt and answer length."""
    script = _ARM.format(size=size, threads=threads, decoded=decoded)
    peaks = {}
    for arm in ("agentkv", "transformers"):
        out = subprocess.run([sys.executable, "-c", script, arm], capture_output=True, text=True, check=True)
        peaks[arm] = int(json.loads(out.stdout.strip().splitlines()[-1]))
    return [
        {
            "op": "peak_memory_vs_transformers_generate",
            "window": size,
            "threads": threads,
            "bytes": peaks["agentkv"],
            "other_bytes": peaks["transformers"],
            "ratio": round(peaks["agentkv"] / peaks["transformers"], 3),
            "correct": min(peaks.values()) > 500 << 20,  # both held the 538 MB model
            "hardware": hardware(),
        }
    ]
