"""Parsing profiles: an invalid profile is refused with the place of its problem, and words are looked up."""

import pytest

from tenure.errors import TenureError
from tenure.kernel import profiles
from tenure.kernel.machines import RUN
from tenure.kernel.profile import parse_profile
from tenure.kernel.refinement import prove_profile
from tests.profiles.samples import PLAIN

OWN_RUN = """[run]
source = "here"
states = ["open", "done"]
terminal = ["done"]

[run.words]
created = "open"
planning = "open"
plan_failed = { keep = true }
queued = "open"
running = "open"
retry_wait = "open"
waiting_approval = "open"
waiting_external = "open"
canceling = { keep = true }
succeeded = "done"
failed = "done"
timed_out = "done"
canceled = "done"

[[run.edges]]
from = "open"
to = "done"
"""
OWN = PLAIN.replace('[run]\nkernel = "There is no document."\n', OWN_RUN)


def refused(text: str) -> list[tuple[str, str]]:
    with pytest.raises(TenureError) as error:
        parse_profile(text)
    assert error.value.code == "PROFILE_INVALID"
    return [(detail.path, detail.problem) for detail in error.value.details]


def test_the_built_in_profiles_are_the_five_documents_and_tenure() -> None:
    assert profiles.names() == (
        "agent-runs",
        "approval-runs",
        "delta-ci",
        "git-with-intent",
        "governed-runtime",
        "tenure",
    )
    assert [profiles.get(name).name for name in profiles.names()] == list(profiles.names())


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TenureError, match=r"PROFILE_NOT_FOUND.*delta-ci") as error:
        profiles.get("../delta-ci")
    assert error.value.code == "PROFILE_NOT_FOUND"


def test_a_profile_is_read_once() -> None:
    assert profiles.get("delta-ci") is profiles.get("delta-ci")


def test_the_smallest_profile_shows_the_kernels_words() -> None:
    plain = parse_profile(PLAIN)
    assert plain.run.states == RUN.states
    assert prove_profile(plain).problems == ()
    assert plain.timing.jitter == 0.2
    assert plain.timing.attempts_max == 4


def test_a_profile_may_have_two_words() -> None:
    assert prove_profile(parse_profile(OWN)).problems == ()


@pytest.mark.parametrize(
    ("old", "new", "path", "problem"),
    [
        ("name =", "name", "", "not TOML"),
        ('name = "plain"', 'name = "Plain one"', "name", "lower-case letters"),
        ('title = "Plain"', 'title = " "', "title", "must not be empty"),
        ('title = "Plain"\n', "", "", "missing required field `title`"),
        ('title = "Plain"', 'title = "Plain"\ncolour = "red"', "", "unknown field `colour`"),
        ('"requeue"', '"pray"', "recovery", "Invalid enum value"),
        ("retries = 3", 'retries = "three"', "timing.retries", "Expected `int`, got `str`"),
        ("retries = 3", "retries = -1", "timing.retries", "0 to 1000"),
        ("retries = 3", "retries = 3\njitter = 1.5", "timing.jitter", "0 to 1"),
        ("retries = 3", "retries = 3\njitter = nan", "timing.jitter", "0 to 1"),
        ("lease_seconds = 30.0", "lease_seconds = inf", "timing.lease_seconds", "a number over 0"),
        ("planning_seconds = 60.0", "planning_seconds = 0.0", "timing.planning_seconds", "a number over 0"),
        ("base_seconds = 1.0", "base_seconds = -1.0", "timing.backoff", "not negative"),
        ('created = "open"\n', "", "run.words", "no word for the kernel's state 'created'"),
        ('created = "open"', "created = { keep = true }", "run.words.created", "first state must have a fixed word"),
        ('queued = "open"', "queued = {}", "run.words.queued", "must be a word"),
        ('queued = "open"', 'queued = "ajar"', "run.words.queued", "'ajar' is not among run.states"),
        ('queued = "open"', 'queued = "open"\nsleeping = "open"', "run.words.sleeping", "no such state"),
        (
            'queued = "open"', 'queued = { by_attempt = { failed = "open" } }',
            "run.words.queued", "only a step's word",
        ),
        ('"open", "done"]', '"open", "done", "open"]', "run.states", "must not list a word twice"),
        ('terminal = ["done"]', 'terminal = ["over"]', "run.terminal", "'over' is not among"),
        ('to = "done"', 'to = "gone"', "run.edges[0]", "'gone' is not among"),
        ('to = "done"', 'to = ["done", "done"]', "run.edges[0]", "open -> done is listed twice"),
        ('from = "open"', 'from = "done"', "run.edges[0]", "'done' is terminal and has no way out"),
        ('to = "done"', 'to = "done"\nowner = "Nobody"', "run.edges[0].owner", "'Nobody' is not among owners"),
        (
            'to = "done"', 'to = "done"\n[[run.extra]]\nfrom = "open"\nto = "open"\nreason = ""',
            "run.extra[0].reason", "needs a reason",
        ),
        (
            'to = "done"', 'to = "done"\n[[run.indirect]]\nfrom = "open"\nto = "open"\nhow = "somehow"',
            "run.indirect[0]", "name the 'moves' or the 'fact'",
        ),
        ("[timing]", '[owners]\nBoss = "king"\n[timing]', "owners.Boss", "'king' is not one of"),
        ("[timing]", '[[rules]]\npattern = ""\nretryable = true\n[timing]', "rules[0].pattern", "must not be empty"),
        ('default_retryable', 'reported_word = "TOLD"\ndefault_retryable', "reported_word", "not among run.states"),
        ('[step]\n', '[step]\nsource = "x"\n', "step", "cannot be combined with words or edges"),
    ],
)  # fmt: skip
def test_a_malformed_profile_is_refused_with_the_place_of_its_problem(
    old: str, new: str, path: str, problem: str
) -> None:
    assert old in OWN
    found = refused(OWN.replace(old, new, 1))
    assert any(path == where and problem in what for where, what in found), found


def test_all_problems_are_named_at_once() -> None:
    text = OWN.replace("retries = 3", "retries = -1").replace('queued = "open"', 'queued = "ajar"')
    assert [path for path, _ in refused(text)] == ["timing.retries", "run.words.queued"]


def test_an_attempt_outcome_must_be_known() -> None:
    mangled = PLAIN.replace(
        '[step]\nkernel = "There is no document."\n',
        '[step]\nstates = ["s"]\n[step.words]\nretry_wait = { by_attempt = { exploded = "s" } }\n',
    )
    assert ("step.words.retry_wait", "an attempt has no state 'exploded'") in refused(mangled)


def test_a_heartbeat_over_a_third_of_the_lease_is_refused() -> None:
    with pytest.raises(TenureError, match=r"HEARTBEAT_TOO_SLOW.*at most 10 s") as error:
        parse_profile(PLAIN.replace("heartbeat_seconds = 10.0", "heartbeat_seconds = 10.1"))
    assert error.value.code == "HEARTBEAT_TOO_SLOW"
    assert error.value.details[0].path == "timing.heartbeat_seconds"


@pytest.mark.parametrize("name", profiles.names())
def test_no_shipped_profile_loses_a_lease_with_two_heartbeats(name: str) -> None:
    timing = profiles.get(name).timing
    assert timing.heartbeat_seconds * 3 <= timing.lease_seconds


# ------------------------------------------------------------------------------------------------ words


def test_a_word_may_keep_the_last_one() -> None:
    profile = profiles.get("git-with-intent")
    assert profile.word("run", "canceling", last="waiting_external") == "waiting_external"
    assert profile.word("run", "canceling") == "pending", (
        "an object without an earlier word shows its first word"
    )


def test_a_word_may_depend_on_the_outcome_of_the_attempt() -> None:
    profile = profiles.get("delta-ci")
    assert profile.word("step", "retry_wait", "failed", last="UPLOADING") == "FAILED"
    assert profile.word("step", "retry_wait", "timed_out", last="RUNNING") == "TIMED_OUT"
    assert profile.word("step", "retry_wait", "stale", last="RUNNING") == "RUNNING"


@pytest.mark.parametrize(("entity", "state"), [("run", "asleep"), ("planet", "created")])
def test_words_for_unknown_states_are_refused(entity: str, state: str) -> None:
    with pytest.raises(TenureError, match="INVALID_INPUT"):
        profiles.get("delta-ci").word(entity, state)
