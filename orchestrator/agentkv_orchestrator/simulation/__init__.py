"""Replaying traces through planner and store, without tensors: what is reused, and what it would cost."""
