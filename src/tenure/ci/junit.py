"""JUnit XML: the results of tests, read from files that nobody trusts.

Laws:
1. A document type declaration is refused, and with it every entity: neither files nor memory can be reached through a report.
2. Bytes, depth, cases and the length of every kept text are limited. What exceeds a limit is a `ReportProblem`, never a crash.
3. The file is read piece by piece. Only the counts and the first failed cases are kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal
from xml.parsers import expat

from tenure.limits import (
    FAILED_CASES_PER_REPORT_MAX,
    LABEL_CHARS_MAX,
    PASSED_TESTS_PER_REPORT_MAX,
    TEST_MESSAGE_CHARS_MAX,
    TEST_NOTES_MAX,
)
from tenure.shapes.test_reports import FailedCase, TestReport

REPORT_BYTES_MAX = 64 << 20
REPORT_DEPTH_MAX = 64
REPORT_CASES_MAX = 500_000
ATTRIBUTES_MAX = 100
SECONDS_MAX = 1e9
_PIECE_BYTES = 64 * 1024
_OUTCOMES: dict[str, Literal["failed", "error", "skipped"]] = {
    "failure": "failed",
    "error": "error",
    "skipped": "skipped",
}


class ReportProblem(Exception):
    """The file is no JUnit report that can be read; the text says why."""


def read_junit(pieces: Iterable[bytes]) -> TestReport:
    """Read a report from its pieces. Raises ReportProblem."""
    reader = _Reader()
    size = 0
    try:
        for piece in pieces:
            size += len(piece)
            if size > REPORT_BYTES_MAX:
                raise ReportProblem(f"it has more than {REPORT_BYTES_MAX} bytes")
            for at in range(0, len(piece), _PIECE_BYTES):
                reader.parser.Parse(piece[at : at + _PIECE_BYTES], False)
        reader.parser.Parse(b"", True)
    except expat.ExpatError as fault:
        raise ReportProblem(f"it is not XML: {fault}") from None
    except (LookupError, ValueError, UnicodeError) as fault:  # an encoding that is unknown or wrong
        raise ReportProblem(f"it cannot be decoded: {str(fault)[:200]}") from None
    return reader.report()


class _Reader:
    def __init__(self) -> None:
        self.parser = expat.ParserCreate()
        self.parser.StartDoctypeDeclHandler = self._refuse
        self.parser.EntityDeclHandler = self._refuse
        self.parser.ExternalEntityRefHandler = self._refuse_reference
        self.parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self._depth = 0
        self._cases = 0
        self._passed = self._failed = self._skipped = 0
        self._seconds = 0.0
        self._failed_cases: list[FailedCase] = []
        self._passed_tests: list[str] = []
        self._case: dict[str, str] | None = None
        self._case_depth = 0
        self._outcome: Literal["passed", "failed", "error", "skipped"] = "passed"
        self._message = ""
        self._texts: list[str] | None = None
        self._text_chars = 0

    def _refuse(self, *_: object) -> None:
        raise ReportProblem("it declares a document type, which is refused")

    def _refuse_reference(self, *_: object) -> int:
        raise ReportProblem("it refers to an external entity, which is refused")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > REPORT_DEPTH_MAX:
            raise ReportProblem(f"its elements are nested more than {REPORT_DEPTH_MAX} deep")
        if len(attributes) > ATTRIBUTES_MAX:
            raise ReportProblem(f"an element has more than {ATTRIBUTES_MAX} attributes")
        if self._depth == 1 and name not in ("testsuites", "testsuite"):
            raise ReportProblem(
                f"its root is <{name[:60]}>; JUnit reports begin with <testsuites> or <testsuite>"
            )
        if name == "testcase" and self._case is None:
            self._cases += 1
            if self._cases > REPORT_CASES_MAX:
                raise ReportProblem(f"it has more than {REPORT_CASES_MAX} test cases")
            self._case, self._case_depth = attributes, self._depth
            self._outcome, self._message = "passed", ""
        elif self._case is not None and self._depth == self._case_depth + 1 and name in _OUTCOMES:
            outcome = _OUTCOMES[name]
            if self._outcome in ("passed", "skipped"):
                self._outcome = outcome
            if outcome != "skipped" and not self._message:
                self._message = attributes.get("message", "")[:TEST_MESSAGE_CHARS_MAX]
                self._texts, self._text_chars = [], len(self._message)

    def _text(self, text: str) -> None:
        if self._texts is not None and self._text_chars < TEST_MESSAGE_CHARS_MAX:
            self._texts.append(text[: TEST_MESSAGE_CHARS_MAX - self._text_chars])
            self._text_chars += len(text)

    def _end(self, name: str) -> None:
        if self._texts is not None and name in ("failure", "error"):
            text = "".join(self._texts).strip()
            if text and text not in self._message:
                self._message = f"{self._message}\n{text}".strip()
            self._texts = None
        if self._case is not None and self._depth == self._case_depth:
            self._count(self._case)
            self._case = None
        self._depth -= 1

    def _count(self, case: dict[str, str]) -> None:
        seconds = _to_seconds(case.get("time", ""))
        self._seconds += seconds
        name, group = case.get("name", ""), case.get("classname", "")
        test = _clean(f"{group}.{name}" if group else name or "(no name)", LABEL_CHARS_MAX)
        if self._outcome == "passed":
            self._passed += 1
            if len(self._passed_tests) < PASSED_TESTS_PER_REPORT_MAX:
                self._passed_tests.append(test)
            return
        if self._outcome == "skipped":
            self._skipped += 1
            return
        self._failed += 1
        if len(self._failed_cases) < FAILED_CASES_PER_REPORT_MAX:
            line = case.get("line", "")
            self._failed_cases.append(
                FailedCase(
                    test=test,
                    outcome=self._outcome,
                    message=_clean(self._message, TEST_MESSAGE_CHARS_MAX, keep="\n\t"),
                    seconds=seconds,
                    file=_clean(case.get("file", ""), LABEL_CHARS_MAX),
                    line=int(line) if line.isascii() and line.isdigit() and len(line) < 9 else None,
                )
            )

    def report(self) -> TestReport:
        return TestReport(
            passed=self._passed,
            failed=self._failed,
            skipped=self._skipped,
            seconds=round(min(self._seconds, SECONDS_MAX), 3),
            failed_cases=tuple(self._failed_cases),
            passed_tests=tuple(self._passed_tests),
        )


def _clean(text: str, chars_max: int, keep: str = "") -> str:
    """Without control characters, which could deceive a terminal."""
    return "".join(char if char.isprintable() or char in keep else "?" for char in text[:chars_max])


def _to_seconds(text: str) -> float:
    try:
        seconds = float(text.replace(",", "")[:40])
    except ValueError:
        return 0.0
    return seconds if 0 <= seconds <= SECONDS_MAX else 0.0


def join_reports(reports: Iterable[TestReport]) -> TestReport:
    """Several files of one job as one report."""
    every = list(reports)
    return TestReport(
        passed=sum(each.passed for each in every),
        failed=sum(each.failed for each in every),
        skipped=sum(each.skipped for each in every),
        seconds=min(sum(each.seconds for each in every), SECONDS_MAX),
        failed_cases=tuple(case for each in every for case in each.failed_cases)[
            :FAILED_CASES_PER_REPORT_MAX
        ],
        passed_tests=tuple(test for each in every for test in each.passed_tests)[
            :PASSED_TESTS_PER_REPORT_MAX
        ],
        notes=tuple(note for each in every for note in each.notes)[:TEST_NOTES_MAX],
    )
