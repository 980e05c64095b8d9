"""The pure kernel: what may happen to a run, and nothing else. No I/O, clock, chance or async in here."""
