"""The codes of failures, by rules; and what the profile's retry rules make of them."""

import pytest

from tenure.ci.failure_rules import (
    LINE_CHARS_MAX,
    TAIL_BYTES_MAX,
    JobFailure,
    Phase,
    classify,
    classify_tests,
)
from tenure.ci.job import JobFailureRule
from tenure.kernel import profiles
from tenure.shapes.test_reports import FailedCase, TestHistory

CASES: list[tuple[str, str, bool]] = [
    ("fatal: unable to access 'https://h/r.git/': Could not resolve host: h", "NETWORK_GIT", True),
    ("error: RPC failed; curl 92 HTTP/2 stream 0 was not closed cleanly", "NETWORK_GIT", True),
    (
        "pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='pypi.org', port=443): Read timed out.",
        "REGISTRY_FETCH_PIP",
        True,
    ),
    ("npm ERR! code ECONNRESET", "REGISTRY_FETCH_NPM", True),
    ("npm error network request to https://registry.npmjs.org/x failed", "REGISTRY_FETCH_NPM", True),
    ("E: Failed to fetch http://deb.debian.org/x.deb  503  Service Unavailable", "REGISTRY_FETCH_APT", True),
    ("curl: (28) Connection timed out after 30001 milliseconds", "NETWORK_UNREACHABLE", True),
    ("cp: error writing 'x': No space left on device", "INFRA_DISK_FULL", True),
    ("g++: internal compiler error: Killed (program cc1plus)", "INFRA_OUT_OF_MEMORY", True),
    ("MemoryError", "INFRA_OUT_OF_MEMORY", True),
    ("main.c:3:5: error: expected ';' before 'return'", "COMPILE_ERROR", False),
    ("error[E0382]: borrow of moved value: `x`", "COMPILE_ERROR", False),
    ("src/a.ts(3,7): error TS2322: Type 'string' is not assignable", "COMPILE_ERROR", False),
    ("SyntaxError: invalid syntax", "COMPILE_ERROR", False),
    ("src/x.py:1:8: F401 `os` imported but unused", "LINT_VIOLATION", False),
    ("Found 3 errors in 2 files (checked 20 source files)", "LINT_VIOLATION", False),
    ("1 file would be reformatted, 20 files left unchanged", "LINT_VIOLATION", False),
    ("=========== 2 failed, 30 passed in 1.20s ===========", "TEST_FAILURE", False),
    ("--- FAIL: TestAdd (0.00s)", "TEST_FAILURE", False),
    ("test result: FAILED. 3 passed; 1 failed; 0 ignored", "TEST_FAILURE", False),
    ("something that nobody knows", "COMMAND_FAILED", False),
]


@pytest.mark.parametrize(("line", "code", "retryable"), CASES)
def test_output_becomes_a_code_that_the_retry_rules_know(line: str, code: str, retryable: bool) -> None:
    failure = JobFailure(
        phase="commands", exit_code=1, output=f"before\n\x1b[31m{line}\x1b[0m\nafter\n".encode()
    )
    assert classify(failure) == code
    assert profiles.get("delta-ci").retryable(code) is retryable


@pytest.mark.parametrize(
    ("phase", "exit_code", "code"),
    [
        ("commands", -9, "INFRA_OUT_OF_MEMORY"),
        ("commands", 137, "INFRA_OUT_OF_MEMORY"),  # as a shell reports it
        ("commands", -25, "JOB_DISK_EXCEEDED"),
        ("commands", 7, "COMMAND_FAILED"),
        ("checkout", 128, "CHECKOUT_FAILED"),
        ("restore", None, "CACHE_FETCH_FAILED"),
        ("services", 1, "SERVICE_FAILED"),
        ("upload", None, "INFRA_UPLOAD_FAILED"),
    ],
)
def test_signals_and_phases_have_codes(phase: Phase, exit_code: int | None, code: str) -> None:
    assert classify(JobFailure(phase=phase, exit_code=exit_code)) == code


def test_own_rules_come_first_and_all_of_their_conditions_count() -> None:
    rules = (
        JobFailureRule(code="NEVER", output="("),
        JobFailureRule(code="NETWORK_LAB", output=r"lab-\d+ is busy", exit_codes=(3,), phase="commands"),
        JobFailureRule(code="LICENSE", signals=("SIGTERM",)),
    )
    output = b"lab-12 is busy\n"
    assert classify(JobFailure(phase="commands", exit_code=3, output=output), rules) == "NETWORK_LAB"
    assert classify(JobFailure(phase="commands", exit_code=4, output=output), rules) == "COMMAND_FAILED"
    assert classify(JobFailure(phase="services", exit_code=3, output=output), rules) == "SERVICE_FAILED"
    assert classify(JobFailure(phase="commands", exit_code=-15), rules) == "LICENSE"


def test_an_expression_that_never_ends_is_given_up_and_the_others_count() -> None:
    rules = (
        JobFailureRule(code="FIRST", output="^nothing$"),
        JobFailureRule(code="SLOW", output=r"^(a+)+$"),
        JobFailureRule(code="LAST", exit_codes=(1,)),
    )
    assert classify(JobFailure(phase="commands", exit_code=1, output=b"a" * 64 + b"!\n"), rules) == "LAST"


def test_built_in_expressions_end_on_hostile_output() -> None:
    """An expression that tries again and again would not end within the time of a test."""
    pieces = [
        "a",
        " ",
        "=",
        ":1",
        "/",
        "error ",
        "fatal: ",
        "E: ",
        "npm ERR! ",
        "failed to pull ",
        "1",
        "\\",
        "*** ",
        "dial tcp ",
    ]
    for piece in pieces:
        line = (piece * LINE_CHARS_MAX)[:LINE_CHARS_MAX] + "\n"
        output = (line * (TAIL_BYTES_MAX // len(line))).encode()
        assert classify(JobFailure(phase="commands", exit_code=1, output=output))


def test_tests_are_flaky_only_if_each_failed_one_is_known_to_be() -> None:
    cases = (FailedCase(test="a"), FailedCase(test="b"))
    flaky = TestHistory(passed=5, failed=2, flips=1)
    steady = TestHistory(passed=5, failed=2)
    assert classify_tests("TEST_FAILURE", cases, 2, {"a": flaky, "b": flaky}) == "FLAKY_TEST"
    assert classify_tests("TEST_FAILURE", cases, 2, {"a": flaky, "b": steady}) == "TEST_FAILURE"
    assert classify_tests("TEST_FAILURE", cases, 2, {"a": flaky}) == "TEST_FAILURE"
    assert classify_tests("TEST_FAILURE", cases, 3, {"a": flaky, "b": flaky}) == "TEST_FAILURE"
    assert classify_tests("COMPILE_ERROR", cases, 2, {"a": flaky, "b": flaky}) == "COMPILE_ERROR"
    assert profiles.get("delta-ci").retryable("FLAKY_TEST")


def test_a_report_with_failed_tests_is_a_test_failure_whatever_was_printed() -> None:
    assert (
        classify(JobFailure(phase="commands", exit_code=1, output=b"hm\n", failed_tests=1)) == "TEST_FAILURE"
    )
