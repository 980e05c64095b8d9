"""Intake: what hooks are told becomes runs and signals.

Laws:
1. A request verifies, takes the delivery down with its record (`processing`), and is answered; the work is done beside it.
   The answer waits a moment for it (`answer_seconds`): mostly it can name the run already.
2. A delivery's run has the delivery's key, so that whoever does the work, and however often, there is one run. What a crash
   left is found by its lock, which expires, and done by any process.
3. The hook says whose run it is: its tenant, its workspace, its owner. What was told only adds people who do not approve it.
4. Over a tenant's rate runs start later; none is lost (decision 27).
5. What cannot be done now is done later; what cannot be done at all fails with its reason, and nothing else happens.
6. A try is counted before it begins. A delivery that was tried too often, or whose process ended too often in the middle of it, is
   set aside with the reason; only a replay by hand begins it again.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec
import structlog

from tenure import ids
from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.kernel.separation_of_duties import join_people
from tenure.kernel.server_rows import DeliveryRow, HookRow
from tenure.limits import DELIVERY_CRASHES_MAX, DELIVERY_TRIES_MAX
from tenure.orchestrator.periodic_task import PeriodicTask
from tenure.services.hooks.events import HookEvent, github_people, github_trigger, rule_scope, slack_account
from tenure.services.hooks.rules import RuleMatch, match_rule
from tenure.services.run_creation import RunCaller, start
from tenure.services.runs import Runs
from tenure.services.scope import Runtime, Scope
from tenure.shapes.hooks import HookRule, HookSettings, HookTrigger
from tenure.shapes.runs import RunTrigger, StartRun
from tenure.store.hook_deliveries import KEY_SOURCES, HookDeliveries
from tenure.store.idempotency import HeldRecord
from tenure.store.identity import AdminChange, Identity
from tenure.work_pool import run_in_thread

log = structlog.get_logger(__name__)

SCAN_SECONDS = 1.0
CONCURRENT_DELIVERIES_MAX = 50
SCAN_ROWS_MAX = 2
"""Deliveries whose rules are evaluated at a time; others wait their turn, and leave the heavy work of requests its room."""
TRIM_SECONDS = 600.0
TRIM_MAX = 1_000
POLL_SECONDS = 0.05
NOTE_CHARS_MAX = 1_000
SET_ASIDE = "set_aside"
_MADE_BEFORE = frozenset({"IDEMPOTENCY_CONFLICT", "IDEMPOTENCY_KEY_REUSED", "IDEMPOTENCY_EXPIRED"})
"""The key has its run, whatever the rules said when that was made."""


class DeliveryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a delivery so far."""

    delivery: str = ""
    """Its id; empty where only another request knows it, which is in process under the same key."""
    status: str
    """received (the work is under way), done, ignored (no rule fits), duplicate, failed or set_aside (tried too often)."""
    run_id: str | None = None
    duplicate: bool = False
    """Whether it was told before, and this is what became of the first."""
    note: str = ""


class DeliveryOutcome(msgspec.Struct, frozen=True):
    """What a delivery came to."""

    status: str
    run_id: int | None = None
    note: str = ""


class HookIntake:
    """See the laws above."""

    def __init__(
        self, runtime: Runtime, identity: Identity, holder: str | None, *, answer_seconds: float
    ) -> None:
        """`holder`: the server that takes deliveries here; None: a program that comes and goes. `answer_seconds`: how long an answer
        waits for the run."""
        self._runtime = runtime
        self._answer_seconds = answer_seconds
        self._identity = identity
        self.deliveries = HookDeliveries(runtime.store, holder)
        self._rounds = PeriodicTask("intake", self.look, SCAN_SECONDS, CONCURRENT_DELIVERIES_MAX)
        self._under_way: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._trim_at = 0.0
        self._reading = asyncio.Semaphore(SCAN_ROWS_MAX)
        self.set_aside = 0
        """Deliveries that were tried too often, and are left to people."""
        self.on_taken: Callable[[str, str, str, str | None, str], None] | None = None
        """Called for every delivery: source, `hit` or `miss` of its key, the key, the run's id, the tenant."""

    async def start(self) -> None:
        """Take up what others have left, from now on."""
        await self._rounds.__aenter__()

    async def stop(self) -> None:
        """Finish what is under way, and look no more."""
        await self._rounds.__aexit__()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    # -------------------------------------------------------------------------------------------- requests

    async def receive(self, hook: HookRow, told: HookEvent) -> DeliveryStatus:
        """Take a verified delivery down, see to it, and say what became of it so far."""
        taken = await self.deliveries.take(hook.kind, told.delivery(hook.id, hook.tenant), alike=told.alike)
        if taken is None:
            raise TenureError("HOOK_NOT_FOUND")
        if self.on_taken is not None:
            result, row = "hit" if taken.held is None else "miss", taken.delivery
            self.on_taken(KEY_SOURCES[hook.kind], result, row.name, _run_text(row.run_id), hook.tenant)
        if taken.held is not None:
            self._begin(hook, taken.delivery, taken.held)
        return _received(await self._awaited(taken.delivery), told.id, duplicate=taken.held is None)

    async def replay(
        self, hook: HookRow, delivery_id: str, change: AdminChange, *, by: str
    ) -> DeliveryStatus:
        """Do a delivery once more, under a key of its own, as the people in `by` want."""
        taken = await self.deliveries.replay(hook.kind, hook.id, delivery_id, change, by=by)
        if taken is None:
            raise TenureError("DELIVERY_NOT_FOUND")
        if taken.held is not None:
            self._begin(hook, taken.delivery, taken.held)
        return _received(await self._awaited(taken.delivery), taken.delivery.id, duplicate=False)

    def _begin(self, hook: HookRow, delivery: DeliveryRow, held: HeldRecord) -> asyncio.Task[None]:
        which = (delivery.hook_id, delivery.id)
        task = asyncio.ensure_future(self._do(hook, delivery, held))
        self._under_way[which] = task
        task.add_done_callback(lambda _: self._under_way.pop(which, None))
        return task

    async def _awaited(self, delivery: DeliveryRow) -> DeliveryRow:
        """A delivery once it is done with, or as it is when the answer cannot wait any longer."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._answer_seconds
        which = (delivery.hook_id, delivery.id)
        while delivery.status == "received" and (left := deadline - loop.time()) > 0:
            task = self._under_way.get(which)
            if task is None:  # another process has it
                await asyncio.sleep(min(POLL_SECONDS, left))
            else:
                await asyncio.wait({task}, timeout=left)
            delivery = await self.deliveries.get(*which) or delivery
        return delivery

    # ------------------------------------------------------------------------------------------------ work

    async def look(self) -> int:
        """Take up what was left; how much that was."""
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
        """The second half of a delivery: carry it out, then say so. May be repeated whole."""
        try:
            done = _exhausted(delivery, held) or await self._carried_out(hook, delivery)
            await self._settle(hook, delivery, held, done)
            if done.status == SET_ASIDE:
                self.set_aside += 1
                log.error("delivery_set_aside", hook=hook.id, delivery=delivery.id, why=done.note)
        except TenureError as refused:  # the store or the queue: later
            log.warning("delivery_put_off", hook=hook.id, delivery=delivery.id, error=refused.code)
            try:
                await self.deliveries.postpone(
                    delivery, held, clean_note(f"put off, {refused.code}: {refused.message}")
                )
            except TenureError as lost:
                log.warning("delivery_kept", hook=hook.id, delivery=delivery.id, error=lost.code)

    async def _settle(
        self, hook: HookRow, delivery: DeliveryRow, held: HeldRecord, done: DeliveryOutcome
    ) -> None:
        response = msgspec.json.encode(
            DeliveryStatus(
                delivery=delivery.id, status=done.status, run_id=_run_text(done.run_id), note=done.note
            )
        )
        await self.deliveries.settle(
            hook.kind, delivery, held, done.status, run_id=done.run_id, note=done.note, response=response
        )
        log.info("delivery_settled", hook=hook.id, delivery=delivery.id, status=done.status)

    async def _carried_out(self, hook: HookRow, delivery: DeliveryRow) -> DeliveryOutcome:
        try:
            return await self._mapped(hook, delivery)
        except TenureError as refused:
            if refused.retryable:
                raise
            if refused.code in _MADE_BEFORE:
                key = (delivery.tenant, KEY_SOURCES[hook.kind], delivery.name)
                found = await self._runtime.store.read("find_keys", rows=[key])
                if found:
                    return DeliveryOutcome("done", found[0].run_id, "its key had a run already")
            return DeliveryOutcome("failed", None, clean_note(f"{refused.code}: {refused.message}"))
        except Exception:  # a defect of ours, or a body nested too deeply: this delivery's alone
            log.error("delivery_failed", hook=hook.id, delivery=delivery.id, traceback=traceback.format_exc())
            return DeliveryOutcome(
                "failed", None, "INTERNAL_ERROR: it could not be carried out; the log says why"
            )

    async def _mapped(self, hook: HookRow, delivery: DeliveryRow) -> DeliveryOutcome:
        async with self._reading:
            scope, found = await run_in_thread(_found, hook, delivery)
        if found is None:
            return DeliveryOutcome("ignored", None, "no rule fits")
        if found.rule.signal is not None:
            return await self._signalled(hook, delivery, found, scope["body"])
        run_id = await self._started(hook, delivery, found, scope["body"])
        return DeliveryOutcome("done", run_id, f"rules[{found.index}]")

    async def _started(self, hook: HookRow, delivery: DeliveryRow, found: RuleMatch, body: Any) -> int:
        rule = found.rule
        assert rule.workflow is not None
        actor = f"hook:{hook.id}"
        scope = Scope(self._runtime, hook.tenant, rule.workspace or hook.workspace, actor)
        trigger = _trigger(hook, delivery, found, body)
        requester, behind = await self._people(hook, delivery, body)
        asked = StartRun(
            workflow=rule.workflow,
            version=rule.version,
            input=found.input,
            profile=rule.profile,
            labels=found.labels,
            metadata=_about(trigger) | found.metadata,
            priority=rule.priority,
            concurrency_key=found.concurrency_key,
            supersede=rule.supersede,
            trigger=RunTrigger(type="webhook", ref=trigger.ref, repo=trigger.repo),
        )
        caller = RunCaller(
            context=c.Context(actor, "webhook", delivery.name),
            requester=requester,
            involved=behind,
            key=delivery.name,
            source=KEY_SOURCES[hook.kind],
            # The hash is of the key alone: if the rules change between two tries, there is still one run.
            request_hash=sha256(delivery.name.encode()).digest(),
            over_rate="delay",
        )
        return ids.run_int(await start(scope, asked, caller))

    async def _signalled(
        self, hook: HookRow, delivery: DeliveryRow, found: RuleMatch, body: Any
    ) -> DeliveryOutcome:
        runs = Runs(Scope(self._runtime, hook.tenant, "default", f"hook:{hook.id}"))
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
        """Who asks, and who else stands behind it. The hook's owner asks, or the person who typed a command in Slack, where
        that is known; behind it are the owner all the same, whoever has made or changed the hook and nobody has confirmed that,
        whoever wanted a replay, and everybody who has or once had an account behind it: the author's, the pusher's and the sender's at
        GitHub, or that of the command in Slack. Where nobody ever had that, the account itself."""
        behind = join_people(hook.owner, hook.unconfirmed, delivery.replayed_by)
        if hook.kind == "slack" and isinstance(body, dict):
            accounts = [slack_account(body)]
        elif hook.kind == "github":
            accounts = [
                f"github:{'_'.join(login.split()).lower()}" for login in github_people(body)
            ]  # an id has no blanks
        else:
            return hook.owner, behind
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
                return f"person:{person.id}", join_people(behind, person.unconfirmed, *people)
        return hook.owner, join_people(behind, *people)


def _exhausted(delivery: DeliveryRow, held: HeldRecord) -> DeliveryOutcome | None:
    """Where a delivery was tried too often, that it is set aside (law 6)."""
    if held.record.attempts > DELIVERY_CRASHES_MAX:
        why = "its process ended again and again while it was carried out; look at the hook's rules, then replay it"
        return DeliveryOutcome(SET_ASIDE, None, why)
    if delivery.tries > DELIVERY_TRIES_MAX:
        why = f"it could not be done in {DELIVERY_TRIES_MAX} tries; replay it. Last: {delivery.note}"
        return DeliveryOutcome(SET_ASIDE, None, clean_note(why))
    return None


def _found(hook: HookRow, delivery: DeliveryRow) -> tuple[dict[str, Any], RuleMatch | None]:
    scope = rule_scope(hook.kind, delivery)
    return scope, match_rule(msgspec.json.decode(hook.rules, type=list[HookRule]), scope)


def _trigger(hook: HookRow, delivery: DeliveryRow, found: RuleMatch, body: Any) -> HookTrigger:
    usual = {"ref": f"{hook.kind}:{delivery.event}", "correlation_id": delivery.id}
    if hook.kind == "github":
        usual |= github_trigger(body)
    said = {word: text for word, text in msgspec.to_builtins(found.trigger).items() if text is not None}
    return msgspec.convert(usual | said, HookTrigger)


def _about(trigger: HookTrigger) -> dict[str, str]:
    """What has no column of its own, under the words that documents read it by."""
    said = {
        "prId": trigger.pr_id,
        "prUrl": trigger.pr_url,
        "commit": trigger.commit,
        "a2aCorrelationId": trigger.correlation_id,
    }
    return {word: text for word, text in said.items() if text is not None}


def _received(delivery: DeliveryRow, told_id: str, *, duplicate: bool) -> DeliveryStatus:
    return DeliveryStatus(
        delivery=told_id,
        status=delivery.status,
        run_id=_run_text(delivery.run_id),
        duplicate=duplicate,
        note=delivery.note,
    )


def _run_text(run_id: int | None) -> str | None:
    return None if run_id is None else ids.run_text(run_id)


def clean_note(text: str) -> str:
    """A note that both databases take, and not too long."""
    text = text.replace("\0", "").encode("utf-8", "replace").decode()
    return text if len(text) <= NOTE_CHARS_MAX else f"{text[: NOTE_CHARS_MAX - 1]}…"
