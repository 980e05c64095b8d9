"""Intake: deliveries to hooks become runs and signals.

Laws:
1. A request stores the verified delivery with its record (`processing`) and responds. The delivery is processed in the background. The
   response waits for that up to `answer_seconds`, so that it can usually name the run.
2. A delivery's run has the delivery's key, so that repeated processing creates one run. After a crash, the lock of the delivery expires
   and another process continues.
3. The hook determines the tenant, workspace and owner of the run. The delivery only adds people who cannot approve it.
4. Above a tenant's rate limit runs start later; none is lost (rule 27).
5. A temporary failure is tried again later. A permanent failure is recorded with its reason.
6. A try is counted before it begins. A delivery that was tried too often, or whose process crashed too often, is set aside with the
   reason. Only a manual replay processes it again.
7. A GitHub hook that reports sets the target of its runs from the signed event, and obeys the buttons of their checks. Which repositories
   a tenant may report to is decided when the report is written (`publish.vcs_settings`). A button reruns or cancels only a run of the
   hook's tenant whose target is that commit.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec

from tenure import ids
from tenure.ci.github_change import read_github_change, read_repository_name
from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.kernel.separation_of_duties import join_people
from tenure.kernel.server_rows import DeliveryRow, HookRow
from tenure.limits import DELIVERY_CRASHES_MAX, DELIVERY_TRIES_MAX
from tenure.logs import get_logger
from tenure.orchestrator.periodic_task import PeriodicTask
from tenure.services.ci_runs import build_ci_run, find_repository
from tenure.services.hooks.events import (
    CHECK_EVENT,
    SUITE_EVENT,
    CheckAction,
    HookEvent,
    github_check_action,
    github_people,
    github_suite_action,
    github_target,
    github_trigger,
    rule_scope,
    slack_account,
)
from tenure.services.hooks.responses import delivery_response
from tenure.services.hooks.rules import RuleMatch, match_rule
from tenure.services.run_creation import RunCaller, start, trigger_metadata
from tenure.services.runs import Runs
from tenure.services.scope import Runtime, Scope
from tenure.shapes.hooks import DeliveryStatus, HookRule, HookSettings, HookTrigger
from tenure.shapes.reports import VcsTarget
from tenure.shapes.runs import RunTrigger, StartRun
from tenure.store.hook_deliveries import KEY_SOURCES, DeliveryIntake, HookDeliveries
from tenure.store.idempotency import HeldRecord
from tenure.store.identity import AdminChange, Identity
from tenure.store.vcs_reports import VcsReports
from tenure.work_pool import run_in_pool

log = get_logger(__name__)

SCAN_SECONDS = 1.0
CONCURRENT_DELIVERIES_MAX = 50
SCAN_ROWS_MAX = 2
"""Deliveries whose rules are evaluated concurrently. The limit leaves threads for requests."""
TRIM_SECONDS = 600.0
TRIM_MAX = 1_000
POLL_SECONDS = 0.05
NOTE_CHARS_MAX = 1_000
SET_ASIDE = "set_aside"
_MADE_BEFORE = frozenset({"IDEMPOTENCY_CONFLICT", "IDEMPOTENCY_KEY_REUSED", "IDEMPOTENCY_EXPIRED"})
"""The key already has a run, perhaps created by other rules."""


class DeliveryOutcome(msgspec.Struct, frozen=True):
    status: str
    run_id: int | None = None
    note: str = ""


class HookIntake:
    """Stores and processes deliveries; see the laws above."""

    def __init__(
        self, runtime: Runtime, identity: Identity, holder: str | None, *, answer_seconds: float
    ) -> None:
        """`holder` is the server that receives deliveries; None for a short-lived program. `answer_seconds` is how long a response waits
        for the run."""
        self._runtime = runtime
        self._answer_seconds = answer_seconds
        self._identity = identity
        self.deliveries = HookDeliveries(runtime.store, holder)
        self._rounds = PeriodicTask("intake", self.look, SCAN_SECONDS, CONCURRENT_DELIVERIES_MAX)
        self._under_way: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._trim_at = 0.0
        self._reading = asyncio.Semaphore(SCAN_ROWS_MAX)
        self.set_aside = 0
        self.on_taken: Callable[[str, str, str, str | None, str], None] | None = None
        """Called for each delivery: source, `hit` or `miss` of its key, the key, the run's id, the tenant."""

    async def start(self) -> None:
        """Start the task that processes deliveries left by other processes."""
        await self._rounds.__aenter__()

    async def stop(self) -> None:
        """Stop that task, and finish the deliveries in process."""
        await self._rounds.__aexit__()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    # -------------------------------------------------------------------------------------------- requests

    async def receive(self, hook: HookRow, event: HookEvent) -> DeliveryStatus:
        """Store a verified delivery, start to process it, and return its status."""
        taken = await self.deliveries.take(hook.kind, event.delivery(hook.id, hook.tenant), alike=event.alike)
        if taken is None:
            raise TenureError("HOOK_NOT_FOUND")
        if self.on_taken is not None:
            result, row = "hit" if taken.held is None else "miss", taken.delivery
            self.on_taken(KEY_SOURCES[hook.kind], result, row.name, _run_text(row.run_id), hook.tenant)
        return await self._process(hook, taken, event.id, duplicate=taken.held is None)

    async def replay(
        self, hook: HookRow, delivery_id: str, change: AdminChange, *, by: str
    ) -> DeliveryStatus:
        """Process a delivery again, under a new key, as the people in `by` request."""
        taken = await self.deliveries.replay(hook.kind, hook.id, delivery_id, change, by=by)
        if taken is None:
            raise TenureError("DELIVERY_NOT_FOUND")
        return await self._process(hook, taken, taken.delivery.id, duplicate=False)

    async def _process(
        self, hook: HookRow, taken: DeliveryIntake, delivery_id: str, *, duplicate: bool
    ) -> DeliveryStatus:
        """Start to process a delivery, and return its status after `answer_seconds` at the latest."""
        if taken.held is not None:
            self._begin(hook, taken.delivery, taken.held)
        delivery = await self._wait_for(taken.delivery)
        return DeliveryStatus(
            delivery=delivery_id,
            status=delivery.status,
            run_id=_run_text(delivery.run_id),
            duplicate=duplicate,
            note=delivery.note,
        )

    def _begin(self, hook: HookRow, delivery: DeliveryRow, held: HeldRecord) -> asyncio.Task[None]:
        which = (delivery.hook_id, delivery.id)
        task = asyncio.ensure_future(self._do(hook, delivery, held))
        self._under_way[which] = task
        task.add_done_callback(lambda _: self._under_way.pop(which, None))
        return task

    async def _wait_for(self, delivery: DeliveryRow) -> DeliveryRow:
        """The delivery when it has been processed, or when `answer_seconds` have passed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._answer_seconds
        which = (delivery.hook_id, delivery.id)
        while delivery.status == "received" and (left := deadline - loop.time()) > 0:
            task = self._under_way.get(which)
            if task is None:  # another process works on it
                await asyncio.sleep(min(POLL_SECONDS, left))
            else:
                await asyncio.wait({task}, timeout=left)
            delivery = await self.deliveries.get(*which) or delivery
        return delivery

    # ------------------------------------------------------------------------------------------------ work

    async def look(self) -> int:
        """Process the deliveries that other processes left. Returns their number."""
        if time.monotonic() >= self._trim_at:
            self._trim_at = time.monotonic() + TRIM_SECONDS
            while await self.deliveries.trim(TRIM_MAX) == TRIM_MAX:
                pass
        found = await self.deliveries.list_abandoned(CONCURRENT_DELIVERIES_MAX)
        await asyncio.gather(*(self._take_up(one) for one in found))
        return len(found)

    async def _take_up(self, delivery: DeliveryRow) -> None:
        hook = await self.deliveries.hook(delivery.hook_id)
        taken = None if hook is None else await self.deliveries.take_over(hook.kind, delivery)
        if hook is not None and taken is not None and taken.held is not None:
            log.info("delivery_taken_up", hook=hook.id, delivery=delivery.id, tries=taken.delivery.tries)
            await self._begin(hook, taken.delivery, taken.held)

    async def _do(self, hook: HookRow, delivery: DeliveryRow, held: HeldRecord) -> None:
        """Process a delivery and record the outcome. May be repeated as a whole."""
        try:
            done = _give_up(delivery, held) or await self._carry_out(hook, delivery)
            await self._settle(hook, delivery, held, done)
            if done.status == SET_ASIDE:
                self.set_aside += 1
                log.error("delivery_set_aside", hook=hook.id, delivery=delivery.id, why=done.note)
        except TenureError as refused:  # the database or the queue: try again later
            log.warning("delivery_postponed", hook=hook.id, delivery=delivery.id, error=refused.code)
            try:
                await self.deliveries.postpone(
                    delivery, held, clean_note(f"postponed, {refused.code}: {refused.message}")
                )
            except TenureError as lost:
                log.warning("postpone_failed", hook=hook.id, delivery=delivery.id, error=lost.code)

    async def _settle(
        self, hook: HookRow, delivery: DeliveryRow, held: HeldRecord, done: DeliveryOutcome
    ) -> None:
        status = DeliveryStatus(
            delivery=delivery.id, status=done.status, run_id=_run_text(done.run_id), note=done.note
        )
        response = delivery_response(status).stores()
        await self.deliveries.settle(
            hook.kind, delivery, held, done.status, run_id=done.run_id, note=done.note, response=response
        )
        log.info("delivery_settled", hook=hook.id, delivery=delivery.id, status=done.status)

    async def _carry_out(self, hook: HookRow, delivery: DeliveryRow) -> DeliveryOutcome:
        try:
            return await self._apply_rules(hook, delivery)
        except TenureError as refused:
            if refused.retryable:
                raise
            if refused.code in _MADE_BEFORE:
                key = (delivery.tenant, KEY_SOURCES[hook.kind], delivery.name)
                if found := await self._runtime.store.read("find_keys", rows=[key]):
                    return DeliveryOutcome("done", found[0].run_id, "its key already had a run")
            return DeliveryOutcome("failed", None, clean_note(f"{refused.code}: {refused.message}"))
        except (
            Exception
        ):  # a defect, or a body that is nested too deeply: it must not affect other deliveries
            log.error("delivery_failed", hook=hook.id, delivery=delivery.id, traceback=traceback.format_exc())
            return DeliveryOutcome("failed", None, "INTERNAL_ERROR: processing failed; the log says why")

    async def _apply_rules(self, hook: HookRow, delivery: DeliveryRow) -> DeliveryOutcome:
        async with self._reading:
            if delivery.event in (CHECK_EVENT, SUITE_EVENT) and _reports(hook):
                body = (await run_in_pool(rule_scope, hook.kind, delivery))["body"]
                read_action = github_check_action if delivery.event == CHECK_EVENT else github_suite_action
                if (action := read_action(body)) is not None:
                    return await self._obey(hook, delivery, action, body)
            scope, found = await run_in_pool(_match, hook, delivery)
        if found is None:
            return DeliveryOutcome("ignored", None, "no rule matches")
        if found.rule.signal is not None:
            return await self._signal(hook, delivery, found, scope["body"])
        if found.rule.ci:
            return await self._start_ci(hook, delivery, found, scope["body"])
        run_id = await self._start(hook, delivery, found, scope["body"])
        return DeliveryOutcome("done", run_id, f"rules[{found.index}]")

    async def _start(self, hook: HookRow, delivery: DeliveryRow, found: RuleMatch, body: Any) -> int:
        rule = found.rule
        assert rule.workflow is not None
        actor = f"hook:{hook.id}"
        scope = Scope(self._runtime, hook.tenant, rule.workspace or hook.workspace, actor)
        trigger = _trigger(hook, delivery, found, body)
        asked = StartRun(
            workflow=rule.workflow,
            version=rule.version,
            input=found.input,
            profile=rule.profile,
            labels=found.labels,
            metadata=trigger_metadata(trigger) | found.metadata,
            priority=rule.priority,
            concurrency_key=found.concurrency_key,
            supersede=rule.supersede,
            trigger=RunTrigger(type="webhook", ref=trigger.ref, repo=trigger.repo),
        )
        caller = await self._caller(hook, delivery, body)
        caller = msgspec.structs.replace(caller, vcs_target=github_target(body) if _reports(hook) else None)
        return ids.run_int(await start(scope, asked, caller))

    async def _start_ci(
        self, hook: HookRow, delivery: DeliveryRow, found: RuleMatch, body: Any
    ) -> DeliveryOutcome:
        scope = Scope(self._runtime, hook.tenant, found.rule.workspace or hook.workspace, f"hook:{hook.id}")
        settings = find_repository(scope, read_repository_name(body))
        change = read_github_change(settings, delivery.event, body)
        if change is None:
            return DeliveryOutcome("ignored", None, "it changes no commits that CI could run")
        command = build_ci_run(scope, change, await self._caller(hook, delivery, body))
        run_id = (await scope.orchestrator.create(command)).run_id
        return DeliveryOutcome("done", run_id, f"rules[{found.index}]: CI of {settings.name}")

    async def _caller(self, hook: HookRow, delivery: DeliveryRow, body: Any) -> RunCaller:
        requester, involved = await self._people(hook, delivery, body)
        return RunCaller(
            context=c.Context(f"hook:{hook.id}", "webhook", delivery.name),
            requester=requester,
            involved=involved,
            key=delivery.name,
            source=KEY_SOURCES[hook.kind],
            # The hash covers only the key: if the rules change between two tries, there is still one run.
            request_hash=sha256(delivery.name.encode()).digest(),
            over_rate="delay",
        )

    async def _obey(
        self, hook: HookRow, delivery: DeliveryRow, action: CheckAction, body: Any
    ) -> DeliveryOutcome:
        """Rerun or cancel the run of a check, or the newest run of a commit, for whoever pressed the button on GitHub (law 7)."""
        actor = f"hook:{hook.id}"
        scope = Scope(self._runtime, hook.tenant, hook.workspace, actor)
        runs, run_id = Runs(scope), action.external_id.partition(":")[0]
        if not action.external_id:
            # After a crash the newest run may be the one that this delivery has made.
            key = (hook.tenant, KEY_SOURCES[hook.kind], delivery.name)
            if made := await self._runtime.store.read("find_keys", rows=[key]):
                return DeliveryOutcome("done", made[0].run_id, "its key already had a run")
            commit = VcsTarget(repository=action.repository, head_sha=action.head_sha).commit_subject
            newest = await VcsReports(self._runtime.store).find_newest(hook.tenant, commit)
            run_id = "" if newest is None else ids.run_text(newest)
        if not await self._has_check(scope, action, run_id):
            return DeliveryOutcome("ignored", None, "it is not a check of this tenant's runs")
        old = ids.run_int(run_id)
        requester, involved = await self._people(hook, delivery, body)
        if action.verb == "cancel":
            command = c.RequestCancel(
                run_id=old,
                tenant=hook.tenant,
                context=c.Context(actor, "webhook", delivery.name),
                involved=join_people(requester, involved),
            )
            await scope.send(command)
            scope.notify_workers(old)
            return DeliveryOutcome("done", old, "canceled by a button of its check")
        rerun = msgspec.structs.replace(
            await runs.build_rerun(run_id),
            context=c.Context(actor, "webhook", delivery.name),
            requester=requester,
            source=KEY_SOURCES[hook.kind],
            idempotency_key=delivery.name,
            request_hash=sha256(delivery.name.encode()).digest(),
            over_rate="delay",
        )
        rerun = msgspec.structs.replace(rerun, involved=join_people(rerun.involved, involved))
        return DeliveryOutcome("done", (await scope.orchestrator.create(rerun)).run_id, f"rerun of {run_id}")

    async def _has_check(self, scope: Scope, action: CheckAction, run_id: str) -> bool:
        """Whether a run of the hook's tenant has a check of that commit. Other Apps have checks, too."""
        try:
            run = await scope.reader.row(ids.run_int(run_id))
        except TenureError as refused:
            if refused.retryable:
                raise
            return False
        target = (await scope.reader.spec(run.id)).vcs_target
        if target is None:
            return False
        known = msgspec.json.decode(target, type=VcsTarget)
        return (known.repository, known.head_sha) == (action.repository, action.head_sha)

    async def _signal(
        self, hook: HookRow, delivery: DeliveryRow, found: RuleMatch, body: Any
    ) -> DeliveryOutcome:
        runs = Runs(Scope(self._runtime, hook.tenant, "default", f"hook:{hook.id}", initiator="webhook"))
        senders = join_people(*await self._people(hook, delivery, body))
        assert found.run is not None
        assert found.rule.signal is not None
        await runs.signal(
            found.run,
            found.rule.signal,
            found.data,
            event_id=delivery.name,
            source=hook.kind,
            involved=senders,
        )
        return DeliveryOutcome(
            "done", ids.run_int(found.run), f"rules[{found.index}]: signal {found.rule.signal}"
        )

    async def _people(self, hook: HookRow, delivery: DeliveryRow, body: Any) -> tuple[str, str]:
        """The requester, and the other involved people. The requester is the hook's owner, or the known person who typed a command in
        Slack. Involved are also the owner, people whose changes of the hook are unconfirmed, people who requested a replay, and everybody
        who has or had one of the accounts of the event: the author, pusher and sender at GitHub, or the author of the command in Slack. An
        account that never belonged to a person is involved itself."""
        involved = join_people(hook.owner, hook.unconfirmed, delivery.replayed_by)
        if hook.kind == "slack" and isinstance(body, dict):
            accounts = [slack_account(body)]
        elif hook.kind == "github":
            # An id has no blanks.
            accounts = [f"github:{'_'.join(login.split()).lower()}" for login in github_people(body)]
        else:
            return hook.owner, involved
        must_be_known = (
            hook.kind == "slack" or msgspec.json.decode(hook.settings, type=HookSettings).known_authors_only
        )
        people: list[str] = []
        for account in accounts:
            found = [
                f"person:{link.person}"
                for link in await self._identity.find_account_links(hook.tenant, account)
            ]
            people += found or ([account] if must_be_known else [])
        if hook.kind == "slack":
            person = await self._identity.find_person_by_slack(
                hook.tenant, *accounts[0].removeprefix("slack:").split("/", 1)
            )
            if person is not None:
                return f"person:{person.id}", join_people(involved, person.unconfirmed, *people)
        return hook.owner, join_people(involved, *people)


def _give_up(delivery: DeliveryRow, held: HeldRecord) -> DeliveryOutcome | None:
    """Set aside a delivery that was tried too often (law 6)."""
    if held.record.attempts > DELIVERY_CRASHES_MAX:
        why = "its process crashed repeatedly while processing it; look at the hook's rules, then replay it"
    elif delivery.tries > DELIVERY_TRIES_MAX:
        why = f"processing failed in {DELIVERY_TRIES_MAX} tries; replay it. Last error: {delivery.note}"
    else:
        return None
    return DeliveryOutcome(SET_ASIDE, None, clean_note(why))


def _match(hook: HookRow, delivery: DeliveryRow) -> tuple[dict[str, Any], RuleMatch | None]:
    scope = rule_scope(hook.kind, delivery)
    return scope, match_rule(msgspec.json.decode(hook.rules, type=list[HookRule]), scope)


def _trigger(hook: HookRow, delivery: DeliveryRow, found: RuleMatch, body: Any) -> HookTrigger:
    usual = {"ref": f"{hook.kind}:{delivery.event}"}
    if hook.kind == "github":
        usual |= github_trigger(body)
    given = {name: text for name, text in msgspec.to_builtins(found.trigger).items() if text is not None}
    return msgspec.convert(usual | given, HookTrigger)


def _reports(hook: HookRow) -> bool:
    return hook.kind == "github" and msgspec.json.decode(hook.settings, type=HookSettings).reports


def _run_text(run_id: int | None) -> str | None:
    return None if run_id is None else ids.run_text(run_id)


def clean_note(text: str) -> str:
    """A note that both databases accept, with a limited length."""
    text = text.replace("\0", "").encode("utf-8", "replace").decode()
    return text if len(text) <= NOTE_CHARS_MAX else f"{text[: NOTE_CHARS_MAX - 1]}…"
