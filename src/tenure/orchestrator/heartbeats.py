"""Heartbeats write only the lease's expiry: no event, no version, no run lock, and never in anybody's way."""

from __future__ import annotations

from tenure.kernel.commands import Heartbeat
from tenure.kernel.decide.leases import Reply, extended
from tenure.kernel.model import Attempt, Step
from tenure.store.port import BeatKey, Query, Transaction

LeaseKey = tuple[int, int, int]
QUIET = frozenset({"running", "uploading", "canceling"})
"""States in which a heartbeat changes nothing but the expiry; in `starting` the first one begins the work."""


def beat(beats: list[Heartbeat]) -> Transaction[dict[LeaseKey, Reply]]:
    """Extend these leases; those that could not be are left out and are told why the long way."""
    keys = [(b.run_id, b.idx, b.n) for b in beats]
    steps: list[Step] = yield Query("load_steps", list(dict.fromkeys((r, i) for r, i, _ in keys)))
    attempts: list[Attempt] = yield Query("load_attempts", keys)
    now: int = (yield Query("now"))[0].now_us
    step_of = {(s.run_id, s.idx): s for s in steps}
    attempt_of = {(a.run_id, a.idx, a.n): a for a in attempts}
    rows = []
    expires: dict[LeaseKey, int] = {}
    for b, key in zip(beats, keys, strict=True):
        step, attempt = step_of.get(key[:2]), attempt_of.get(key)
        if step is None or attempt is None or step.attempt != b.n or attempt.lease != "active":
            continue
        if attempt.state not in QUIET or attempt.expires_at <= now or b.seq <= attempt.seq:
            continue
        expires[key] = extended(step, attempt, now)
        rows.append((*key, b.seq, expires[key], b.progress or attempt.progress))
    if not rows:
        return {}
    written: list[BeatKey] = yield Query("beat", rows, (now,))
    return {
        (w.run_id, w.idx, w.n): Reply(cancel=w.state == "canceling", expires_at=expires[w.run_id, w.idx, w.n])
        for w in written
    }
