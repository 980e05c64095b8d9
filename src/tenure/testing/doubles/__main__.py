"""The service that keeps a log, as a process: `python -m tenure.testing.doubles --mode honours --log FILE`."""

from __future__ import annotations

from tenure.testing.doubles.service import main

main()
