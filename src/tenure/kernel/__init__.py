"""The pure kernel: it decides what may happen to a run. It has no I/O, no clock, no randomness and no async code."""
