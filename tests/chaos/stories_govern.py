"""Stories of governed acts, the ledger, the store's time and requests under a key, for `planted_bugs.py`."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tenure.errors import TenureError
from tenure.testing.doubles import ServiceDouble
from tests.govern.acting import lab_of, orders

ONE_WRITE = """
version: 1
rules:
  - {name: first, connector: http, operation: post, when: run.writes < 1, allow: true}
"""


async def five_acts_under_one_write(folder: Path) -> None:
    """Five acts begin at the same time where the policy allows one write: the service hears of at most one."""
    with ServiceDouble() as service:
        async with lab_of(service, orders, policy=ONE_WRITE) as lab:
            run = await lab.start(orders, [1, 2, 3, 4, 5])
            with contextlib.suppress(TenureError):
                await run.result()
        assert len(service.effects) <= 1
