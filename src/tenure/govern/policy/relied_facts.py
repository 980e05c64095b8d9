"""The facts that a ruling relied on, so that the commit of the INTENT can compare them again.

Laws:
1. Only changeable facts count, and only those that a rule for the action uses (`facts.FACTS`).
2. A fact is recorded with the value that was read. Writes and seconds change constantly: for them the policy is also evaluated with the
   surrounding values, and the ruling holds for the range in which it is the same. At most one fact gets such a range, because
   combinations of two are not evaluated.
"""

from __future__ import annotations

from typing import Any, Protocol

from tenure.clock import SECOND_US
from tenure.govern.policy.facts import person_roles_and_groups, requester_person_id, time_facts
from tenure.kernel.act_commands import ReliedFacts, Ruling
from tenure.kernel.identity_rows import PersonRow

WRITES_AROUND = 16
"""How many values of `run.writes` on either side are evaluated: as many acts of a run can be intended at once."""
SECONDS_BEFORE, SECONDS_AFTER = 2, 20
"""How many seconds around `time.now` are evaluated."""
_UNITS = {"time.minute": 60, "time.hour": 3600, "time.date": 86_400, "time.weekday": 86_400}
"""How long each time fact stays the same, in seconds of UTC."""


class EvaluablePolicy(Protocol):
    def ruling(self, facts: dict[str, Any]) -> Ruling: ...

    def reads(self, facts: dict[str, Any]) -> frozenset[str]:
        """The changeable facts that the rules for an action use."""
        ...


def collect_relied_facts(
    policy: EvaluablePolicy,
    said: Ruling,
    facts: dict[str, Any],
    requester: str,
    person: PersonRow | None,
    now_us: int,
) -> ReliedFacts | None:
    """The facts that `said` relied on. `facts` are those of the evaluation, and `now_us` is the time when they were read."""
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
        name = requester_person_id(requester)
        who = None if name is None else (name, *person_roles_and_groups(person))
    return ReliedFacts(writes=writes, spent=spent, since=since, until=until, person=who)


def _range_of_writes(policy: EvaluablePolicy, said: Ruling, facts: dict[str, Any]) -> tuple[int, int]:
    def same(writes: int) -> bool:
        return writes >= 0 and policy.ruling({**facts, "run": {**facts["run"], "writes": writes}}) == said

    now = facts["run"]["writes"]
    low = high = now
    while high - now < WRITES_AROUND and same(high + 1):
        high += 1
    while now - low < WRITES_AROUND and same(low - 1):
        low -= 1
    return low, high


def _range_of_seconds(
    policy: EvaluablePolicy, said: Ruling, facts: dict[str, Any], now_us: int
) -> tuple[int, int]:
    def same(second: int) -> bool:
        return policy.ruling({**facts, "time": time_facts(second * SECOND_US)}) == said

    now = now_us // SECOND_US
    low = high = now
    while high - now < SECONDS_AFTER and same(high + 1):
        high += 1
    while now - low < SECONDS_BEFORE and same(low - 1):
        low -= 1
    return low * SECOND_US, (high + 1) * SECOND_US
