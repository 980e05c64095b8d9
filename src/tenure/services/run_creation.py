"""Starting a run, for requests, programs and hooks.

Laws:
1. `StartRun` is the request: the API decodes it, other callers build it. `RunCaller` is what the body of a request cannot contain: the
   requester and the idempotency key.
2. The workflow, its version and its input are checked before the run is created. If nobody has confirmed the registration of the
   version, the person who registered it is involved in the run.
3. The requester of an API call is the person who owns the credential, so that nobody approves what their own program requested.
4. With a key, the run and the record of its response are one commit. The same request always gets the recorded response.
5. The fields of a trigger besides its ref and repository are stored in the run's metadata, under the names of the git-with-intent document.
6. A large input is stored as an artifact. The hash of a request covers the input, not where it is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal, TypedDict

import msgspec

from tenure import durations, ids
from tenure.clock import us
from tenure.errors import TenureError, field_error
from tenure.kernel import commands as c
from tenure.kernel.decide.creation import CreatedRun
from tenure.kernel.decide.idempotency import key_expired_error
from tenure.kernel.new_run import build_create_run
from tenure.kernel.run_rows import IdempotencyRow, RunRow, RunSpecRow
from tenure.kernel.run_terms import NO_TERMS, RunTerms
from tenure.kernel.separation_of_duties import join_people
from tenure.limits import KEY_CHARS_MAX
from tenure.money import parse_amount
from tenure.orchestrator.batch import KeyRecorder
from tenure.reads.created_runs import show_created
from tenure.services.idempotency import HeldRecord, KeyedRequest, StoredResponse, replay_response
from tenure.services.identity.principals import Principal
from tenure.services.plans import encode_json_object
from tenure.services.scope import Scope
from tenure.shapes.hooks import HookTrigger
from tenure.shapes.reports import VcsTarget
from tenure.shapes.runs import API_TRIGGER, RunCreated, RunTrigger, StartRun
from tenure.work_pool import run_in_pool

_METADATA_NAMES = {
    "pr_id": "prId",
    "pr_url": "prUrl",
    "correlation_id": "a2aCorrelationId",
    "commit": "commit",
}
_KERNEL_TRIGGER = c.Trigger()


class RunCaller(msgspec.Struct, frozen=True, kw_only=True):
    """Who starts a run, and the options that only trusted code may set."""

    context: c.Context
    requester: str | None = None
    """The requester of the run, if that is not the actor."""
    involved: str = ""
    """Other involved people, as `id id`."""
    key: str | None = None
    source: str = "api"
    """The namespace of the key."""
    request_hash: bytes = b""
    """Requests with the same key and hash are the same request."""
    over_rate: Literal["refuse", "delay"] = "refuse"
    trace: str | None = None
    wall_clock: bool = False
    """The timeout includes the time of waiting for people."""
    vcs_target: VcsTarget | None = None
    """The commit whose checks show the run."""


class StartOptionsDict(TypedDict, total=False):
    """The options of `Engine.submit` and `Engine.create`, as keywords: fields of `StartRun` and `RunCaller`."""

    key: str | None
    labels: Mapping[str, str] | None
    metadata: Mapping[str, Any] | None
    priority: int
    concurrency_key: str | None
    supersede: bool
    not_before: datetime | None
    timeout: float | None
    wall_clock: bool
    trigger: RunTrigger | None
    source: str
    actor: str | None
    """The actor who starts the run, if that is not the engine's actor."""
    requester: str | None
    over_rate: Literal["refuse", "delay"]
    trace: str | None
    budget: str | None
    vcs_target: VcsTarget | None


_OPTIONS = frozenset(StartOptionsDict.__annotations__)
_CALLER_OPTIONS = _OPTIONS & frozenset(RunCaller.__struct_fields__)
assert _OPTIONS - _CALLER_OPTIONS - {"actor"} <= frozenset(StartRun.__struct_fields__)


def read_options(
    scope: Scope, workflow: str, options: StartOptionsDict, **fields: Any
) -> tuple[StartRun, RunCaller]:
    """A request and its caller from keywords. None selects the default."""
    if unknown := options.keys() - _OPTIONS:
        raise TypeError(f"unknown option {min(unknown)!r}")
    given = {name: value for name, value in (*options.items(), *fields.items()) if value is not None}
    context = scope.context(given.pop("actor", None))
    caller = {name: given.pop(name) for name in _CALLER_OPTIONS & given.keys()}
    return StartRun(workflow=workflow, **given), RunCaller(context=context, **caller)


def api_caller(who: Principal, request_id: str, keyed: KeyedRequest | None = None) -> RunCaller:
    """The caller of a request to the API (law 3)."""
    return RunCaller(
        context=c.Context(who.actor, "user", f"req:{request_id}"[:KEY_CHARS_MAX]),
        requester=None if who.owner is None else who.requester,
        involved=who.unconfirmed,
        key=None if keyed is None else keyed.name,
        request_hash=b"" if keyed is None else keyed.hash,
    )


def build_command(
    scope: Scope,
    asked: StartRun,
    caller: RunCaller,
    *,
    version: str,
    profile: str,
    plan: tuple[c.StepSpec, ...],
    body: bytes | None,
    timeout_seconds: float | None = None,
    terms: RunTerms = NO_TERMS,
    unconfirmed: str = "",
    run_id: int | None = None,
    eager: c.Claimant | None = None,
) -> c.CreateRun:
    """The command that creates the requested run. The keywords come from its workflow; `body` is the encoded input."""
    trigger, metadata = asked.trigger, asked.metadata
    if trigger is not API_TRIGGER:
        metadata = {**metadata, **trigger_metadata(trigger)}
    budget, currency = (None, "") if asked.budget is None else parse_amount(asked.budget)
    request = c.RunRequest(
        context=caller.context,
        workflow=asked.workflow,
        code_version=version,
        profile=asked.profile or profile,
        plan=plan,
        input=body,
        trigger=_KERNEL_TRIGGER
        if trigger is API_TRIGGER
        else c.Trigger(trigger.type, trigger.ref, trigger.repo),
        source=caller.source,
        idempotency_key=caller.key,
        request_hash=caller.request_hash,
        priority=asked.priority,
        concurrency_key=asked.concurrency_key,
        concurrency_mode="supersede" if asked.supersede else "queue",
        not_before=None if asked.not_before is None else _microseconds(asked.not_before),
        timeout_seconds=None if asked.timeout is None else _seconds(asked.timeout),
        wall_clock=caller.wall_clock,
        labels=encode_json_object(asked.labels) if asked.labels else "{}",
        metadata=encode_json_object(metadata) if metadata else "{}",
        trace=caller.trace,
        over_rate=caller.over_rate,
        requester=caller.requester,
        involved=join_people(caller.involved, unconfirmed) if unconfirmed else caller.involved,
        budget=budget,
        currency=currency,
        vcs_target=None if caller.vcs_target is None else encode_target(caller.vcs_target),
    )
    return build_create_run(
        request,
        run_id=scope.orchestrator.new_id(scope.tenant) if run_id is None else run_id,
        tenant=scope.tenant,
        workspace=scope.workspace,
        timeout_seconds=timeout_seconds,
        terms=terms,
        eager=eager,
    )


def encode_target(target: VcsTarget) -> str:
    """A target as it is stored with its run."""
    text = msgspec.json.encode(target, order="sorted").decode()
    try:
        msgspec.json.decode(text, type=VcsTarget)  # programs build it without a check
    except msgspec.ValidationError as fault:
        raise field_error("vcs_target", str(fault)) from fault
    return text


def trigger_metadata(trigger: RunTrigger | HookTrigger) -> dict[str, Any]:
    """The fields of a trigger that are stored in the run's metadata (law 5)."""
    found = {name: getattr(trigger, field) for field, name in _METADATA_NAMES.items()}
    return {name: value for name, value in found.items() if value is not None}


def _seconds(timeout: float | str) -> float:
    try:
        return durations.parse_duration(timeout)
    except TenureError as refused:
        raise field_error("timeout", refused.message) from refused


def _microseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise field_error("not_before", "a time needs an offset, such as 2026-02-14T08:00:00Z")
    return us(moment.timestamp())


async def _prepare(scope: Scope, asked: StartRun, caller: RunCaller) -> c.CreateRun:
    """The checked command for a run of a registered workflow (law 2)."""
    known = await scope.runtime.catalog.find(scope.tenant, asked.workflow, asked.version)
    plan, body = await run_in_pool(known.begin, asked.input) if known.is_large else known.begin(asked.input)
    return build_command(
        scope,
        asked,
        caller,
        version=known.version,
        profile=known.profile,
        plan=plan,
        body=body,
        timeout_seconds=known.timeout_seconds,
        terms=known.terms,
        unconfirmed=known.unconfirmed,
    )


async def _create(scope: Scope, command: c.CreateRun, record: KeyRecorder | None = None) -> CreatedRun:
    stored = await scope.store_payload(command.input, ids.run_text(command.run_id))
    if stored is not command.input:
        command = msgspec.structs.replace(command, input=stored)
    return await scope.orchestrator.create(command, record)


async def start(scope: Scope, asked: StartRun, caller: RunCaller) -> str:
    """Start a run of a registered workflow. Returns its id."""
    return ids.run_text((await _create(scope, await _prepare(scope, asked, caller))).run_id)


ShowCreated = Callable[[RunCreated], RunCreated]


async def start_with_answer(
    scope: Scope,
    asked: StartRun,
    caller: RunCaller,
    keyed: KeyedRequest | None = None,
    show: ShowCreated | None = None,
) -> StoredResponse:
    """Start a run of a registered workflow, or repeat the response of the request that started it (law 4). `show` may change the body of
    the response. A repeated request gets its recorded response even if it would be refused now."""
    try:
        command = await _prepare(scope, asked, caller)
    except TenureError:
        if keyed is not None and (recorded := await _find_response(scope, keyed)) is not None:
            return recorded
        raise
    if keyed is None:
        created = await _create(scope, command)
        return answer_created(command, created.run_id, created.status, created.at, show)
    key, request_hash, done_us = keyed.key, keyed.hash, us(keyed.done_seconds)

    def record(run: RunRow) -> IdempotencyRow:
        at = run.created_at
        answer = answer_created(command, run.id, run.status, at, show).stores()
        return IdempotencyRow(
            *key, run.id, "completed", request_hash, answer, None, at, at, at + done_us, None
        )

    created = await _create(scope, command, record)
    assert created.record is not None
    return msgspec.structs.replace(StoredResponse.stored(created.record), replayed=created.again)


async def start_from_run(
    scope: Scope, command: c.CreateRun, who: Principal, request_id: str, held: HeldRecord | None
) -> StoredResponse:
    """Create a run from another one, for a caller of the API and under the request's key."""
    caller = api_caller(who, request_id)
    command = msgspec.structs.replace(
        command,
        context=caller.context,
        requester=caller.requester,
        involved=join_people(command.involved, who.people),
    )
    if held is not None:
        record = held.record
        command = msgspec.structs.replace(
            command, source=record.source, idempotency_key=record.name, request_hash=record.request_hash
        )
    created = await scope.orchestrator.create(command)
    at = created.at
    if created.again:
        if held is not None and held.first:
            raise key_expired_error(created.run_id, "was created long ago")
        at = (await scope.reader.row(created.run_id)).created_at
    return answer_created(command, created.run_id, created.status, at)


async def _find_response(scope: Scope, keyed: KeyedRequest) -> StoredResponse | None:
    store, now = scope.store, await scope.now_us()
    # The run is read first: one commit creates the run and its record, possibly between the two reads.
    specs: list[RunSpecRow] = await store.read("find_keys", rows=[keyed.key])
    records: list[IdempotencyRow] = await store.read("key_record", *keyed.key)
    if records and records[0].expires_at > now:
        return replay_response(records[0], keyed.hash)
    if specs:
        raise key_expired_error(specs[0].run_id, "was created long ago")
    return None


def answer_created(
    command: c.CreateRun, run_id: int, status: str, at: int, show: ShowCreated | None = None
) -> StoredResponse:
    body = show_created(command, run_id, status, at)
    return StoredResponse.of(
        body if show is None else show(body), 201, location=f"/runs/{body.id}", run_id=run_id
    )
