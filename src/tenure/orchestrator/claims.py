"""Claims. A claim is one transaction: choose candidates without locks, lock free runs, check again, grant leases.

Laws:
1. Claim queues (tenant, workspace) with work come from a loose scan of the claim index, one window at a time. The cost of
   a claim depends on the claim queues it serves, not on how many steps wait. If caps block every claim queue of a
   window, the claim continues with the next window without taking a lock.
2. A claim takes the lock of a capped tenant before it counts the tenant's live leases. It takes locks for one window only,
   in order, so that claims cannot deadlock.
3. A claim never waits for a locked run. If every chosen run is locked, it asks for more candidates, a bounded number of
   times. It checks each step again under the run's lock. A cached step is valid while its run has the same head.
4. Where a workflow has all the leases it may have, a claim looks for other steps a bounded number of windows further. The
   next claim continues there, and after the end of the queue from its beginning.
5. A claim for one tenant sees only that tenant's claim queues. A remote runner's claim has a name, and its commit records what was
   granted under that name: a repeated claim gets the same leases and nothing new. A lock on the name decides between two
   simultaneous claims.
6. Claims of one process do not compete: the next transaction begins when the last one is over. A claim that waits for work takes
   the event to wait for before it looks, so that it misses no step that becomes ready meanwhile.
"""

from __future__ import annotations

import asyncio
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Coroutine, Generator, Set
from functools import partial
from hashlib import sha256
from itertools import product
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.errors import TenureError
from tenure.ids import run_text
from tenure.kernel.commands import Claimant, ClaimStep, Context
from tenure.kernel.decide import decide
from tenure.kernel.decide.termination import dependents_of
from tenure.kernel.decide.validation import is_name
from tenure.kernel.draft import Chance
from tenure.kernel.fair_share import ClaimQueueKey, FairShares, headroom
from tenure.kernel.lease_types import Lease
from tenure.kernel.run_rows import Cap, RunRow, StepRow
from tenure.kernel.server_rows import RemoteLeaseRow
from tenure.kernel.snapshot import Snapshot
from tenure.logs import get_logger
from tenure.orchestrator.batch import BatchOutcome, PendingCommand, RunWork, build_save, sort_outcomes
from tenure.orchestrator.loader import is_long_load
from tenure.store.port import (
    LEAVE_EVENT_LOOP,
    AmbiguousCommit,
    ClaimCandidate,
    ClaimQueue,
    DataRejected,
    Query,
    Save,
    Saved,
    StoreRequest,
    Transaction,
    WriteConflict,
)

if TYPE_CHECKING:
    from tenure.orchestrator.core import Orchestrator

log = get_logger(__name__)

QUEUES_WINDOW = 128
"""Claim queues that one claim reads. The next claim continues after them."""
WINDOWS_MAX = 16
"""Windows without a candidate that one claim skips. The next claim continues after them."""
PAST_FULL_WINDOW = 256
"""Steps read at once from a claim queue in which a workflow has all the leases it may have."""
PAST_FULL_WINDOWS_MAX = 4
"""Further windows that a claim reads there."""
EXTRA_CANDIDATES = (0, 32, 256, 2048)
"""How many more candidates each try asks for, when others had locked all that the try before it chose."""
SKIPPED_FOR_CLAIMS = 1000
"""A run that cannot be decided is skipped for this many claims, then tried again: it may have been repaired."""
POLL_SECONDS = 1.0
"""How long a lost wake-up delays a claim: waiting claims also poll."""
TRIES_MAX = 5
"""How often a claim is tried when others hold the runs it chose."""
RETRY_SECONDS = 0.002
TAKEN_CODES = frozenset({"RUN_INVALID_TRANSITION", "RUN_TERMINAL_STATE"})
"""Another claim was faster, or the run was paused: there is nothing wrong with the run."""


class RemoteClaim(msgspec.Struct, gc=False, frozen=True):
    """A remote runner's claim (law 5)."""

    name: str
    """`<key id>/<claim id>`."""
    secret: bytes
    """The key of the leases' tokens. It is not stored: only its owner can compute a token again."""

    def token(self, run_id: int, idx: int, n: int) -> str:
        text = f"tenure-lease\0{run_text(run_id)}\0{idx}\0{n}"
        mac = hmac.digest(self.secret, text.encode(), "sha256")
        return "tl_" + urlsafe_b64encode(mac).rstrip(b"=").decode()

    def row(self, lease: Lease) -> RemoteLeaseRow:
        key = (lease.run_id, lease.idx, lease.n)
        return RemoteLeaseRow(*key, lease.tenant, self.name, hash_token(self.token(*key)))


def hash_token(token: str) -> bytes:
    return sha256(token.encode()).digest()


class Claim(msgspec.Struct, gc=False, frozen=True):
    by: Claimant
    queues: tuple[str, ...]
    limit: int
    tenant: str | None = None
    """Only this tenant's steps."""
    remote: RemoteClaim | None = None


class ClaimHistory:
    """What an orchestrator remembers between claims: whose turn it is. There is one for each tenant that is claimed for
    separately, and one for claims across tenants."""

    def __init__(self, tenant: str | None = None) -> None:
        self.tenant = tenant
        self.shares = FairShares()
        self.start: ClaimQueueKey = (tenant or "", "")
        self.cursor: ClaimQueueKey = self.start
        self.positions: dict[tuple[str, str, str], ClaimCandidate] = {}
        """(queue, tenant, workspace) -> the step after which the next claim looks, if steps of full workflows come first."""
        self.claims = 0
        self.skipped: dict[int, int] = {}
        """Run -> the claim at which to try it again. These runs cannot be decided here (an unknown profile, a broken row),
        and must not block others."""

    def skip_run(self, run_id: int, fault: Exception) -> None:
        if run_id not in self.skipped:
            log.error("run_set_aside", run_id=run_text(run_id), error=repr(fault))
        self.skipped[run_id] = self.claims + SKIPPED_FOR_CLAIMS

    def skipped_runs(self) -> set[int]:
        self.claims += 1
        if self.skipped:
            self.skipped = {run_id: until for run_id, until in self.skipped.items() if until > self.claims}
        return set(self.skipped)


class ClaimOutcome(msgspec.Struct, gc=False):
    leases: list[Lease]
    outcome: Any
    more: bool
    """Whether there may be more work: in a locked run, taken by another claim just now, or further back in the queue."""
    before: list[RemoteLeaseRow] = []
    """The leases that the same remote claim got before."""


def claim_steps(
    claim: Claim, history: ClaimHistory, cache: dict[int, Snapshot], chance: Chance
) -> Transaction[ClaimOutcome]:
    """Lease up to `limit` steps, fairly and within the caps. Snapshots that it uses leave the cache."""
    outcome = BatchOutcome()
    queues = [(q,) for q in claim.queues]
    if claim.remote is not None:
        yield Query("lock_tenants", [(f"claim:{claim.remote.name}",)])
        before: list[RemoteLeaseRow] = yield Query("remote_leases_of", (), (claim.remote.name,))
        if before or claim.limit == 0:
            return ClaimOutcome([], outcome, False, before)
    seen: set[ClaimQueueKey] = set()
    for _ in range(WINDOWS_MAX):
        claim_queues = yield from _next_claim_queues(queues, history)
        if seen.issuperset(claim_queues):
            return ClaimOutcome([], outcome, False)
        seen.update(claim_queues)
        caps: dict[ClaimQueueKey, Cap] = {
            (cap.tenant, cap.scope): cap
            for cap in (yield Query("caps", [(t,) for t in sorted({t for t, _ in claim_queues})]))
        }
        capped = sorted({tenant for (tenant, _), cap in caps.items() if cap.max_concurrency is not None})
        if (
            not capped
            or len(claim_queues) < QUEUES_WINDOW
            or (yield from _has_candidates(claim, history, claim_queues, caps, capped))
        ):
            break
    else:
        return ClaimOutcome([], outcome, False)
    usage: dict[ClaimQueueKey, int] = {}
    if capped:
        yield Query("lock_tenants", [(t,) for t in capped])
        usage = {(u.tenant, u.workflow): u.leases for u in (yield Query("usage", [(t,) for t in capped]))}
    locked = history.skipped_runs()
    for extra in EXTRA_CANDIDATES:
        chosen, blocked = yield from _choose(claim, history, claim_queues, caps, usage, locked, extra)
        if not chosen:
            if not locked:
                return ClaimOutcome([], outcome, any((t, w) in seen for _, t, w in history.positions))
            continue  # a locked run may have many steps: the next try reads more candidates
        snaps = yield from _lock_free_runs({c.run_id for c in chosen}, cache)
        if snaps:
            break
        locked.update(c.run_id for c in chosen)
    else:
        return ClaimOutcome([], outcome, len(locked) > len(history.skipped))
    now: int = (yield Query("now"))[0].now_us
    locked_steps = [c for c in chosen if c.run_id in snaps]
    works, leases = yield from _grant(claim, history, locked_steps, snaps, now, chance)
    saved: Saved = yield build_save(works, None)
    sort_outcomes(works, saved, outcome)
    leases = [lease for lease in leases if lease.run_id in saved.ids]
    queue_of = {c.run_id: (c.tenant, c.workspace) for c in chosen}
    history.shares.served(claim_queues, caps, [queue_of[lease.run_id] for lease in leases], blocked)
    return ClaimOutcome(leases, outcome, len(leases) < len(chosen))


def _next_claim_queues(
    queues: list[tuple[str]], history: ClaimHistory
) -> Generator[Query | Save, Any, list[ClaimQueueKey]]:
    """The next claim queues with work, from where the last claim stopped, at most once around."""
    asked = "claim_queues" if history.tenant is None else "tenant_claim_queues"
    rows: list[ClaimQueue] = yield Query(asked, queues, (*history.cursor, QUEUES_WINDOW))
    claim_queues = [(claim_queue.tenant, claim_queue.workspace) for claim_queue in rows]
    if len(claim_queues) < QUEUES_WINDOW and history.cursor != history.start:
        rows = yield Query(asked, queues, (*history.start, QUEUES_WINDOW - len(claim_queues)))
        seen = set(claim_queues)
        claim_queues += [
            key for claim_queue in rows if (key := (claim_queue.tenant, claim_queue.workspace)) not in seen
        ]
    history.cursor = claim_queues[-1] if len(claim_queues) >= QUEUES_WINDOW else history.start
    return claim_queues


def _has_candidates(
    claim: Claim,
    history: ClaimHistory,
    claim_queues: list[ClaimQueueKey],
    caps: dict[ClaimQueueKey, Cap],
    capped: list[str],
) -> Generator[Query | Save, Any, bool]:
    """Whether a window seems to have a candidate. It is read without locks, so the claim checks again."""
    usage = {(u.tenant, u.workflow): u.leases for u in (yield Query("usage", [(t,) for t in capped]))}
    chosen, _ = yield from _choose(claim, history, claim_queues, caps, usage)
    return bool(chosen)


def _choose(
    claim: Claim,
    history: ClaimHistory,
    claim_queues: list[ClaimQueueKey],
    caps: dict[ClaimQueueKey, Cap],
    usage: dict[ClaimQueueKey, int],
    locked: Set[int] = frozenset(),
    extra: int = 0,
) -> Generator[Query | Save, Any, tuple[list[ClaimCandidate], set[ClaimQueueKey]]]:
    """The candidates that may be taken, and the claim queues that are blocked. A claim queue that has no candidate gives its turn
    to the others. Runs in `locked` are left out, and `extra` more candidates are read."""
    tenant_room, workflow_room = headroom(caps, usage)
    full: dict[str, set[str]] = {}
    for (tenant, workflow), room in workflow_room.items():
        if room <= 0:
            full.setdefault(tenant, set()).add(workflow)
    blocked = {claim_queue for claim_queue in claim_queues if tenant_room.get(claim_queue[0], 1) <= 0}
    while True:
        quotas = history.shares.serve(claim_queues, caps, claim.limit, tenant_room)
        turn = {claim_queue: n for claim_queue, n in quotas.items() if n > 0}
        if not turn:
            return [], blocked
        plain = [(q, t, w, n + extra) for (t, w), n in turn.items() if t not in full for q in claim.queues]
        candidates: list[ClaimCandidate] = (yield Query("candidates", plain)) if plain else []
        for q, (t, w) in product(claim.queues, turn):
            if t in full:
                candidates += yield from _skip_full_workflows(history, (q, t, w), turn[t, w] + extra, full[t])
            else:
                history.positions.pop((q, t, w), None)
        if len(claim.queues) > 1:  # each queue is in order, but not their sum
            candidates.sort(key=lambda c: (-c.priority, c.ready_at or 0, c.run_id, c.idx))
        blocked |= turn.keys() - {(c.tenant, c.workspace) for c in candidates}
        if locked:
            candidates = [c for c in candidates if c.run_id not in locked]
        chosen = _within_limits(candidates, claim.limit, quotas, tenant_room, workflow_room)
        if chosen:
            return chosen, blocked
        claim_queues = [claim_queue for claim_queue in claim_queues if claim_queue not in turn]


def _skip_full_workflows(
    history: ClaimHistory, claim_queue: tuple[str, str, str], most: int, full: Set[str]
) -> Generator[Query | Save, Any, list[ClaimCandidate]]:
    """The first steps of a claim queue whose workflows are not full (law 4). There is no index by workflow, so steps of full
    workflows are passed over one window at a time, from where the last claim stopped."""
    window = max(PAST_FULL_WINDOW, most)
    rows: list[ClaimCandidate] = yield Query("candidates", [(*claim_queue, window)])
    found = [c for c in rows if c.workflow not in full]
    position = history.positions.pop(claim_queue, None)
    if found or len(rows) < window:
        return found[:most]
    after = position or rows[-1]
    for _ in range(PAST_FULL_WINDOWS_MAX):
        key = (after.priority, after.ready_at, after.run_id, after.idx)
        rows = yield Query("candidates_behind", [(*claim_queue, *key, window)])
        found = [c for c in rows if c.workflow not in full]
        if found:
            history.positions[claim_queue] = after  # there may be more after these
            return found[:most]
        if len(rows) < window:
            return []
        after = rows[-1]
    history.positions[claim_queue] = after
    return []


def _within_limits(
    candidates: list[ClaimCandidate],
    limit: int,
    quotas: dict[ClaimQueueKey, int],
    tenant_room: dict[str, int],
    workflow_room: dict[ClaimQueueKey, int],
) -> list[ClaimCandidate]:
    """The candidates that the limit, the quotas and the caps allow."""
    chosen: list[ClaimCandidate] = []
    quotas, tenants, workflows = dict(quotas), dict(tenant_room), dict(workflow_room)
    for c in candidates:
        claim_queue = (c.tenant, c.workspace)
        workflow = (c.tenant, c.workflow)
        if len(chosen) >= limit or quotas.get(claim_queue, 0) <= 0:
            continue
        if tenants.get(c.tenant, 1) <= 0 or workflows.get(workflow, 1) <= 0:
            continue
        quotas[claim_queue] -= 1
        if c.tenant in tenants:
            tenants[c.tenant] -= 1
        if workflow in workflows:
            workflows[workflow] -= 1
        chosen.append(c)
    return chosen


def _lock_free_runs(
    run_ids: set[int], cache: dict[int, Snapshot]
) -> Generator[Query | Save, Any, dict[int, Snapshot]]:
    """Lock those of these runs that are free. For a cached run only the head is read: while it is the same, the snapshot is valid."""
    snaps: dict[int, Snapshot] = {}
    known = [(run_id,) for run_id in sorted(run_ids) if run_id in cache]
    if known:
        for found in (yield Query("lock_free_heads", known)):
            snap = cache.pop(found.id, None)  # a batch may have taken it since
            if snap is not None and snap.run is not None and snap.run.head == found.head:
                snaps[found.id] = snap
        run_ids = run_ids - snaps.keys()
    if run_ids:
        runs: list[RunRow] = yield Query("lock_free_runs", [(run_id,) for run_id in sorted(run_ids)])
        snaps.update([(run.id, Snapshot(run.id, run)) for run in runs])
    return snaps


DEPENDENTS_LOADED_MAX = 16
"""Dependents loaded with a claimed step, so that its completion needs no further query."""


def _grant(
    claim: Claim,
    history: ClaimHistory,
    chosen: list[ClaimCandidate],
    snaps: dict[int, Snapshot],
    now: int,
    chance: Chance,
) -> Generator[StoreRequest, Any, tuple[list[RunWork], list[Lease]]]:
    """Check the steps again under the locks of their runs, and grant leases."""
    by, remote = claim.by, claim.remote
    unknown = [(c.run_id, c.idx) for c in chosen if c.idx not in snaps[c.run_id].steps]
    if unknown:
        for step in (yield Query("load_steps", unknown)):
            snaps[step.run_id].put(("step", step.idx), step)
    steps: list[StepRow] = [step for c in chosen if (step := snaps[c.run_id].steps.get(c.idx)) is not None]
    works: dict[int, RunWork] = {}
    actor = f"worker:{by.worker}"
    leases: list[Lease] = []
    dependents: list[tuple[int, int]] = []
    for step in steps:
        snap = snaps[step.run_id]
        run = snap.run
        assert run is not None
        if run.next_no == 1:
            snap.known |= {("open_waits",), ("all_waits",)}
        if run.steps_total == 1 or not run.planned:
            snap.known.add(("open_steps",))
        if not step.recorded:
            snap.known.add(("checkpoints", step.idx))
        if step.dependents:
            try:
                missing = [idx for idx in dependents_of(step) if idx not in snap.steps]
            except ValueError as broken:
                history.skip_run(step.run_id, broken)
                continue
            dependents += [(step.run_id, idx) for idx in missing[:DEPENDENTS_LOADED_MAX]]
    if dependents:
        for step in (yield Query("load_steps", list(dict.fromkeys(dependents)))):
            snaps[step.run_id].put(("step", step.idx), step)
    resumed = [(s.run_id, s.idx) for s in steps if s.recorded]
    if any(is_long_load(snaps[run_id], (("checkpoints", idx),)) for run_id, idx in resumed):
        yield LEAVE_EVENT_LOOP
    if resumed:
        for row in (yield Query("load_step_checkpoints", resumed)):
            snaps[row.run_id].add(row)
        for run_id, idx in resumed:
            snaps[run_id].known.add(("checkpoints", idx))
    for step in steps:
        snap = snaps[step.run_id]
        assert snap.run is not None
        # The cause of a claim is the run's last event: what made the step claimable is in the history up to it.
        context = Context(actor, "system", f"{step.run_id}/{snap.run.version}")
        command = ClaimStep(context=context, run_id=step.run_id, idx=step.idx, by=by)
        work = works.get(step.run_id) or RunWork(snap, [])
        try:
            decision = decide(snap, command, now, chance)
        except (TenureError, ValueError, TypeError, LookupError) as fault:
            if not (isinstance(fault, TenureError) and fault.code in TAKEN_CODES):
                history.skip_run(step.run_id, fault)
            continue
        works[step.run_id] = work
        work.accept(PendingCommand(command, None, 0.0, {}), decision)
        leases.append(decision.result)
        if remote is not None:
            work.rows["remote_lease", step.idx, decision.result.n] = remote.row(decision.result)
    inputs = [(lease.run_id, lease.input_ref) for lease in leases if lease.input_ref is not None]
    if inputs:
        bodies = {
            (p.run_id, p.ref): p.body for p in (yield Query("load_payloads", list(dict.fromkeys(inputs))))
        }
        for lease in leases:
            lease.input = bodies.get((lease.run_id, lease.input_ref or 0))
    return list(works.values()), leases


class ClaimDispatcher:
    """Runs claims one at a time, lets them wait for work, and retries them (law 6)."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        cache: dict[int, Snapshot],
        chance: Chance,
        lane: int,
        command_seconds: float,
    ) -> None:
        self._orchestrator = orchestrator
        self._cache = cache
        self._chance = chance
        self._lane = lane
        self._command_seconds = command_seconds
        self._histories: dict[str | None, ClaimHistory] = {}
        self._lock = asyncio.Lock()
        self._bell = asyncio.Event()

    def ring(self) -> None:
        """Wake the waiting claims: a step became ready in this process."""
        self._bell.set()
        self._bell = asyncio.Event()

    async def remote(
        self, wanted: Claim, wait_seconds: float, goes_on: Callable[[], Awaitable[bool]]
    ) -> ClaimOutcome:
        """A remote runner's claim (`Claim.remote`): new leases, or those that the same claim got before. Without any, it waits
        as long as `goes_on` says that the runner still waits."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait_seconds
        while True:
            bell = self._bell
            claimed = await self.once(wanted)
            left = deadline - clock()
            if claimed.leases or claimed.before or left <= 0 or not await goes_on():
                return claimed
            await self.until(bell, min(left, POLL_SECONDS))

    async def until(self, ready: asyncio.Event, timeout_s: float) -> None:
        """Wait until the event is set, another process announces work, or the timeout passes."""
        store, queue = self._orchestrator.store, self._orchestrator.external_queue
        waits: list[Coroutine[Any, Any, bool]] = [ready.wait(), store.wait_for_work(timeout_s)]
        if queue is not None:
            waits.append(queue.wait(timeout_s))
        waiters = [asyncio.ensure_future(wait) for wait in waits]
        try:
            await asyncio.wait(waiters, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()

    async def once(self, wanted: Claim) -> ClaimOutcome:
        """Run one claim without waiting for work."""
        for name in (wanted.by.worker, *wanted.queues):
            if not is_name(name):
                raise TenureError("INVALID_INPUT", f"{name!r} is not a valid name of a worker or queue")
        history = self._histories.get(wanted.tenant)
        if history is None:
            history = self._histories[wanted.tenant] = ClaimHistory(wanted.tenant)
        make = partial(claim_steps, wanted, history, self._cache, self._chance)
        queue = self._orchestrator.external_queue
        if queue is not None:
            queue.serve(wanted.queues)
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._command_seconds
        tries = 0
        async with self._lock:
            while True:
                try:
                    claimed = await self._orchestrator.store.transact(make, lane=self._lane)
                except DataRejected as refused:
                    raise TenureError(
                        "INVALID_INPUT", f"the database rejected the claim: {refused}"
                    ) from refused
                except (WriteConflict, AmbiguousCommit) as fault:
                    # If a commit of unknown fate did happen, its leases are unused and expire. (A remote claim finds
                    # them again under its name.)
                    if clock() >= deadline:
                        raise TenureError(
                            "COMMAND_DEADLINE", f"the claim was not committed in time: {fault}"
                        ) from fault
                    await asyncio.sleep(RETRY_SECONDS * (0.5 + self._chance.random()))
                    continue
                self._orchestrator.finish(claimed.outcome)
                if queue is not None:
                    queue.note_claimed((lease.run_id, lease.idx) for lease in claimed.leases)
                tries += 1
                if claimed.leases or not claimed.more or tries >= TRIES_MAX:
                    return claimed
                await asyncio.sleep(RETRY_SECONDS)
