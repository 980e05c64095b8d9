"""Reading JUnit XML from files that nobody trusts."""

import pytest

from tenure.ci.junit import (
    REPORT_BYTES_MAX,
    REPORT_DEPTH_MAX,
    ReportProblem,
    join_reports,
    read_junit,
)
from tenure.limits import FAILED_CASES_PER_REPORT_MAX, TEST_MESSAGE_CHARS_MAX

REPORT = b"""<?xml version="1.0"?>
<testsuites><testsuite name="all">
  <testcase classname="a.B" name="good" time="0.5"/>
  <testcase classname="a.B" name="bad" time="1.25" file="a.py" line="7"><failure message="1 != 2">Traceback</failure></testcase>
  <testcase name="broken"><error message="no fixture"/></testcase>
  <testcase classname="a.B" name="later"><skipped/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_counted_and_its_failures_are_named() -> None:
    report = read_junit([REPORT[:100], REPORT[100:]])
    assert (report.passed, report.failed, report.skipped, report.seconds) == (1, 2, 1, 1.75)
    bad, broken = report.failed_cases
    assert (bad.test, bad.outcome, bad.message, bad.file, bad.line) == (
        "a.B.bad",
        "failed",
        "1 != 2\nTraceback",
        "a.py",
        7,
    )
    assert (broken.test, broken.outcome) == ("broken", "error")
    assert report.passed_tests == ("a.B.good",)


BOMB = b"""<?xml version="1.0"?><!DOCTYPE t [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>
<testsuites><testcase name="&b;"/></testsuites>"""
OUTSIDE = b"""<?xml version="1.0"?><!DOCTYPE t [<!ENTITY a SYSTEM "file:/etc/passwd">]><testsuites><testcase name="&a;"/></testsuites>"""


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not XML"),
        (b"no xml at all", "not XML"),
        (REPORT[:300], "not XML"),
        (b"\x00\x01\xff", "not XML"),
        (b"<?xml version='1.0' encoding='nothing'?><testsuites/>", "encod"),
        (b"<html/>", "its root is <html>"),
        (BOMB, "document type"),
        (OUTSIDE, "document type"),
        (b"<testsuites>" + b"<a>" * REPORT_DEPTH_MAX, "nested"),
        (b"<testsuites " + b" ".join(b"a%d='1'" % n for n in range(200)) + b"/>", "attributes"),
    ],
)
def test_a_file_that_is_no_report_is_a_problem_and_never_a_crash(content: bytes, problem: str) -> None:
    with pytest.raises(ReportProblem, match=problem):
        read_junit([content])


def test_a_report_is_limited_in_bytes_cases_and_texts() -> None:
    with pytest.raises(ReportProblem, match="bytes"):
        read_junit([b"<testsuites>", *([b" " * (1 << 20)] * (REPORT_BYTES_MAX >> 20))])
    case = b"<testcase name='%d'><failure>" + b"x" * (TEST_MESSAGE_CHARS_MAX + 10) + b"</failure></testcase>"
    many = [case % number for number in range(FAILED_CASES_PER_REPORT_MAX + 5)]
    report = read_junit([b"<testsuite>", *many, b"</testsuite>"])
    assert report.failed == FAILED_CASES_PER_REPORT_MAX + 5
    assert len(report.failed_cases) == FAILED_CASES_PER_REPORT_MAX
    assert {len(each.message) for each in report.failed_cases} == {TEST_MESSAGE_CHARS_MAX}


def test_control_characters_of_a_report_reach_no_terminal() -> None:
    report = read_junit(
        ["<testsuite><testcase name='a\u202e\u009bb'><failure/></testcase></testsuite>".encode()]
    )
    assert report.failed_cases[0].test == "a??b"


def test_reports_of_several_files_are_joined() -> None:
    joined = join_reports([read_junit([REPORT]), read_junit([REPORT])])
    assert (joined.passed, joined.failed, len(joined.failed_cases)) == (2, 4, 4)
