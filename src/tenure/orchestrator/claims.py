"""Claims as a transaction: choose without locks, lock what is free, look again, grant.

Laws:
1. Lanes with work come from a loose scan of the claim index, a window at a time, so a claim's cost
   depends on the lanes it serves and never on the length of the queue. A window in which every lane is held
   back by its cap is passed over, without a lock, for the next one.
2. A capped tenant's claims take its lock before they count its live leases; nobody else does. Locks are taken
   for one window only, in order, so that claims do not wait for each other in a circle.
3. Runs locked by others are left out, never waited for: where all that was chosen is locked, more is asked for, a
   bounded number of times. A step is looked at again under its run's lock; one that we know is as we know it as long as its
   run has the same head.
4. Past the steps of workflows that have all the leases they may have, a claim looks a bounded number of windows far;
   the next one goes on there, and at the end of the queue from its beginning.
5. A claim for one tenant sees nobody else's lanes. A remote runner's claim has a name: what was granted under it is
   written down in the same commit, and the same claim again is answered with that and given nothing new. A lock on the
   name decides between two that come at the same time.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Generator, Set
from hashlib import sha256
from itertools import product
from typing import Any

import msgspec

from tenure.errors import TenureError
from tenure.ids import run_text
from tenure.kernel.admission import Lane as LaneKey
from tenure.kernel.admission import Shares, headroom
from tenure.kernel.commands import ClaimBy, ClaimStep, Context
from tenure.kernel.decide import decide
from tenure.kernel.decide.closing import dependents_of
from tenure.kernel.decide.leases import Lease
from tenure.kernel.draft import Chance
from tenure.kernel.model import Cap, Run, Step
from tenure.kernel.service import RemoteLease
from tenure.kernel.snapshot import Snapshot
from tenure.logs import get_logger
from tenure.orchestrator.batch import Item, Outcome, Work, conclude, save_of
from tenure.orchestrator.loading import is_long_load
from tenure.store.port import ASIDE, Candidate, Lane, Query, Request, Save, Saved, Transaction

log = get_logger(__name__)

LANES_WINDOW = 128
"""Lanes looked at by one claim; the next one goes on behind them."""
WINDOWS_MAX = 16
"""Windows without anything to take that one claim passes over; the next one goes on behind them."""


PAST_FULL_WINDOW = 256
"""Steps looked at at once in a lane where a workflow has all the leases it may have."""
PAST_FULL_WINDOWS_MAX = 4
"""Windows behind the first one that a claim looks at there."""
LOOKS = (0, 32, 256, 2048)
"""How many candidates more each look asks for, after all that the look before it chose were locked by others."""
ASIDE_CLAIMS = 1000
"""After so many claims a run that was set aside is looked at again: by then somebody may have repaired it."""
TAKEN = frozenset({"RUN_INVALID_TRANSITION", "RUN_TERMINAL_STATE"})
"""Somebody was quicker, or the run was paused: nothing is wrong with it."""


class RemoteClaim(msgspec.Struct, gc=False, frozen=True):
    """A claim of a remote runner; see law 5."""

    name: str
    """`<key id>/<claim id>`."""
    secret: bytes
    """What the leases' tokens are made with: never kept, so that only whoever has it can make them again."""

    def token(self, run_id: int, idx: int, n: int) -> str:
        """The token of a lease."""
        said = f"tenure-lease\0{run_text(run_id)}\0{idx}\0{n}"
        mac = hmac.digest(self.secret, said.encode(), "sha256")
        return "tl_" + urlsafe_b64encode(mac).rstrip(b"=").decode()

    def row(self, lease: Lease) -> RemoteLease:
        """What is kept of a lease that is granted."""
        key = (lease.run_id, lease.idx, lease.n)
        return RemoteLease(*key, lease.tenant, self.name, token_hash(self.token(*key)))


def token_hash(token: str) -> bytes:
    """What is kept of a lease's token."""
    return sha256(token.encode()).digest()


class Claim(msgspec.Struct, gc=False, frozen=True):
    """What a claimer wants."""

    by: ClaimBy
    queues: tuple[str, ...]
    limit: int
    tenant: str | None = None
    """Only of this tenant."""
    remote: RemoteClaim | None = None


class Dispatch:
    """The memory of one orchestrator's claims: whose turn it is."""

    def __init__(self, tenant: str | None = None) -> None:
        self.tenant = tenant
        self.shares = Shares()
        self.start: LaneKey = (tenant or "", "")
        self.cursor: LaneKey = self.start
        self.places: dict[tuple[str, str, str], Candidate] = {}
        """By (queue, tenant, workspace): behind which step to look on, where full workflows fill what is before."""
        self.claims = 0
        self.aside: dict[int, int] = {}
        """Runs nobody can decide about (a profile that is not here, a row that makes no sense), and at which claim to
        look at each again: they must not stand in the way of others."""

    def put_aside(self, run_id: int, fault: Exception) -> None:
        """Leave a run out for a while."""
        if run_id not in self.aside:
            log.error("run_set_aside", run_id=run_text(run_id), error=repr(fault))
        self.aside[run_id] = self.claims + ASIDE_CLAIMS

    def left_out(self) -> set[int]:
        """The runs that this claim leaves out."""
        self.claims += 1
        if self.aside:
            self.aside = {run_id: until for run_id, until in self.aside.items() if until > self.claims}
        return set(self.aside)


class Claimed(msgspec.Struct, gc=False):
    """What a claim transaction came to."""

    leases: list[Lease]
    outcome: Any
    more: bool
    """Whether there may be work that was not taken: somebody held its run, or was quicker, or it lies further back."""
    before: list[RemoteLease] = []
    """What the same claim was given before."""


def claim(
    claim: Claim, dispatch: Dispatch, cache: dict[int, Snapshot], chance: Chance
) -> Transaction[Claimed]:
    """Take up to `limit` steps, fairly and within the caps. Snapshots it uses are taken out of the cache."""
    outcome = Outcome()
    queues = [(q,) for q in claim.queues]
    if claim.remote is not None:
        yield Query("lock_tenants", [(f"claim:{claim.remote.name}",)])
        before: list[RemoteLease] = yield Query("remote_leases_of", (), (claim.remote.name,))
        if before or claim.limit == 0:
            return Claimed([], outcome, False, before)
    seen: set[LaneKey] = set()
    for _ in range(WINDOWS_MAX):
        lanes = yield from _window(queues, dispatch)
        if seen.issuperset(lanes):
            return Claimed([], outcome, False)
        seen.update(lanes)
        caps: dict[LaneKey, Cap] = {
            (cap.tenant, cap.scope): cap
            for cap in (yield Query("caps", [(t,) for t in sorted({t for t, _ in lanes})]))
        }
        capped = sorted({tenant for (tenant, _), cap in caps.items() if cap.max_concurrency is not None})
        if not capped or len(lanes) < LANES_WINDOW or (yield from _any(claim, dispatch, lanes, caps, capped)):
            break
    else:
        return Claimed([], outcome, False)
    usage: dict[LaneKey, int] = {}
    if capped:
        yield Query("lock_tenants", [(t,) for t in capped])
        usage = {(u.tenant, u.workflow): u.leases for u in (yield Query("usage", [(t,) for t in capped]))}
    locked = dispatch.left_out()
    for extra in LOOKS:
        chosen, blocked = yield from _choose(claim, dispatch, lanes, caps, usage, locked, extra)
        if not chosen:
            if not locked:
                return Claimed([], outcome, any((t, w) in seen for _, t, w in dispatch.places))
            continue  # the steps of a locked run may be many: the next look goes further
        snaps = yield from _lock({c.run_id for c in chosen}, cache)
        if snaps:
            break
        locked.update(c.run_id for c in chosen)
    else:
        return Claimed([], outcome, len(locked) > len(dispatch.aside))
    now: int = (yield Query("now"))[0].now_us
    mine = [c for c in chosen if c.run_id in snaps]
    works, leases = yield from _grant(claim, dispatch, mine, snaps, now, chance)
    saved: Saved = yield save_of(works, None)
    conclude(works, saved, outcome)
    leases = [lease for lease in leases if lease.run_id in saved.ids]
    lane_of = {c.run_id: (c.tenant, c.workspace) for c in chosen}
    dispatch.shares.served(lanes, caps, [lane_of[lease.run_id] for lease in leases], blocked)
    return Claimed(leases, outcome, len(leases) < len(chosen))


def _window(queues: list[tuple[str]], dispatch: Dispatch) -> Generator[Query | Save, Any, list[LaneKey]]:
    """The next lanes with work, from where the last claim stopped, once around."""
    asked = "lanes" if dispatch.tenant is None else "lanes_of"
    rows: list[Lane] = yield Query(asked, queues, (*dispatch.cursor, LANES_WINDOW))
    lanes = [(lane.tenant, lane.workspace) for lane in rows]
    if len(lanes) < LANES_WINDOW and dispatch.cursor != dispatch.start:
        rows = yield Query(asked, queues, (*dispatch.start, LANES_WINDOW - len(lanes)))
        seen = set(lanes)
        lanes += [key for lane in rows if (key := (lane.tenant, lane.workspace)) not in seen]
    dispatch.cursor = lanes[-1] if len(lanes) >= LANES_WINDOW else dispatch.start
    return lanes


def _any(
    claim: Claim, dispatch: Dispatch, lanes: list[LaneKey], caps: dict[LaneKey, Cap], capped: list[str]
) -> Generator[Query | Save, Any, bool]:
    """Whether there seems to be something to take in a window; without locks, so it is looked at again."""
    rows = yield Query("usage", [(t,) for t in capped])
    usage = {(u.tenant, u.workflow): u.leases for u in rows}
    chosen, _ = yield from _choose(claim, dispatch, lanes, caps, usage)
    return bool(chosen)


def _choose(
    claim: Claim,
    dispatch: Dispatch,
    lanes: list[LaneKey],
    caps: dict[LaneKey, Cap],
    usage: dict[LaneKey, int],
    locked: Set[int] = frozenset(),
    extra: int = 0,
) -> Generator[Query | Save, Any, tuple[list[Candidate], set[LaneKey]]]:
    """Candidates that may be taken, and the lanes that are held back. Lanes whose turn it is and that have none
    make room for the others. Runs known to be `locked` are left out, and `extra` candidates looked at instead."""
    tenant_room, workflow_room = headroom(caps, usage)
    full: dict[str, set[str]] = {}
    for (tenant, workflow), room in workflow_room.items():
        if room <= 0:
            full.setdefault(tenant, set()).add(workflow)
    blocked = {lane for lane in lanes if tenant_room.get(lane[0], 1) <= 0}
    while True:
        quotas = dispatch.shares.serve(lanes, caps, claim.limit, tenant_room)
        turn = {lane: n for lane, n in quotas.items() if n > 0}
        if not turn:
            return [], blocked
        plain = [(q, t, w, n + extra) for (t, w), n in turn.items() if t not in full for q in claim.queues]
        candidates: list[Candidate] = (yield Query("candidates", plain)) if plain else []
        for q, (t, w) in product(claim.queues, turn):
            if t in full:
                candidates += yield from _past_full(dispatch, (q, t, w), turn[t, w] + extra, full[t])
            else:
                dispatch.places.pop((q, t, w), None)
        if len(claim.queues) > 1:  # a lane's steps are in order within each queue only
            candidates.sort(key=lambda c: (-c.priority, c.ready_at or 0, c.run_id, c.idx))
        blocked |= turn.keys() - {(c.tenant, c.workspace) for c in candidates}
        if locked:
            candidates = [c for c in candidates if c.run_id not in locked]
        chosen = _within(candidates, claim.limit, quotas, tenant_room, workflow_room)
        if chosen:
            return chosen, blocked
        lanes = [lane for lane in lanes if lane not in turn]


def _past_full(
    dispatch: Dispatch, lane: tuple[str, str, str], most: int, full: Set[str]
) -> Generator[Query | Save, Any, list[Candidate]]:
    """The first steps of a lane that are not of a full workflow, as far as law 4 looks. Without an index by workflow
    the full ones have to be passed over one by one: a window at a time, and not from the beginning each time."""
    window = max(PAST_FULL_WINDOW, most)
    rows: list[Candidate] = yield Query("candidates", [(*lane, window)])
    found = [c for c in rows if c.workflow not in full]
    place = dispatch.places.pop(lane, None)
    if found or len(rows) < window:
        return found[:most]
    after = place or rows[-1]
    for _ in range(PAST_FULL_WINDOWS_MAX):
        key = (after.priority, after.ready_at, after.run_id, after.idx)
        rows = yield Query("candidates_behind", [(*lane, *key, window)])
        found = [c for c in rows if c.workflow not in full]
        if found:
            dispatch.places[lane] = after  # there may be more where these are
            return found[:most]
        if len(rows) < window:
            return []
        after = rows[-1]
    dispatch.places[lane] = after
    return []


def _within(
    candidates: list[Candidate],
    limit: int,
    quotas: dict[LaneKey, int],
    tenant_room: dict[str, int],
    workflow_room: dict[LaneKey, int],
) -> list[Candidate]:
    """Those candidates that the limit, the lanes' quotas and the caps allow, one step per run at a time."""
    chosen: list[Candidate] = []
    quotas, tenants, workflows = dict(quotas), dict(tenant_room), dict(workflow_room)
    for c in candidates:
        lane = (c.tenant, c.workspace)
        workflow = (c.tenant, c.workflow)
        if len(chosen) >= limit or quotas.get(lane, 0) <= 0:
            continue
        if tenants.get(c.tenant, 1) <= 0 or workflows.get(workflow, 1) <= 0:
            continue
        quotas[lane] -= 1
        if c.tenant in tenants:
            tenants[c.tenant] -= 1
        if workflow in workflows:
            workflows[workflow] -= 1
        chosen.append(c)
    return chosen


def _lock(run_ids: set[int], cache: dict[int, Snapshot]) -> Generator[Query | Save, Any, dict[int, Snapshot]]:
    """Lock what is free of these runs. Of one that we know nothing but its head is asked for: as long as that is the same,
    so is everything that a claim looks at."""
    snaps: dict[int, Snapshot] = {}
    known = [(run_id,) for run_id in sorted(run_ids) if run_id in cache]
    if known:
        for found in (yield Query("lock_free_heads", known)):
            snap = cache.pop(found.id, None)  # a batch may have taken it meanwhile
            if snap is not None and snap.run is not None and snap.run.head == found.head:
                snaps[found.id] = snap
        run_ids = run_ids - snaps.keys()
    if run_ids:
        runs: list[Run] = yield Query("lock_free_runs", [(run_id,) for run_id in sorted(run_ids)])
        snaps.update([(run.id, Snapshot(run.id, run)) for run in runs])
    return snaps


DEPENDENTS_LOADED_MAX = 16
"""Dependents fetched with a claimed step, so that its completion needs no further look."""


def _grant(
    claim: Claim,
    dispatch: Dispatch,
    chosen: list[Candidate],
    snaps: dict[int, Snapshot],
    now: int,
    chance: Chance,
) -> Generator[Request, Any, tuple[list[Work], list[Lease]]]:
    """Look at the steps again under their runs' locks, and grant."""
    by, remote = claim.by, claim.remote
    unknown = [(c.run_id, c.idx) for c in chosen if c.idx not in snaps[c.run_id].steps]
    if unknown:
        for step in (yield Query("load_steps", unknown)):
            snaps[step.run_id].put(("step", step.idx), step)
    steps: list[Step] = [step for c in chosen if (step := snaps[c.run_id].steps.get(c.idx)) is not None]
    works: dict[int, Work] = {}
    actor = f"worker:{by.worker}"
    leases: list[Lease] = []
    behind: list[tuple[int, int]] = []
    for step in steps:
        snap = snaps[step.run_id]
        run = snap.run
        assert run is not None
        if run.next_no == 1:
            snap.known |= {("open_waits",), ("all_waits",)}
        if run.steps_total == 1:
            snap.known.add(("open_steps",))
        if not step.recorded:
            snap.known.add(("checkpoints", step.idx))
        if step.dependents:
            try:
                missing = [idx for idx in dependents_of(step) if idx not in snap.steps]
            except ValueError as broken:
                dispatch.put_aside(step.run_id, broken)
                continue
            behind += [(step.run_id, idx) for idx in missing[:DEPENDENTS_LOADED_MAX]]
    if behind:
        for step in (yield Query("load_steps", list(dict.fromkeys(behind)))):
            snaps[step.run_id].put(("step", step.idx), step)
    resumed = [(s.run_id, s.idx) for s in steps if s.recorded]
    if any(is_long_load(snaps[run_id], (("checkpoints", idx),)) for run_id, idx in resumed):
        yield ASIDE
    if resumed:
        for row in (yield Query("load_step_checkpoints", resumed)):
            snaps[row.run_id].add(row)
        for run_id, idx in resumed:
            snaps[run_id].known.add(("checkpoints", idx))
    for step in steps:
        snap = snaps[step.run_id]
        assert snap.run is not None
        # What made it claimable is in the run's history up to here: the event that it is claimed after is its cause.
        context = Context(actor, "system", f"{step.run_id}/{snap.run.version}")
        command = ClaimStep(context=context, run_id=step.run_id, idx=step.idx, by=by)
        work = works.get(step.run_id)
        if work is None:
            work = Work(snap, [])
        try:
            decision = decide(snap, command, now, chance)
        except TenureError as refused:
            if refused.code not in TAKEN:
                dispatch.put_aside(step.run_id, refused)
            continue
        except (ValueError, TypeError, LookupError) as broken:
            dispatch.put_aside(step.run_id, broken)
            continue
        works[step.run_id] = work
        work.accept(Item(command, None, 0.0, {}), decision)
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
