"""What may be said of a run that is started, besides what it runs and with which input: one list for everybody who starts runs.

Law: `Options` says what there is; `Said` says the same to type checkers, for methods that take it as keywords.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, TypedDict

import msgspec

from tenure.clock import us
from tenure.embedded.plan import json_object
from tenure.kernel import commands as c
from tenure.money import amount


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """See above."""

    key: str | None = None
    """The same request under the same key is the same run."""
    labels: Mapping[str, str] | None = None
    metadata: Mapping[str, Any] | None = None
    priority: int = 0
    concurrency_key: str | None = None
    """Of the runs with one key, one is under way at a time."""
    supersede: bool = False
    """Cancel the older runs with that key instead of waiting for them."""
    not_before: datetime | None = None
    timeout: float | None = None
    """Seconds."""
    wall_clock: bool = False
    """The timeout goes on while people are asked."""
    trigger: c.Trigger | None = None
    source: str = "api"
    """Whose keys they are."""
    actor: str | None = None
    """Who starts it, where that is not whoever the engine acts for."""
    requester: str | None = None
    """Who asked for it, where that is not who starts it."""
    over_rate: Literal["refuse", "delay"] = "refuse"
    trace: str | None = None
    budget: str | None = None
    """What it may cost, such as `5 USD`, where that is not the workflow's."""

    def fields(self) -> dict[str, Any]:
        """As the command has them; of the timeout nothing where none was said."""
        made: dict[str, Any] = {
            "labels": json_object(self.labels) if self.labels else "{}",
            "metadata": json_object(self.metadata) if self.metadata else "{}",
            "priority": self.priority,
            "concurrency_key": self.concurrency_key,
            "concurrency_mode": "supersede" if self.supersede else "queue",
            "not_before": None if self.not_before is None else us(self.not_before.timestamp()),
            "wall_clock": self.wall_clock,
            "trigger": self.trigger or _TRIGGER,
            "source": self.source,
            "idempotency_key": self.key,
            "requester": self.requester,
            "over_rate": self.over_rate,
            "trace": self.trace,
        }
        if self.timeout is not None:
            made["timeout_seconds"] = self.timeout
        if self.budget is not None:
            made["budget"], made["currency"] = amount(self.budget)
        return made


_TRIGGER = c.Trigger()


class Said(TypedDict, total=False):
    """`Options` as keywords."""

    key: str | None
    labels: Mapping[str, str] | None
    metadata: Mapping[str, Any] | None
    priority: int
    concurrency_key: str | None
    supersede: bool
    not_before: datetime | None
    timeout: float | None
    wall_clock: bool
    trigger: c.Trigger | None
    source: str
    actor: str | None
    requester: str | None
    over_rate: Literal["refuse", "delay"]
    trace: str | None
    budget: str | None


assert set(Said.__annotations__) == set(Options.__struct_fields__)
