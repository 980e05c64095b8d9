"""Whose work is served next: weighted fairness over tenants and workspaces, and caps. Pure.

Laws:
1. Stride scheduling: each lane (tenant, workspace) has a pass; the lowest is served next, and serving
   raises it by 1 / share. A tenant's share is its weight, split over its workspaces by theirs, so a
   tenant gains nothing by having many workspaces.
2. A lane that comes back from being idle starts at the lowest pass of the others: idleness earns nothing. Nor
   does being held back by a cap: only lanes that can be served say what the lowest pass is.
3. A lane with a million steps and one with a single step are alike to the scheduler: only whether there
   is work counts, so the single step is served within one round.
4. Caps are headroom: what a tenant, and within it a workflow, may still lease.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tenure.kernel.model import Cap

Lane = tuple[str, str]

PASSES_KEPT_MAX = 10_000


class Shares:
    """The passes of the lanes seen so far."""

    def __init__(self) -> None:
        self._passes: dict[Lane, float] = {}
        self._seen: dict[Lane, int] = {}
        """When a lane was last there, counted in claims."""
        self._claims = 0
        self._floor = 0.0
        """The lowest pass when somebody was served last: where those start who meet nobody."""

    def serve(
        self, lanes: Sequence[Lane], caps: dict[Lane, Cap], slots: int, room: dict[str, int]
    ) -> dict[Lane, int]:
        """How many steps each lane may have of `slots`; `caps` by (tenant, scope), `room` by capped tenant."""
        stride = _strides(lanes, caps)
        left = dict(room)
        given = dict.fromkeys(lanes, 0)
        open_lanes = [lane for lane in lanes if left.get(lane[0], 1) > 0]
        passes, _ = self._standing(open_lanes, stride)
        seen = self._seen
        while slots > 0 and open_lanes:
            lane = min(open_lanes, key=lambda lane: (passes[lane], seen.get(lane, 0)))
            given[lane] += 1
            passes[lane] += stride[lane]
            slots -= 1
            if lane[0] in left:
                left[lane[0]] -= 1
                if left[lane[0]] <= 0:
                    open_lanes = [other for other in open_lanes if other[0] != lane[0]]
        return given

    def _standing(self, lanes: Sequence[Lane], stride: dict[Lane, float]) -> tuple[dict[Lane, float], float]:
        """The passes of lanes that can be served, and the lowest among those that were there last time. Whoever was
        away starts within one turn of it, neither before nor far behind."""
        known, seen = self._passes, self._seen
        last = max((seen[lane] for lane in lanes if lane in known), default=0)
        floor = min(
            (known[lane] for lane in lanes if lane in known and seen[lane] == last), default=self._floor
        )
        passes = {}
        for lane in lanes:
            at = known.get(lane, floor)
            if seen.get(lane, 0) != last:
                at = min(max(at, floor), floor + stride[lane])
            passes[lane] = at
        return passes, floor

    def served(
        self,
        lanes: Sequence[Lane],
        caps: dict[Lane, Cap],
        taken: Iterable[Lane],
        blocked: Collection[Lane] = (),
    ) -> None:
        """Account for what was really taken; a lane that had nothing is not charged for it. `blocked` are lanes
        whose work nobody may take now."""
        counts: dict[Lane, int] = {}
        for lane in taken:
            counts[lane] = counts.get(lane, 0) + 1
        stride = _strides(lanes, caps)
        passes, floor = self._standing([lane for lane in lanes if lane not in blocked], stride)
        self._floor = floor
        if len(self._passes) > PASSES_KEPT_MAX:
            self._passes.clear()
            self._seen.clear()
        self._claims += 1
        for lane in lanes:
            at = passes.get(lane)
            if at is None:
                at = max(self._passes.get(lane, floor), floor)
            self._passes[lane] = at + stride[lane] * counts.get(lane, 0)
            self._seen[lane] = self._claims


def _strides(lanes: Sequence[Lane], caps: dict[Lane, Cap]) -> dict[Lane, float]:
    weight = {lane: _weight(lane, caps) for lane in lanes}
    total: dict[str, float] = {}
    for (tenant, _), (_, part) in weight.items():
        total[tenant] = total.get(tenant, 0.0) + part
    return {lane: total[lane[0]] / (own * part) for lane, (own, part) in weight.items()}


def _weight(lane: Lane, caps: dict[Lane, Cap]) -> tuple[float, float]:
    tenant, workspace = lane
    own = caps.get((tenant, ""))
    part = caps.get((tenant, f"ws:{workspace}"))
    return float(own.weight if own else 1), float(part.weight if part else 1)


def headroom(caps: dict[Lane, Cap], usage: dict[Lane, int]) -> tuple[dict[str, int], dict[Lane, int]]:
    """What capped tenants, and capped workflows by (tenant, workflow), may still lease."""
    tenants: dict[str, int] = {}
    workflows: dict[Lane, int] = {}
    for (tenant, scope), cap in caps.items():
        if cap.max_concurrency is None:
            continue
        if scope == "":
            used = sum(leases for (t, _), leases in usage.items() if t == tenant)
            tenants[tenant] = cap.max_concurrency - used
        elif scope.startswith("wf:"):
            workflow = scope[3:]
            workflows[tenant, workflow] = cap.max_concurrency - usage.get((tenant, workflow), 0)
    return tenants, workflows


def rate_full_until(
    caps: dict[str, Cap], workflow: str, rates: dict[str, tuple[int, int]], window_us: int
) -> int | None:
    """Until when a tenant (by scope '') or a workflow ('wf:NAME') may start no run; None: it may.

    `rates` has, by workflow, how many rated runs were admitted within the window and when the first was.
    """
    until: int | None = None
    for scope, counted in (
        ("", list(rates.values())),
        (f"wf:{workflow}", [rates[workflow]] if workflow in rates else []),
    ):
        cap = caps.get(scope)
        if cap is None or cap.max_runs_per_min is None:
            continue
        if sum(runs for runs, _ in counted) >= cap.max_runs_per_min:
            full = min((first for _, first in counted), default=0) + window_us
            until = full if until is None else max(until, full)
    return until
