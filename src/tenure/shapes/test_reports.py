"""What the tests of a job reported, and the history of single tests.

Law: everything is bounded. A report that is too large is cut by whoever makes it; a server refuses it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Literal

import msgspec

from tenure.limits import (
    FAILED_TESTS_PER_REPORT_MAX,
    LABEL_CHARS_MAX,
    PASSED_TESTS_PER_REPORT_MAX,
    TEST_MESSAGE_CHARS_MAX,
    TEST_NOTES_MAX,
    TEST_SUITES_MAX,
)

TestId = Annotated[str, msgspec.Meta(min_length=1, max_length=LABEL_CHARS_MAX)]
"""A test's name in its repository: `suite::class::name`, as its report says."""
_Name = Annotated[str, msgspec.Meta(max_length=LABEL_CHARS_MAX)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class FailedTest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    id: TestId
    kind: Literal["failed", "error"] = "failed"
    """`error`: the test itself broke, for example in its set-up."""
    suite: _Name = ""
    file: _Name = ""
    line: _Count = 0
    seconds: _Seconds = 0.0
    message: Annotated[str, msgspec.Meta(max_length=TEST_MESSAGE_CHARS_MAX)] = ""


class TestSuite(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    __test__: ClassVar[bool] = False  # not a test of pytest

    name: _Name
    tests: _Count = 0
    failed: _Count = 0
    errors: _Count = 0
    skipped: _Count = 0
    seconds: _Seconds = 0.0


class TestReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The tests of one attempt of a job."""

    __test__: ClassVar[bool] = False

    suites: Annotated[tuple[TestSuite, ...], msgspec.Meta(max_length=TEST_SUITES_MAX)] = ()
    failed: Annotated[tuple[FailedTest, ...], msgspec.Meta(max_length=FAILED_TESTS_PER_REPORT_MAX)] = ()
    passed: Annotated[tuple[TestId, ...], msgspec.Meta(max_length=PASSED_TESTS_PER_REPORT_MAX)] = ()
    """Names of tests that passed. They matter only for tests that have failed before, and are not stored."""
    notes: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=TEST_MESSAGE_CHARS_MAX)], ...],
        msgspec.Meta(max_length=TEST_NOTES_MAX),
    ] = ()
    """What could not be read, such as a file that is no XML."""


class TestHistory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is known of a test that has failed before."""

    __test__: ClassVar[bool] = False

    failed: int
    """How often it has failed."""
    passed: int = 0
    """How often it has passed since it first failed."""
    changes: int = 0
    """How often it passed after a failure, or failed after a pass."""
    same_commit: int = 0
    """How often it failed and passed for the same commit."""
    flaky: bool = False
    """It failed and passed for the same commit, or it alternates."""
    last_failed_at: datetime | None = None


class StepTests(msgspec.Struct, frozen=True, kw_only=True):
    """The test report of an attempt of a step."""

    step: str
    attempt: int
    late: bool
    at: datetime
    tests: int
    failures: int
    """Failed tests and errors."""
    skipped: int
    seconds: float
    report: TestReport
