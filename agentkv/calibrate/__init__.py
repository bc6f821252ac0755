"""`agentkv calibrate`: what ops take and what they cost in KL, measured on one model and one machine."""

from agentkv.calibrate.prices import hardware, sizes, times

__all__ = ["hardware", "sizes", "times"]
