"""`tenure runner conformance`: a runner written with the standard library passes, and runners that break the protocol fail."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.runner_conformance.suite import SITUATIONS, SituationResult, run_suite

ROOT = Path(__file__).resolve().parents[2]
PLAIN = [sys.executable, str(ROOT / "examples" / "plain_runner.py")]
BROKEN = [sys.executable, str(ROOT / "tests" / "server" / "broken_runner.py")]
PAGE = ROOT / "docs" / "runner-protocol.md"


async def played(
    command: list[str], *only: str, patience: float = 60.0, commands: bool = False
) -> list[SituationResult]:
    return [one async for one in run_suite(command, only=only, patience=patience, commands=commands)]


@pytest.mark.guard_seconds(240)
async def test_a_runner_written_with_the_standard_library_passes() -> None:
    verdicts = await played(PLAIN, commands=True)
    assert [(one.name, one.seen) for one in verdicts if not one.passed] == []
    assert [one.name for one in verdicts] == [one.name for one in SITUATIONS]


@pytest.mark.guard_seconds(120)
@pytest.mark.parametrize(
    ("how", "situation", "seen"),
    [
        ("deaf", "cancel", "the end of the run (canceled)"),
        ("deaf", "expiry", "what was sent for the lost attempt afterwards is ['complete']"),
        ("forgetful", "repeated claim", "had no answer and was not repeated"),
        ("renumbering", "lost answers", "a repeated `complete` was another message"),
        ("gone", "claim", "the runner ended with code 3 while the run was expected to reach succeeded"),
    ],
)
async def test_a_runner_that_breaks_the_protocol_is_detected(how: str, situation: str, seen: str) -> None:
    patience = 5.0 if (how, situation) == ("deaf", "cancel") else 60.0
    (verdict,) = await played([*BROKEN, how], situation, patience=patience)
    assert not verdict.passed
    assert seen in verdict.seen, verdict.seen


@pytest.mark.guard_seconds(120)
async def test_every_field_of_a_runners_message_is_checked() -> None:
    claimed, wording = await played([*BROKEN, "sloppy"], "claim", "wording")
    assert claimed.passed
    assert "was answered 422 INVALID_INPUT" in wording.seen


def test_the_command_prints_a_table_and_exits_with_1_on_failure() -> None:
    tenure = [sys.executable, "-m", "tenure.cli", "runner", "conformance", "--only", "claim"]
    good = subprocess.run([*tenure, "--", *PLAIN], capture_output=True, text=True, timeout=120, check=False)
    assert (good.returncode, good.stderr) == (0, "")
    assert "pass  claim" in good.stdout
    assert "1 of 1 situations passed" in good.stdout
    bad = subprocess.run(
        [*tenure, "--json", "--", *BROKEN, "gone"], capture_output=True, text=True, timeout=120, check=False
    )
    assert bad.returncode == 1
    (row,) = json.loads(bad.stdout)
    assert (row["situation"], row["passed"]) == ("claim", False)
    unknown = subprocess.run(
        [*tenure[:-1], "nonsense", "--", *PLAIN], capture_output=True, text=True, timeout=120, check=False
    )
    assert unknown.returncode == 2
    nothing = subprocess.run(
        [*tenure, "--json", "--", "nosuchprog"], capture_output=True, text=True, timeout=120, check=False
    )
    assert (nothing.returncode, nothing.stdout) == (2, "")
    error = json.loads(nothing.stderr)["error"]
    assert error["code"] == "INVALID_INPUT"
    assert "cannot start 'nosuchprog': No such file or directory" in error["message"]


def test_the_page_lists_every_situation_of_the_tool() -> None:
    page = PAGE.read_text().partition("## Testing a runner")[2]
    source = (ROOT / "src" / "tenure" / "runner_conformance" / "suite.py").read_text()
    asked = {part.split('"')[0] for part in source.split('play.begin("')[1:]} | {
        "fail",
        "checkpoints",
        "size",
    }
    assert asked
    for do in asked:
        assert f"| `{do}` |" in page, do
    for name in ("TENURE_SERVER", "TENURE_KEY", "TENURE_CAPABILITIES", "TENURE_WORKER"):
        assert name in page
