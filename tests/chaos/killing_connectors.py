"""Connectors that send a signal to their own worker process between an INTENT and its call, or right after the call.

A file `before` or `after` in the folder plans a signal: its first word is the name of the signal, its second word the number of calls
that must reach this point first. The file `calls` records the outcome of each call.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import tenure
from tenure.govern.connector import ConnectorCall
from tenure.govern.connectors.http import HttpConnector
from tenure.sdk import Workflow
from tenure.testing.doubles.service import Mode
from tests.govern.act_service import REPEATS, local_service

FOLDER, SERVICE = "STRUCK_FOLDER", "STRUCK_{}"


class KillingConnector(HttpConnector):
    """A connector to a service double, named after the mode of the double."""

    def __init__(self, mode: Mode) -> None:
        lookup = "/effects/{key}" if mode == "found" else ""
        super().__init__(
            mode, local_service(os.environ[SERVICE.format(mode)]), repeats=REPEATS[mode], lookup=lookup
        )

    async def call(self, call: ConnectorCall) -> Any:
        """Send the request, with the planned signals before and after it."""
        await _send_planned_signal("before")
        try:
            result = await super().call(call)
        except Exception as fault:
            _note("calls", f"{self.name} {fault}")
            raise
        _note("calls", f"{self.name} answered")
        await _send_planned_signal("after")
        return result


def _note(name: str, text: str) -> None:
    with (Path(os.environ[FOLDER]) / name).open("ab", buffering=0) as file:
        file.write(text.encode() + b"\n")


async def _send_planned_signal(when: str) -> None:
    """Send the planned signal once enough calls are here. Earlier calls wait, so that none continues before the signal."""
    planned = Path(os.environ[FOLDER]) / when
    _note(f"{when}.seen", "here")
    if not planned.exists():
        return
    how, _, count = planned.read_text().partition(" ")
    if len(planned.with_suffix(".seen").read_text().splitlines()) >= int(count):
        planned.unlink()
        os.kill(os.getpid(), signal.Signals[how])
    while planned.exists():  # noqa: ASYNC110 - another call of this process removes the file
        await asyncio.sleep(0.01)


async def _three() -> list[int]:
    """Make one effect at each of the three services, concurrently."""

    async def one(mode: str) -> int:
        done = await tenure.act(f"{mode}.post", target={"url": "/effects"}, fields={"json": {"for": mode}})
        return int(done["json"]["no"])

    return await tenure.gather(*(one(mode) for mode in REPEATS))


async def _one() -> int:
    done = await tenure.act("neither.post", target={"url": "/effects"}, fields={"json": {}})
    return int(done["json"]["no"])


three = Workflow(_three, name="three", lease="3s")
one = Workflow(_one, name="one", lease="3s")
app = [three, one]
POLICY = "version: 1\nrules:\n" + "".join(
    f"  - {{name: {mode}, connector: {mode}, operation: post, allow: true}}\n" for mode in REPEATS
)
CONNECTORS = "connectors:\n" + "".join(
    f"  {mode}: {{kind: 'tests.chaos.killing_connectors:KillingConnector'}}\n" for mode in REPEATS
)
