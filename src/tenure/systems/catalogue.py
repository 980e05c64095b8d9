"""The systems that `tenure up` can start.

Law: this module loads none of them. A system is a module with `PARTS`, the parts of its story, and
`async def play(stage)`, which starts the system and plays the story.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module

import msgspec

from tenure.errors import TenureError
from tenure.suggestions import did_you_mean, list_names
from tenure.systems.stage import Stage


class System(msgspec.Struct, frozen=True):
    parts: tuple[str, ...]
    play: Callable[[Stage], Awaitable[None]]


SUMMARIES: dict[str, str] = {
    "delta-ci": "Pushes to a repository are planned, run in a sandbox and reported to GitHub.",
    "agent-runs": "Agents whose status is published as files, and a page that follows them.",
    "git-with-intent": "An agent that changes a repository after an approval, and is undone.",
    "approval-runs": "Templates with gates: work, an approval, and more work.",
    "governed-runtime": "ServiceNow starts a run, Slack approves, and evidence proves what happened.",
}
"""What each system does, by name."""


def load_system(name: str) -> System:
    if name not in SUMMARIES:
        guess = did_you_mean(name, SUMMARIES) or f"; there are {list_names(SUMMARIES)}"
        raise TenureError("INVALID_INPUT", f"there is no system {name!r}{guess}")
    module = import_module(f"tenure.systems.{name.replace('-', '_')}")
    return System(module.PARTS, module.play)
