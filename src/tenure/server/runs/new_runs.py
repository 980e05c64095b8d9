"""New runs as they are asked for over HTTP, and what is answered.

Laws:
1. What a trigger says that Tenure has no column for lies in the run's metadata, under the names in which the document of
   git-with-intent shows it.
2. The requester is whoever the caller answers to: a client's owner, so that nobody approves what their program asked for. Whoever
   has made or changed the credential, and nobody has confirmed that, stands behind the run too.
3. With a key, answer and run are one commit; the answer is what the record has, first and ever after.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from tenure import durations, ids, money
from tenure.clock import us
from tenure.embedded import Engine
from tenure.errors import Detail, TenureError
from tenure.kernel import commands as c
from tenure.kernel import profiles
from tenure.kernel.decide.keyed import expired
from tenure.kernel.model import Idempotency, Run, RunSpec
from tenure.limits import KEY_CHARS_MAX, NAME_CHARS_MAX
from tenure.orchestrator.step_views import moment
from tenure.server.identity.principals import Principal
from tenure.server.runs.idempotency import Answer, Request, replayed
from tenure.server.runs.starting import Prepared, Start, make, prepare

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]
_TRIGGER_AS = {"pr_id": "prId", "pr_url": "prUrl", "correlation_id": "a2aCorrelationId", "commit": "commit"}


class NewTrigger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What set the run off."""

    type: Literal["ui", "cli", "webhook", "scheduled", "api"] = "api"
    ref: str | None = None
    repo: str | None = None
    pr_id: str | int | None = None
    pr_url: str | None = None
    commit: str | None = None
    correlation_id: str | None = None


class NewRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run that is asked for."""

    workflow: Name
    version: Name | None = None
    """The newest that is registered, where none is named."""
    input: dict[str, Any] = {}
    labels: dict[str, str] = {}
    metadata: dict[str, Any] = {}
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)] = 0
    profile: Name | None = None
    workspace: Name = "default"
    trigger: NewTrigger = NewTrigger()
    concurrency_key: Annotated[str, msgspec.Meta(min_length=1, max_length=KEY_CHARS_MAX)] | None = None
    """Of the runs with one key, one is under way at a time."""
    supersede: bool = False
    """Cancel the older runs with that key instead of waiting for them."""
    not_before: datetime | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0)] | str | None = None
    """Seconds, or a text like `5m`."""
    budget: Annotated[str, msgspec.Meta(pattern=f"^{money.PATTERN}$")] | None = None
    """What it may cost, like `5 USD`; it ends BUDGET_EXCEEDED when it has spent more."""


class RunCreated(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was made."""

    id: str
    workflow: str
    version: str
    profile: str
    workspace: str
    status: str
    shown: str
    """What its profile calls that."""
    created_at: datetime


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, and for which request."""

    who: Principal
    request_id: str

    def context(self) -> c.Context:
        """Whose doing it is, in histories."""
        return c.Context(self.who.actor, "user", f"req:{self.request_id}"[:KEY_CHARS_MAX])

    @property
    def requester(self) -> str | None:
        """See law 2; None: the caller."""
        return None if self.who.owner is None else self.who.requester


def start_of(new: NewRun, asking: Asking, wanted: Request | None) -> Start:
    """What is to be started."""
    told, metadata = new.trigger, new.metadata
    if told is not _NO_TRIGGER:
        said = {
            name: value for field, name in _TRIGGER_AS.items() if (value := getattr(told, field)) is not None
        }
        metadata = {**metadata, **said} if said else metadata
    moment_ = new.not_before
    if moment_ is not None and moment_.tzinfo is None:
        raise wrong("not_before", "a moment has its offset, like 2026-02-14T08:00:00Z")
    return Start(
        workflow=new.workflow,
        version=new.version,
        input=new.input,
        labels=new.labels,
        metadata=metadata,
        priority=new.priority,
        profile=new.profile,
        trigger=c.Trigger(told.type, told.ref, told.repo),
        concurrency_key=new.concurrency_key,
        supersede=new.supersede,
        not_before=moment_,
        timeout=None if new.timeout is None else _seconds(new.timeout),
        budget=new.budget,
        context=asking.context(),
        requester=asking.requester,
        behind=asking.who.unconfirmed,
        key=None if wanted is None else wanted.name,
        request_hash=b"" if wanted is None else wanted.hash,
    )


def _seconds(timeout: float | str) -> float:
    try:
        return durations.seconds(timeout)
    except TenureError as refused:
        raise wrong("timeout", refused.message) from refused


def wrong(path: str, said: str) -> TenureError:
    """Something in a body is not as it must be."""
    return TenureError("INVALID_INPUT", f"{path}: {said}", (Detail(path, said),))


_NO_TRIGGER = NewTrigger()

Shown = Callable[[RunCreated], RunCreated]


async def create(
    engine: Engine, new: NewRun, asking: Asking, wanted: Request | None, shown: Shown | None = None
) -> Answer:
    """Make a run, or repeat what was answered when it was made; 201 either way."""
    ready = await prepared(engine, new, asking, wanted)
    return ready if isinstance(ready, Answer) else await made(engine, ready, wanted, shown)


async def prepared(engine: Engine, new: NewRun, asking: Asking, wanted: Request | None) -> Prepared | Answer:
    """A run that could be made. What was asked for before and could not be asked for now (its workflow takes other inputs
    since) is answered as it was then."""
    try:
        return await prepare(engine, start_of(new, asking, wanted))
    except TenureError:
        again = None if wanted is None else await _answered(engine, wanted)
        if again is None:
            raise
        return again


async def _answered(engine: Engine, wanted: Request) -> Answer | None:
    """What a key was used for, if it was."""
    store = engine.store
    now: int = (await store.read("now"))[0].now_us
    # The run first: it and its record are one commit, which may happen between the two looks.
    specs: list[RunSpec] = await store.read("find_keys", rows=[wanted.key])
    records: list[Idempotency] = await store.read("key_record", *wanted.key)
    if records and records[0].expires_at > now:
        return replayed(records[0], wanted.hash)
    if specs:
        raise expired(specs[0].run_id, "was made long ago")
    return None


async def made(engine: Engine, ready: Prepared, wanted: Request | None, shown: Shown | None = None) -> Answer:
    """The same of a run that is prepared."""
    command = ready.command
    if wanted is None:
        created = await make(engine, ready)
        return answer_of(command, created.run_id, created.status, created.at, shown)
    asked = wanted

    def record(run: Run) -> Idempotency:
        at = run.created_at
        answer = answer_of(command, run.id, run.status, at, shown)
        return Idempotency(
            *asked.key,
            run.id,
            "completed",
            asked.hash,
            answer.stores(),
            None,
            at,
            at,
            at + us(asked.done_seconds),
            None,
        )

    created = await make(engine, ready, record)
    assert created.record is not None
    return msgspec.structs.replace(Answer.stored(created.record), replayed=created.again)


def answer_of(command: c.CreateRun, run_id: int, status: str, at: int, shown: Shown | None = None) -> Answer:
    """What is answered where a run was made."""
    text = ids.run_text(run_id)
    body = RunCreated(
        id=text,
        workflow=command.workflow,
        version=command.code_version,
        profile=command.profile,
        workspace=command.workspace,
        status=status,
        shown=profiles.get(command.profile).word("run", status),
        created_at=moment(at),
    )
    if shown is not None:
        body = shown(body)
    return Answer.of(body, 201, location=f"/runs/{text}", run_id=run_id)
