"""The code of a failed job, by rules about exit code, signal, output and phase.

Laws:
1. The rules are tried in order, the repository's own before the built-in ones. The first that matches gives the code. Without one, the phase does.
2. The codes are those that the retry rules of the profile `delta-ci` know. A failure that no rule knows is not retryable.
3. Output is untrusted. Only its end is read, line by line, each cut to a fixed length. Built-in expressions have no nested or adjacent
   repetitions, so a line costs linear time. Expressions of a repository run in a process of their own that is ended after `OWN_RULES_SECONDS`.
4. A job whose tests failed is flaky only if each of those tests is known to be (`TestHistory.flaky`).
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from tenure.ci.job import JobFailureRule
from tenure.shapes.test_reports import FailedCase, TestHistory

TAIL_BYTES_MAX = 64 * 1024
"""The end of the output that rules look at."""
LINE_CHARS_MAX = 1_000
OWN_RULES_SECONDS = 2.0
OWN_RULES_MAX = 100
EXPRESSION_CHARS_MAX = 500

Phase = Literal["checkout", "restore", "services", "commands", "upload"]
PHASES: tuple[Phase, ...] = ("checkout", "restore", "services", "commands", "upload")

MEMORY_EXCEEDED = "JOB_MEMORY_EXCEEDED"
PROCESSES_EXCEEDED = "JOB_PROCESSES_EXCEEDED"
DISK_EXCEEDED = "JOB_DISK_EXCEEDED"
EXCEEDED_CODES = {"memory": MEMORY_EXCEEDED, "processes": PROCESSES_EXCEEDED, "disk": DISK_EXCEEDED}
"""The codes of jobs that were ended at a limit of their own. Another attempt would end there, too."""
TEST_FAILURE = "TEST_FAILURE"
FLAKY_TEST = "FLAKY_TEST"
PHASE_CODES: dict[Phase, str] = {
    "checkout": "CHECKOUT_FAILED",
    "restore": "CACHE_FETCH_FAILED",
    "services": "SERVICE_FAILED",
    "commands": "COMMAND_FAILED",
    "upload": "INFRA_UPLOAD_FAILED",
}


class JobFailure(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a failed job."""

    phase: Phase
    exit_code: int | None = None
    """Negative: the number of the signal. None: nothing was started."""
    output: bytes = b""
    """The end of what the job printed."""
    failed_tests: int = 0

    @property
    def signal(self) -> str:
        """The name of the signal that ended the program, also where a shell reports it as 128 + N; empty if there is none."""
        code = self.exit_code
        number = -code if code is not None and code < 0 else (code or 0) - 128
        try:
            return signal.Signals(number).name if number > 0 else ""
        except ValueError:
            return ""


class BuiltInRule(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    exit_codes: tuple[int, ...] = ()
    signals: tuple[str, ...] = ()
    output: str = ""
    phases: tuple[Phase, ...] = ()
    tests_failed: bool = False
    """Whether a report with failed tests is needed."""


BUILT_IN: tuple[BuiltInRule, ...] = (
    # ------------------------------------------------------------------------------- the machine
    BuiltInRule(code=DISK_EXCEEDED, signals=("SIGXFSZ",)),
    BuiltInRule(
        code=PROCESSES_EXCEEDED,
        output=r"Cannot fork|fork: (retry: )?Resource temporarily unavailable|can't start new thread|pthread_create failed"
        r"|unable to create (new )?native thread",
    ),
    BuiltInRule(
        code="INFRA_DISK_FULL", output=r"No space left on device|ENOSPC|Disk quota exceeded|disk I/O error"
    ),
    BuiltInRule(
        code="INFRA_OUT_OF_MEMORY",
        output=r"Cannot allocate memory|std::bad_alloc|java\.lang\.OutOfMemoryError|JavaScript heap out of memory"
        r"|fatal error: runtime: out of memory|internal compiler error: Killed|^MemoryError|memory allocation of \d+ bytes failed"
        r"|virtual memory exhausted",
    ),
    BuiltInRule(code="INFRA_OUT_OF_MEMORY", signals=("SIGKILL",)),
    BuiltInRule(
        code="INFRA_SIGNAL", signals=("SIGBUS", "SIGPWR", "SIGHUP")
    ),  # the file system or the machine failed under the job
    # ------------------------------------------------------------------------------- networks
    BuiltInRule(
        code="NETWORK_GIT",
        phases=("checkout",),
        output=r"Could not resolve host|Connection (timed out|refused|reset)|early EOF|RPC failed|unexpected disconnect"
        r"|The remote end hung up|gnutls_handshake|SSL_ERROR|Operation timed out|HTTP 5\d\d|returned error: 5\d\d|Connection closed by",
    ),
    BuiltInRule(
        code="REGISTRY_FETCH_PIP",
        output=r"ReadTimeoutError|NewConnectionError|Failed to establish a new connection|pip\._vendor\.urllib3\.exceptions"
        r"|ConnectTimeoutError|ProtocolError\('Connection|Could not fetch URL|IncompleteRead\(",
    ),
    BuiltInRule(
        code="REGISTRY_FETCH_NPM",
        output=r"npm (ERR!|error) (code|errno) (ECONNRESET|ETIMEDOUT|EAI_AGAIN|ENOTFOUND|ECONNREFUSED|E5\d\d|ERR_SOCKET_TIMEOUT)"
        r"|npm (ERR!|error) network|ERR_PNPM_FETCH_5|An unexpected error occurred: .https?://",
    ),
    BuiltInRule(
        code="REGISTRY_FETCH_APT",
        output=r"^E: Failed to fetch|^E: Unable to fetch some archives|Temporary failure resolving|Hash Sum mismatch",
    ),
    BuiltInRule(
        code="REGISTRY_FETCH_IMAGE",
        output=r"toomanyrequests|error pulling image|manifest unknown: i/o timeout|failed to (pull|fetch) .{0,200}(timeout|EOF|50\d)",
    ),
    BuiltInRule(
        code="REGISTRY_FETCH_PACKAGE",
        output=r"Could not transfer artifact|Could not GET .https?:|spurious network error|failed to download from .https?:"
        r"|dial tcp .{0,100}(i/o timeout|connection refused)|proxyconnect tcp",
    ),
    BuiltInRule(
        code="NETWORK_GIT",
        output=r"^fatal: unable to access|^fatal: Could not read from remote repository|^fatal: the remote end hung up"
        r"|^error: RPC failed|^fatal: early EOF",
    ),
    BuiltInRule(
        code="NETWORK_UNREACHABLE",
        output=r"Temporary failure in name resolution|Could not resolve host|Name or service not known|Network is unreachable"
        r"|Connection reset by peer|TLS handshake timeout|EAI_AGAIN|^curl: \((5|6|7|28|35|52|55|56)\)|ETIMEDOUT",
    ),
    # ------------------------------------------------------------------------------- the change itself
    BuiltInRule(code=TEST_FAILURE, tests_failed=True),
    BuiltInRule(
        code="COMPILE_ERROR",
        output=r"^\S{1,300}:\d+(:\d+)?: (fatal )?error: |^error(\[E\d{4}\])?: |^error TS\d+: |\): error (TS|CS)\d+: |^SyntaxError: "
        r"|^IndentationError: |\[ERROR\] COMPILATION ERROR|BUILD FAILED .{0,50}compile|^collect2: error: |undefined reference to "
        r"|^make(\[\d+\])?: \*\*\* .{0,200}\.o\] Error",
    ),
    BuiltInRule(
        code="LINT_VIOLATION",
        output=r"^Found \d+ errors?( in \d+ files?)?[. (]|would reformat|files? would be reformatted|\d+ problems? \(\d+ errors?"
        r"|^\S{1,300}:\d+:\d+: [A-Z]{1,4}\d{2,5} |clippy::|golangci-lint|Code style issues (found|were found)",
    ),
    BuiltInRule(
        code=TEST_FAILURE,
        output=r"^=+ .{0,200}\d+ failed|^FAILED \(|^FAILED \S|^--- FAIL: |^test result: FAILED|Tests: +\d+ failed|There (was|were) \d+ failures?"
        r"|^not ok \d+|Failures: [1-9]|^FAIL\b|tests? failed",
    ),
)
"""What machines fail by comes before what a change fails by: a compiler without memory reports errors, too."""


def classify(failure: JobFailure, own: Sequence[JobFailureRule] = ()) -> str:
    """The code of a failure. Blocks for up to `OWN_RULES_SECONDS`."""
    lines = tail_lines(failure.output)
    for rule, matched in zip(own, _match_own(own, lines), strict=True):
        if matched and _fits(failure, rule.exit_codes, rule.signals, (rule.phase,) if rule.phase else ()):
            return rule.code
    for built_in in BUILT_IN:
        if not _fits(failure, built_in.exit_codes, built_in.signals, built_in.phases):
            continue
        if built_in.tests_failed and not failure.failed_tests:
            continue
        if built_in.output:
            expression = re.compile(built_in.output)
            if not any(expression.search(line) for line in lines):
                continue
        return built_in.code
    return PHASE_CODES[failure.phase]


def classify_tests(
    code: str, failed: Sequence[FailedCase], counted: int, history: Mapping[str, TestHistory]
) -> str:
    """FLAKY_TEST in place of TEST_FAILURE, if every failed test is known to be flaky. `counted` is the number of failed tests: a report
    names only the first ones."""
    if code != TEST_FAILURE or not failed or counted > len(failed):
        return code
    known = all(each.test in history and history[each.test].flaky for each in failed)
    return FLAKY_TEST if known else code


def tail_lines(output: bytes) -> list[str]:
    """The last lines of an output, without colours, each cut to its length."""
    text = output[-TAIL_BYTES_MAX:].decode(errors="replace")
    return [_COLOUR.sub("", line)[:LINE_CHARS_MAX] for line in text.splitlines()]


_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")


def _fits(
    failure: JobFailure, exit_codes: Sequence[int], signals: Sequence[str], phases: Sequence[str]
) -> bool:
    return (
        (not exit_codes or failure.exit_code in exit_codes)
        and (not signals or failure.signal in signals)
        and (not phases or failure.phase in phases)
    )


_MATCHER = """
import json, re, sys
expressions, lines = json.load(sys.stdin)
for number, text in enumerate(expressions):
    try:
        expression = re.compile(text)
    except (re.error, RecursionError, OverflowError):
        continue
    if any(expression.search(line) for line in lines):
        print(number, flush=True)
"""


def _match_own(rules: Sequence[JobFailureRule], lines: list[str]) -> list[bool]:
    """Which rules match the output. A rule without an expression does."""
    matched = [not rule.output for rule in rules]
    tried = [
        number
        for number, rule in enumerate(rules[:OWN_RULES_MAX])
        if rule.output and len(rule.output) <= EXPRESSION_CHARS_MAX
    ]
    if not tried or not lines:
        return matched
    request = msgspec.json.encode(([rules[number].output for number in tried], lines))
    try:
        ended = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _MATCHER],
            input=request,
            capture_output=True,
            env={},
            timeout=OWN_RULES_SECONDS,
            check=False,
        )
        found = ended.stdout
    except subprocess.TimeoutExpired as late:  # the expressions before the slow one have answered
        found = late.stdout or b""
    for text in found.split():
        matched[tried[int(text)]] = True
    return matched
