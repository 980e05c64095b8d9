"""Every example runs as its first lines say, and prints the expected lines."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

ELSEWHERE = {"plain_runner": "tests/server/test_runner_conformance.py"}
"""Examples that need a server, and the tests that run them."""
SHOWN = {
    "hello": r"""
        greeting Ada \.\.\.
        greeting Grace \.\.\.
        greeting Katherine \.\.\.
        Hello, Ada!
        Hello, Grace!
        Hello, Katherine!
    """,
    "approval": r"""
        paying 20 EUR to Ada \(key run_\S+/pay\)
        Ada got 20 EUR
        asked: Refund 900 EUR to Bob\? \{'customer': 'Bob', 'euros': 900, 'orders': 7\}
        asked: Refund 5000 EUR to Eve\? \{'customer': 'Eve', 'euros': 5000, 'orders': 7\}
        grace said yes
        paying 900 EUR to Bob \(key run_\S+/pay\)
        Bob got 900 EUR
        Eve got nothing: there was no such order
    """,
    "fan_out": r"""
        east at 9, 1 without an answer \(rate 1\.1\)
    """,
    "schedule": r"""
        nightly-report: 30 2 \* \* \* in Europe/Berlin
        next: 0[01]:[03]0 UTC
        next: 0[01]:[03]0 UTC
        next: 0[01]:[03]0 UTC
        3721 orders in eu, us
    """,
    "agent": r"""
        Mont Blanc is 1844 m higher than the Zugspitze\.
        ask_model: \{'text': 'Mont Blanc', 'tool': 'look_up'\}
        look_up: 4806
        ask_model#2: \{'text': 'Zugspitze', 'tool': 'look_up'\}
        look_up#2: 2962
        \(continues as a new run\)
        ask_model: \{'text': '4806 - 2962', 'tool': 'calculate'\}
        calculate: 1844
        ask_model#2: .*
        propose
        4 calls of the model, 0\.0016 USD
        Publish the answer: approved by grace, after the run had ended
    """,
    "declared": r"""
        release: build, scan, gate, announce
        chat: built v1\.1, 0 findings
        Step 'gate' waits for an approval .*
        chat: built v2\.0, 0 findings
        build: succeeded, try 1
        scan: succeeded, try 2
        gate: succeeded
        announce: succeeded, try 1
    """,
    "triage/story": r"""
        policy version 1 is active: olga requested it, ada approved
        ServiceNow reported INC0042 twice: \[201, 200\]
        one run; a card in Slack asks:
        Assign the incident [0-9a-f]{32}:
        assignment_group = Network operations
        the agent's reason: I think INC0042 is about the network: it says 'VPN drops all calls'
        olga clicks Approve: APPROVER_IS_REQUESTER: .*
        ada clicks Approve: apr_\S+ is requested\.
        ada clicks Approve: apr_\S+ is requested\. You had already decided this\.
        bob clicks Approve: apr_\S+ is approved\.
        the run succeeded: \{'incident': 'INC0042', 'assigned': 'Network operations'\}
        INC0042 is assigned to Network operations
        the run spent 400 of 50000 millionths of a USD
        evidence of \d+ events, succeeded, signed by the key we trust: True
        undo: servicenow\.incident\.assign undone; INC0042 is assigned to Service desk
    """,
}
"""The output of each example, line by line."""
IN_ANY_ORDER = {"approval"}
"""Examples whose concurrent runs may print in either order."""


def test_every_example_is_tested() -> None:
    paths = (path.relative_to(EXAMPLES).with_suffix("") for path in EXAMPLES.rglob("*.py"))
    assert {path.as_posix() for path in paths} == {*SHOWN, *ELSEWHERE}


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_shows_what_it_is_there_for(name: str, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TENURE_DB"}
    done = subprocess.run(
        (sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    lines = [line.strip() for line in done.stdout.splitlines()]
    patterns = [line.strip() for line in SHOWN[name].strip().splitlines()]
    if name in IN_ANY_ORDER:
        lines, patterns = sorted(lines), sorted(patterns, key=lambda pattern: pattern.replace("\\", ""))
    assert len(lines) == len(patterns), done.stdout
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line), f"{line!r} is not {pattern!r}"
    assert list(tmp_path.iterdir()) == [], "the database of an example is temporary"


def test_an_example_uses_the_database_that_is_named(tmp_path: Path) -> None:
    environment = {**os.environ, "TENURE_DB": str(tmp_path / "mine.db")}
    subprocess.run(
        (sys.executable, str(EXAMPLES / "hello.py")), cwd=tmp_path, env=environment, check=True, timeout=60
    )
    assert (tmp_path / "mine.db").exists()
