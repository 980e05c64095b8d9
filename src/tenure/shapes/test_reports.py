"""What the tests of a job reported, and the history of single tests.

Law: everything is bounded. Whoever makes a report cuts what is too much; a server refuses it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Literal

import msgspec

from tenure.limits import (
    FAILED_CASES_PER_REPORT_MAX,
    LABEL_CHARS_MAX,
    PASSED_TESTS_PER_REPORT_MAX,
    TEST_MESSAGE_CHARS_MAX,
    TEST_NOTES_MAX,
)

TestName = Annotated[str, msgspec.Meta(min_length=1, max_length=LABEL_CHARS_MAX)]
"""`CLASS.NAME`, or the name alone: the same in every run of the test."""
_Text = Annotated[str, msgspec.Meta(max_length=TEST_MESSAGE_CHARS_MAX)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class FailedCase(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    test: TestName
    outcome: Literal["failed", "error"] = "failed"
    message: _Text = ""
    seconds: _Seconds = 0.0
    file: Annotated[str, msgspec.Meta(max_length=LABEL_CHARS_MAX)] = ""
    line: _Count | None = None


class TestReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The results of a job's tests."""

    __test__: ClassVar[bool] = False  # not for pytest

    passed: _Count = 0
    failed: _Count = 0
    """Failures and errors."""
    skipped: _Count = 0
    seconds: _Seconds = 0.0
    failed_cases: Annotated[tuple[FailedCase, ...], msgspec.Meta(max_length=FAILED_CASES_PER_REPORT_MAX)] = ()
    """The first of them; `failed` counts all."""
    notes: Annotated[tuple[_Text, ...], msgspec.Meta(max_length=TEST_NOTES_MAX)] = ()
    """Files that could not be read, and why."""
    passed_tests: Annotated[tuple[TestName, ...], msgspec.Meta(max_length=PASSED_TESTS_PER_REPORT_MAX)] = ()
    """Names of tests that passed. They matter only for tests that have failed before, and are not stored."""

    @property
    def tests(self) -> int:
        return self.passed + self.failed + self.skipped

    @property
    def complete(self) -> bool:
        """Whether it names every failed test, and every file could be read."""
        return self.passed > 0 and self.failed == len(self.failed_cases) and not self.notes


class TestHistory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a test that has failed before."""

    __test__: ClassVar[bool] = False

    passed: int = 0
    """How often it has passed since it first failed, as far as reports say so."""
    failed: int = 0
    flips: int = 0
    """How often it both passed and failed on one commit."""
    changes: int = 0
    """How often it passed after a failure, or failed after a pass."""
    last_failed_at: datetime | None = None

    @property
    def flaky(self) -> bool:
        """It failed and passed for the same commit, or it alternates."""
        return self.flips > 0 or self.changes >= ALTERNATES_MIN


ALTERNATES_MIN = 4
"""A test that has changed its outcome so often alternates."""


class StepTests(msgspec.Struct, frozen=True, kw_only=True):
    """The test report of an attempt of a step."""

    step: str
    attempt: int
    late: bool
    """Whether it arrived after the lease had ended. It counts in no history then."""
    reported_at: datetime
    report: TestReport
