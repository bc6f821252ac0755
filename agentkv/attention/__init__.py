"""Attention of new tokens over the live window, without repeated KV heads and without masks as large as it.

`interface` is what transformers calls; `runs` cuts a forward into pieces; `full` and `band` attend one piece,
to all rows or to the last few; both stand on `partial`.
"""

from agentkv.attention.interface import NAME, attention_function, seeing
from agentkv.attention.runs import Rule, Span, attend_runs
from agentkv.attention.watch import Watch, watched

__all__ = ["NAME", "Rule", "Span", "Watch", "attend_runs", "attention_function", "seeing", "watched"]
