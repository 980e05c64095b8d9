"""Backoff formulas, jitter, caps, and the classification of failures."""

from collections import Counter
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.kernel import profiles
from tenure.kernel.retry import NOMINAL_SECONDS_MAX, Backoff, FailureRule, delay_us, is_retryable

SECOND = 1_000_000


def delays(name: str, count: int, jitter: float = 0.0) -> list[float]:
    backoff = profiles.get(name).timing.backoff
    return [delay_us(backoff, n, jitter, Random(1), None) / SECOND for n in range(1, count + 1)]


def test_approval_runs_waits_two_to_the_attempts_times_its_base() -> None:
    base = profiles.get("approval-runs").timing.backoff.base_seconds
    assert base is not None
    assert delays("approval-runs", 4) == [2**attempts * base for attempts in (1, 2, 3, 4)]


def test_agent_runs_waits_one_two_four_seconds() -> None:
    assert delays("agent-runs", 3) == [1, 2, 4]


def test_governed_runtime_waits_5_30_120_600_seconds_and_then_600_again() -> None:
    assert delays("governed-runtime", 6) == [5, 30, 120, 600, 600, 600]


def test_an_exponential_backoff_stops_at_its_cap() -> None:
    backoff = Backoff("exponential", base_seconds=1, cap_seconds=10)
    assert [backoff.nominal_seconds(n) for n in range(1, 7)] == [1, 2, 4, 8, 10, 10]


def test_the_delay_of_the_ten_thousandth_failure_does_not_overflow() -> None:
    assert Backoff("exponential", base_seconds=1).nominal_seconds(10_000) == NOMINAL_SECONDS_MAX
    assert Backoff("exponential", base_seconds=1, cap_seconds=60).nominal_seconds(10_000) == 60


def test_failure_number_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        Backoff("list", seconds=(1.0,)).nominal_seconds(0)


BACKOFFS = st.one_of(
    st.builds(
        Backoff,
        st.just("exponential"),
        base_seconds=st.floats(0, 3600),
        factor=st.floats(1, 10),
        first_exponent=st.integers(0, 5),
        cap_seconds=st.none() | st.floats(0, 86_400),
    ),
    st.builds(Backoff, st.just("list"), seconds=st.lists(st.floats(0, 86_400), min_size=1).map(tuple)),
)


@given(BACKOFFS, st.integers(1, 2000), st.floats(0, 1), st.integers())
def test_jitter_adds_at_most_its_share(backoff: Backoff, n: int, jitter: float, seed: int) -> None:
    nominal = round(backoff.nominal_seconds(n) * SECOND)
    assert nominal <= delay_us(backoff, n, jitter, Random(seed), None) <= nominal * (1 + jitter)


@given(BACKOFFS, st.integers(1, 50), st.floats(0, 1), st.integers(), st.integers(-(10**12), 10**12))
def test_a_delay_is_never_past_the_deadline_or_negative(
    backoff: Backoff, n: int, jitter: float, seed: int, until_cap_us: int
) -> None:
    free = delay_us(backoff, n, jitter, Random(seed), None)
    assert delay_us(backoff, n, jitter, Random(seed), until_cap_us) == max(0, min(free, until_cap_us))


def test_the_same_generator_gives_the_same_delays() -> None:
    assert delays("agent-runs", 5, jitter=0.2) == delays("agent-runs", 5, jitter=0.2)


@pytest.mark.parametrize("name", profiles.names())
def test_jitter_spreads_a_thousand_simultaneous_failures(name: str) -> None:
    """Failure 20: with the profile's own jitter, no hundredth of the window gets a herd."""
    timing, rng = profiles.get(name).timing, Random(20)
    drawn = [delay_us(timing.backoff, 1, timing.jitter, rng, None) for _ in range(1000)]
    nominal = timing.backoff.nominal_seconds(1) * SECOND
    window = nominal * timing.jitter
    assert window >= SECOND / 5
    assert max(drawn) - min(drawn) > 0.9 * window
    herd = Counter(int((delay - nominal) * 100 / window) for delay in drawn)
    assert max(herd.values()) < 30
    assert len(herd) > 95


# --------------------------------------------------------------------------------------- malformed ones


@pytest.mark.parametrize(
    ("problem", "data"),
    [
        ("needs 'seconds'", {"kind": "list"}),
        ("takes 'seconds' only", {"kind": "list", "seconds": [1], "base_seconds": 1}),
        ("needs 'base_seconds'", {"kind": "exponential"}),
        ("takes no 'seconds'", {"kind": "exponential", "base_seconds": 1, "seconds": [1]}),
        ("at least 1", {"kind": "exponential", "base_seconds": 1, "factor": 0.5}),
        ("not negative", {"kind": "exponential", "base_seconds": -1}),
        ("not negative", {"kind": "list", "seconds": [1, float("nan")]}),
        ("'first_exponent'", {"kind": "exponential", "base_seconds": 1, "first_exponent": -1}),
        ("Invalid enum value", {"kind": "linear"}),
        ("unknown field", {"kind": "list", "seconds": [1], "second": 2}),
    ],
)
def test_an_invalid_backoff_is_refused(problem: str, data: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        msgspec.convert(data, Backoff)


# -------------------------------------------------------------------------------------- classification


def test_the_first_rule_that_matches_decides() -> None:
    rules = [FailureRule("HTTP_429", True), FailureRule("HTTP_4*", False), FailureRule("HTTP_?01", True)]
    assert [is_retryable(rules, True, code) for code in ("HTTP_429", "HTTP_404", "HTTP_401", "HTTP_501", "X")] == [
        True, False, False, True, True,
    ]  # fmt: skip


def test_codes_are_case_sensitive() -> None:
    assert is_retryable([FailureRule("NETWORK*", True)], False, "network") is False


def test_delta_ci_retries_only_transient_failures() -> None:
    profile = profiles.get("delta-ci")
    for code in ("NETWORK", "INFRA", "RUNNER_STARTUP", "CACHE_FETCH", "REGISTRY_FETCH", "FLAKY_TEST"):
        assert profile.retryable(code), code
    for code in ("COMPILE_ERROR", "TEST_FAILURE", "LINT", "SOMETHING_NEW"):
        assert not profile.retryable(code), code


def test_governed_runtime_retries_timeouts_5xx_and_rate_limits_only() -> None:
    profile = profiles.get("governed-runtime")
    for code in ("NETWORK_TIMEOUT", "HTTP_500", "HTTP_503", "HTTP_429", "RATE_LIMITED"):
        assert profile.retryable(code), code
    for code in (
        "HTTP_400", "HTTP_422", "INVALID_PAYLOAD", "POLICY_DENIED", "APPROVAL_REJECTED", "APPROVAL_EXPIRED",
        "SOMETHING_NEW",
    ):  # fmt: skip
        assert not profile.retryable(code), code


@pytest.mark.parametrize("name", profiles.names())
def test_the_kernels_own_codes_mean_the_same_everywhere(name: str) -> None:
    profile = profiles.get(name)
    for code in ("STEP_TIMED_OUT", "STEP_LOST"):
        assert profile.retryable(code), code
    for code in (
        "RUN_RESUME_FAILED",
        "RUN_ORPHANED",
        "PAYLOAD_TOO_LARGE",
        "CHECKPOINT_CONFLICT",
        "CHECKPOINT_LIMIT",
    ):
        assert not profile.retryable(code), code
