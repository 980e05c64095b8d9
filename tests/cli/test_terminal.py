"""Features of `tenure run` that need a terminal: a live table and approvals at the prompt."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.apps import app
from tests.cli.shell import Tenure, in_folder

PATIENCE_SECONDS = 40.0
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    (tmp_path / "desk.py").write_text(app("desk"))
    return in_folder(tmp_path, monkeypatch, capsys)


class Terminal:
    """A command on a pseudo-terminal."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.main, other = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
        environment.pop("TENURE_DB", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tenure.cli", *words],
            cwd=folder,
            stdin=other,
            stdout=other,
            stderr=other,
            env=environment,
            start_new_session=True,
        )
        os.close(other)
        self.seen = ""

    def until(self, text: str) -> None:
        """Read until the text is shown."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if not self._read():
                raise AssertionError(f"it ended without {text!r}: {self.seen}")

    def type(self, text: str) -> None:
        os.write(self.main, f"{text}\n".encode())

    def end(self) -> int:
        """Read to the end. Return the exit code."""
        while self._read():
            pass
        os.close(self.main)
        return self.process.wait(PATIENCE_SECONDS)

    def _read(self) -> bool:
        ready, _, _ = select.select([self.main], [], [], 1.0)
        if not ready:
            return self.process.poll() is None
        try:
            data = os.read(self.main, 65536)
        except OSError:  # the terminal is closed
            return False
        self.seen += _ESCAPES.sub("", data.decode(errors="replace"))
        return bool(data)


def test_an_approval_can_be_answered_while_watching_the_run(tenure: Tenure, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "run", "desk.py:desk", "-i", "ask=true")
    terminal.until("Approve? [y/n, Enter: later]")
    assert "Deploy app:main?" in terminal.seen
    assert '"image": "app:main"' in terminal.seen
    terminal.type("perhaps")
    terminal.type("y")
    assert terminal.end() == 0
    assert "approved" in terminal.seen
    assert "✓" in terminal.seen
    assert '"app:main"' in terminal.seen
    (line,) = tenure("runs", "list", "--json").json()
    (question,) = tenure("approvals", "list", "--run", line["id"], "--json").json()
    assert question["decided_by"] == f"uid:{os.getuid()}"
    assert tenure("doctor").code == 0


def test_a_rejection_with_a_reason_fails_the_run(tenure: Tenure, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "run", "desk.py:desk", "-i", "ask=true")
    terminal.until("Approve?")
    terminal.type("n")
    terminal.until("Why?")
    terminal.type("not on a Friday")
    assert terminal.end() == 1
    assert "not on a Friday" in terminal.seen
    (line,) = tenure("runs", "list", "--json").json()
    assert line["status"] == "failed"


def test_a_postponed_approval_can_be_answered_elsewhere(tenure: Tenure, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "run", "desk.py:desk", "-i", "ask=true", "--by", f"uid:{os.getuid()}")
    terminal.until("Approve?")
    terminal.type("y")
    terminal.until("APPROVER_IS_REQUESTER")
    (line,) = tenure("runs", "list", "--json").json()
    assert tenure("runs", "cancel", line["id"]).code == 0
    assert terminal.end() == 1


def test_an_approval_answered_elsewhere_closes_the_prompt(tenure: Tenure, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "run", "desk.py:desk", "-i", "ask=true")
    terminal.until("Approve?")
    (line,) = tenure("runs", "list", "--json").json()
    assert tenure("approvals", "approve", line["id"]).code == 0
    assert terminal.end() == 0
    assert "another person has answered" in terminal.seen


def test_ctrl_c_at_the_prompt_leaves_the_run(tenure: Tenure, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "run", "desk.py:desk", "-i", "ask=true")
    terminal.until("Approve?")
    terminal.process.send_signal(2)
    assert terminal.end() == 130
    assert "is not canceled" in terminal.seen
    (line,) = tenure("runs", "list", "--json").json()
    assert line["status"] == "waiting_approval"
    watched = Terminal(tmp_path, "runs", "watch", line["id"])
    watched.until("Approve?")
    watched.type("")
    watched.until("later: tenure approvals approve")
    watched.process.send_signal(2)
    assert watched.end() == 130
