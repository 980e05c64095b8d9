"""Fair share: weights are respected, and neither idleness nor a cap earns credit."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.kernel.fair_share import ClaimQueueKey, FairShares
from tenure.kernel.run_rows import Cap
from tests.cases import cases

LANES: list[ClaimQueueKey] = [(f"t{n}", "main") for n in range(6)]


def caps_of(weights: list[int]) -> dict[ClaimQueueKey, Cap]:
    return {(t, ""): Cap(t, "", weight=weight) for (t, _), weight in zip(LANES, weights, strict=False)}


def claims(
    shares: FairShares,
    lanes: list[ClaimQueueKey],
    caps: dict[ClaimQueueKey, Cap],
    times: int,
    limit: int = 1,
    blocked: tuple[ClaimQueueKey, ...] = (),
) -> list[ClaimQueueKey]:
    """The queues that were served. Every queue has endless work; the tenants of blocked queues are at their caps."""
    order: list[ClaimQueueKey] = []
    room = {tenant: 0 for tenant, _ in blocked}
    for _ in range(times):
        given_ = shares.serve(lanes, caps, limit, room)
        taken = [lane for lane, n in given_.items() for _ in range(n)]
        shares.served(lanes, caps, taken, blocked)
        order += taken
    return order


WEIGHTS = st.lists(st.integers(1, 8), min_size=2, max_size=6)


@given(WEIGHTS, st.integers(1, 7))
def test_weights_are_respected(weights: list[int], limit: int) -> None:
    lanes = LANES[: len(weights)]
    got = Counter(claims(FairShares(), lanes, caps_of(weights), 300 // limit, limit))
    total = sum(got.values())
    for lane, weight in zip(lanes, weights, strict=True):
        assert abs(got[lane] - total * weight / sum(weights)) <= len(lanes) + limit


@settings(max_examples=cases(50))
@given(WEIGHTS, st.integers(0, 120), st.booleans())
def test_an_idle_or_capped_queue_earns_no_credit(weights: list[int], away: int, capped: bool) -> None:
    lanes, caps, shares = LANES[: len(weights)], caps_of(weights), FairShares()
    claims(shares, lanes, caps, 20)
    back = lanes[0]
    if capped:
        assert back not in claims(shares, lanes, caps, away, blocked=(back,))
    else:
        claims(shares, lanes[1:], caps, away)
    n = 4 * sum(weights)
    got = Counter(claims(shares, lanes, caps, n))
    assert got[back] <= 4 * weights[0] + len(lanes) + 1


@settings(max_examples=cases(50))
@given(WEIGHTS, st.integers(0, 200), st.booleans())
def test_the_single_step_of_a_new_queue_is_served_within_one_round(
    weights: list[int], before: int, someone_capped: bool
) -> None:
    lanes, caps, shares = LANES[: len(weights)], caps_of([*weights, 1]), FairShares()
    blocked = (lanes[0],) if someone_capped else ()
    claims(shares, lanes, caps, before, blocked=blocked)
    new = ("zz", "main")
    served = claims(shares, [*lanes, new], caps, sum(weights) + len(weights) + 1, blocked=blocked)
    assert new in served


@given(st.integers(1, 200), st.integers(1, 50))
def test_a_capped_queue_does_not_delay_a_new_one(before: int, after: int) -> None:
    shares = FairShares()
    capped, busy, new = LANES[:3]
    claims(shares, [capped, busy], {}, 2)
    claims(shares, [capped, busy], {}, before, blocked=(capped,))
    got = Counter(claims(shares, [capped, busy, new], {}, 2 * after, blocked=(capped,)))
    assert abs(got[busy] - got[new]) <= 2


def test_a_queue_without_competitors_starts_at_the_last_position() -> None:
    shares = FairShares()
    first, second = LANES[:2]
    claims(shares, [first], {}, 100)
    claims(shares, [second], {}, 5)
    got = Counter(claims(shares, [first, second], {}, 20))
    assert abs(got[first] - got[second]) <= 6
