"""The facts that conditions use: the action, its run, the tenant, the requester of the run, and the time.

Laws:
1. The facts of a run are those of its creation, plus its costs and writes so far. Labels and metadata are not facts, because every client
   that may steer the run can change them. The run's input is a payload and not a fact.
2. The roles and groups of a person are the current ones: a removed role is gone from the next action on.
3. All facts are JSON. Times are RFC 3339 strings in UTC (`timestamp(time.now)` converts them for CEL).
4. Facts are read before the commit that relies on them. So each fact either cannot change, or that commit compares it again. `FACTS` says
   which, and a test fails if a fact is missing there.
5. A ruling records the changeable facts that a rule for the action uses, each with the value that was read. Writes and seconds change
   constantly: for them the policy is also evaluated with the surrounding values, and the ruling holds for the range in which it is the same.
   At most one fact gets such a range, because combinations of two are not evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import msgspec

from tenure import ids
from tenure.clock import SECOND_US
from tenure.expressions.expression import ExpressionReference
from tenure.kernel.act_commands import ReliedFacts, Ruling
from tenure.kernel.act_rows import RunSpendRow
from tenure.kernel.costs import DEFAULT_CURRENCY
from tenure.kernel.identity_rows import PersonRow
from tenure.kernel.run_rows import RunRow, RunSpecRow
from tenure.store.port import QueryReader

ROOTS = ("action", "run", "tenant", "person", "time")

_TEXT: dict[str, Any] = {"type": "string"}
_MAYBE: dict[str, Any] = {"type": ["string", "null"]}
_WHOLE: dict[str, Any] = {"type": "integer"}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


_TEXTS: dict[str, Any] = {"type": "array", "items": _TEXT}

ACTION: dict[str, dict[str, Any]] = {
    "connector": _TEXT,
    "operation": _TEXT,
    "tier": _TEXT,
    "key": _TEXT,
    "reverses": {"type": "boolean"},
}
"""Facts of an action, besides target and fields, which have the schemas of the operation."""

SCHEMAS: dict[str, dict[str, Any]] = {
    "run": _object(
        id=_TEXT,
        workflow=_TEXT,
        version=_TEXT,
        profile=_TEXT,
        workspace=_TEXT,
        repo=_MAYBE,
        trigger=_object(type=_TEXT, ref=_MAYBE),
        created_at=_TEXT,
        attempt=_WHOLE,
        writes=_WHOLE,
        spent=_WHOLE,
        budget={"type": ["integer", "null"]},
        currency=_TEXT,
    ),
    "tenant": _object(id=_TEXT),
    "person": _object(id=_TEXT, kind=_TEXT, roles=_TEXTS, groups=_TEXTS),
    "time": _object(now=_TEXT, date=_TEXT, hour=_WHOLE, minute=_WHOLE, weekday=_WHOLE),
}
"""JSON Schemas of the other roots."""

FIXED, CHECKED = "fixed", "checked"


class Fact(NamedTuple):
    """Why a fact still holds in the commit that records the INTENT (I58)."""

    how: str
    """FIXED: it never changes. CHECKED: the commit compares it with the ruling's `ReliedFacts`."""
    by: str
    """For FIXED: the fixed column, or the action's digest. For CHECKED: the field of `ReliedFacts`."""


FACTS: dict[str, Fact] = {
    "action.connector": Fact(FIXED, "digest"),
    "action.operation": Fact(FIXED, "digest"),
    "action.target": Fact(FIXED, "digest"),
    "action.fields": Fact(FIXED, "digest"),
    "action.tier": Fact(FIXED, "digest"),
    "action.key": Fact(FIXED, "digest"),
    "action.reverses": Fact(FIXED, "digest"),  # its key is `undo:RUN:RECEIPT`
    "run.id": Fact(FIXED, "digest"),
    "run.workflow": Fact(FIXED, "run.workflow"),
    "run.version": Fact(FIXED, "run.code_version"),
    "run.profile": Fact(FIXED, "run.profile"),
    "run.workspace": Fact(FIXED, "run.workspace"),
    "run.repo": Fact(FIXED, "run.repo"),
    "run.trigger": Fact(FIXED, "run_spec.trigger_type, run_spec.trigger_ref"),
    "run.created_at": Fact(FIXED, "run.created_at"),
    "run.attempt": Fact(FIXED, "run_spec.attempt_no"),
    "run.writes": Fact(CHECKED, "writes"),
    "run.spent": Fact(CHECKED, "spent"),
    "run.budget": Fact(FIXED, "run_spec.budget"),
    "run.currency": Fact(FIXED, "run_spec.currency"),
    "tenant.id": Fact(FIXED, "run.tenant"),
    "person.id": Fact(FIXED, "run_spec.requester"),
    "person.kind": Fact(FIXED, "run_spec.requester"),
    "person.roles": Fact(CHECKED, "person"),
    "person.groups": Fact(CHECKED, "person"),
    "time.now": Fact(CHECKED, "since, until"),
    "time.date": Fact(CHECKED, "since, until"),
    "time.hour": Fact(CHECKED, "since, until"),
    "time.minute": Fact(CHECKED, "since, until"),
    "time.weekday": Fact(CHECKED, "since, until"),
}


def checked_facts(references: Iterable[ExpressionReference]) -> frozenset[str]:
    """The changeable facts that these references use. A root that is used as a whole uses all its facts."""
    used = {f"{one.root}.{one.parts[0]}" if one.parts else one.root for one in references}
    return frozenset(
        name
        for name, fact in FACTS.items()
        if fact.how == CHECKED and (name in used or name.partition(".")[0] in used)
    )


def build_facts(
    *,
    run: RunRow,
    spec: RunSpecRow,
    run_spend: RunSpendRow | None,
    person: PersonRow | None,
    action: dict[str, Any],
    now_us: int,
) -> dict[str, Any]:
    """The facts of one proposed action. `person` is the row of the run's requester, if that is a person of the tenant."""
    return {
        "action": action,
        "run": run_facts(run, spec, run_spend),
        "tenant": {"id": run.tenant},
        "person": person_facts(spec.requester, person),
        "time": time_facts(now_us),
    }


def run_facts(run: RunRow, spec: RunSpecRow, run_spend: RunSpendRow | None) -> dict[str, Any]:
    return {
        "id": ids.run_text(run.id),
        "workflow": run.workflow,
        "version": run.code_version,
        "profile": run.profile,
        "workspace": run.workspace,
        "repo": run.repo,
        "trigger": {"type": spec.trigger_type, "ref": spec.trigger_ref},
        "created_at": time_facts(run.created_at)["now"],
        "attempt": spec.attempt_no,
        "writes": 0 if run_spend is None else run_spend.writes,
        "spent": 0 if run_spend is None else run_spend.spent,
        "budget": spec.budget,
        "currency": spec.currency or DEFAULT_CURRENCY,
    }


def requester_person_id(requester: str) -> str | None:
    """The id of the person who requested a run, or None if it was not a person of the tenant."""
    kind, found, name = requester.partition(":")
    return name if found and kind == "person" else None


async def find_requester(store: QueryReader, tenant: str, requester: str) -> PersonRow | None:
    named = requester_person_id(requester)
    rows: list[PersonRow] = [] if named is None else await store.read("person_named", tenant, named)
    return rows[0] if rows else None


def person_facts(requester: str, person: PersonRow | None) -> dict[str, Any]:
    """The facts of a requester: `person:ada`, `client:deploy`, or a name of an embedded engine. A closed account has no roles."""
    kind, found, name = requester.partition(":")
    if not found:
        kind, name = "local", requester
    roles, groups = person_roles_and_groups(person)
    return {
        "id": name,
        "kind": kind,
        "roles": msgspec.json.decode(roles),
        "groups": msgspec.json.decode(groups),
    }


def time_facts(now_us: int) -> dict[str, Any]:
    """The facts of a time, in UTC. Monday is day 1."""
    now = datetime.fromtimestamp(now_us // SECOND_US, UTC)
    return {
        "now": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "date": now.strftime("%Y-%m-%d"),
        "hour": now.hour,
        "minute": now.minute,
        "weekday": now.isoweekday(),
    }


def person_roles_and_groups(person: PersonRow | None) -> tuple[str, str]:
    """Roles and groups as they are stored, for the comparison in the commit; none for a closed or unknown person."""
    return ("[]", "[]") if person is None or person.closed_at is not None else (person.roles, person.groups)


# ---- The facts that a ruling relied on.

WRITES_AROUND = 16
"""How many values of `run.writes` on either side are evaluated: as many acts of a run can be intended at once."""
SECONDS_BEFORE, SECONDS_AFTER = 2, 20
"""How many seconds around `time.now` are evaluated."""
_UNITS = {"time.minute": 60, "time.hour": 3600, "time.date": 86_400, "time.weekday": 86_400}
"""How long each time fact stays the same, in seconds of UTC."""


class EvaluablePolicy(Protocol):
    def ruling(self, facts: dict[str, Any]) -> Ruling: ...

    def reads(self, facts: dict[str, Any]) -> frozenset[str]: ...


def collect_relied_facts(
    policy: EvaluablePolicy,
    ruling: Ruling,
    facts: dict[str, Any],
    requester: str,
    person: PersonRow | None,
    now_us: int,
) -> ReliedFacts | None:
    """The facts that `ruling` relied on. `facts` are those of the evaluation, and `now_us` is the time when they were read."""
    reads = policy.reads(facts)
    if not reads:
        return None
    writes = since = until = who = None
    seconds = "time.now" in reads
    if "run.writes" in reads:
        now = facts["run"]["writes"]
        writes = (now, now) if seconds else _range_of_writes(policy, ruling, facts)
    spent = facts["run"]["spent"] if "run.spent" in reads else None
    if seconds:
        since, until = _range_of_seconds(policy, ruling, facts, now_us)
    elif units := [_UNITS[name] * SECOND_US for name in reads if name in _UNITS]:
        since = now_us - now_us % min(units)
        until = since + min(units)
    if "person.roles" in reads or "person.groups" in reads:
        name = requester_person_id(requester)
        who = None if name is None else (name, *person_roles_and_groups(person))
    return ReliedFacts(writes=writes, spent=spent, since=since, until=until, person=who)


def _range_of_writes(policy: EvaluablePolicy, ruling: Ruling, facts: dict[str, Any]) -> tuple[int, int]:
    def same(writes: int) -> bool:
        return writes >= 0 and policy.ruling({**facts, "run": {**facts["run"], "writes": writes}}) == ruling

    return _range_around(facts["run"]["writes"], WRITES_AROUND, WRITES_AROUND, same)


def _range_of_seconds(
    policy: EvaluablePolicy, ruling: Ruling, facts: dict[str, Any], now_us: int
) -> tuple[int, int]:
    def same(second: int) -> bool:
        return policy.ruling({**facts, "time": time_facts(second * SECOND_US)}) == ruling

    low, high = _range_around(now_us // SECOND_US, SECONDS_BEFORE, SECONDS_AFTER, same)
    return low * SECOND_US, (high + 1) * SECOND_US


def _range_around(now: int, before: int, after: int, same: Callable[[int], bool]) -> tuple[int, int]:
    """The first and last number around `now` up to which `same` holds."""
    high = next((n for n in range(now, now + after) if not same(n + 1)), now + after)
    low = next((n for n in range(now, now - before, -1) if not same(n - 1)), now - before)
    return low, high
