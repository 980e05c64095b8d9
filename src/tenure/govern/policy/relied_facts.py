"""What a ruling relied on, so that the commit of the INTENT can compare it again.

Laws:
1. Only facts that can change count, and only those that a rule about the action reads (`facts.FACTS`).
2. A fact of which every other value could change the ruling is kept as it was read. Writes and seconds change all the time: for
   them the policy is asked about the values around, and the ruling counts for as far as it says the same. Of several facts at
   most one gets such a range, because no combination of two was asked about.
"""

from __future__ import annotations

from typing import Any, Protocol

from tenure.clock import SECOND_US
from tenure.govern.policy.facts import person_kept, person_of, time_facts
from tenure.kernel.actions import Relied, Ruling
from tenure.kernel.service import Person

WRITES_AROUND = 16
"""So many values of `run.writes` to either side are asked about: as many acts of a run can be intended at once."""
SECONDS_BEFORE, SECONDS_AFTER = 2, 20
"""So many seconds around `time.now`."""
_UNITS = {"time.minute": 60, "time.hour": 3600, "time.date": 86_400, "time.weekday": 86_400}
"""How long each fact of the time stays the same, in seconds of UTC."""


class Asked(Protocol):
    """A policy that can be asked."""

    def ruling(self, facts: dict[str, Any]) -> Ruling:
        """What it says of `facts`."""
        ...

    def reads(self, facts: dict[str, Any]) -> frozenset[str]:
        """Which facts that can change the rules about an action read."""
        ...


def relied_facts(
    policy: Asked, said: Ruling, facts: dict[str, Any], requester: str, person: Person | None, now_us: int
) -> Relied | None:
    """What `said` relied on. `facts` are those that the policy was asked with, `now_us` the moment they were read."""
    reads = policy.reads(facts)
    if not reads:
        return None
    writes = since = until = spent = who = None
    seconds = "time.now" in reads
    if "run.writes" in reads:
        now = facts["run"]["writes"]
        writes = (now, now) if seconds else _range_of_writes(policy, said, facts)
    if "run.spent" in reads:
        spent = facts["run"]["spent"]
    if seconds:
        since, until = _range_of_seconds(policy, said, facts, now_us)
    elif units := [_UNITS[name] * SECOND_US for name in reads if name in _UNITS]:
        since = now_us - now_us % min(units)
        until = since + min(units)
    if "person.roles" in reads or "person.groups" in reads:
        name = person_of(requester)
        who = None if name is None else (name, *person_kept(person))
    return Relied(writes=writes, spent=spent, since=since, until=until, person=who)


def _range_of_writes(policy: Asked, said: Ruling, facts: dict[str, Any]) -> tuple[int, int]:
    def same(writes: int) -> bool:
        return writes >= 0 and policy.ruling({**facts, "run": {**facts["run"], "writes": writes}}) == said

    now = facts["run"]["writes"]
    low = high = now
    while high - now < WRITES_AROUND and same(high + 1):
        high += 1
    while now - low < WRITES_AROUND and same(low - 1):
        low -= 1
    return low, high


def _range_of_seconds(policy: Asked, said: Ruling, facts: dict[str, Any], now_us: int) -> tuple[int, int]:
    def same(second: int) -> bool:
        return policy.ruling({**facts, "time": time_facts(second * SECOND_US)}) == said

    now = now_us // SECOND_US
    low = high = now
    while high - now < SECONDS_AFTER and same(high + 1):
        high += 1
    while now - low < SECONDS_BEFORE and same(low - 1):
        low -= 1
    return low * SECOND_US, (high + 1) * SECOND_US
