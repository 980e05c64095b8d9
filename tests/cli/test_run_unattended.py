"""`tenure run` without a terminal: refusals, reports of waits, and SIGTERM."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.apps import app
from tests.cli.shell import Tenure, in_folder

USES = """\
name: lonely
profile: tenure
steps:
  - id: send
    uses: no_such_tool
"""


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    (tmp_path / "alone.py").write_text(app("alone"))
    (tmp_path / "lonely.yaml").write_text(USES)
    return in_folder(tmp_path, monkeypatch, capsys)


def test_a_missing_tool_is_refused_before_the_run_starts(tenure: Tenure, tmp_path: Path) -> None:
    refused = tenure("run", "lonely.yaml")
    assert refused.code == 1
    assert "step 'send' needs the tool 'no_such_tool', which is not here" in refused.err
    assert "--app MODULE" in refused.err
    assert not (tmp_path / "tenure.db").exists()
    assert tenure("run", "lonely.yaml", "--detach").code == 0, "another worker may have the tool"


@pytest.mark.parametrize("quiet", [(), ("--no-watch",), ("--json",)])
def test_a_wait_is_reported_once_and_times_out(tenure: Tenure, quiet: tuple[str, ...]) -> None:
    ended = tenure("run", "alone.py:alone", "-i", "ask=true", "--wait-for", "1.5s", *quiet)
    (line,) = tenure("runs", "list", "--json").json()
    assert (ended.code, line["status"]) == (3, "waiting_approval")
    assert ended.err.count(f"tenure approvals approve {line['id']}") == 1
    assert f"it has not ended within 1.5s; stopped; {line['id']} is not canceled" in ended.err
    assert "tenure worker alone.py" in ended.err
    assert tenure("doctor").code == 0


def test_sigterm_stops_this_process_and_not_the_run(tenure: Tenure, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tenure.cli", "run", "alone.py:alone", "-i", "event=go"]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if "waiting for an event" in line:
                break
        running.send_signal(signal.SIGTERM)
        printed = running.stderr.read()
    assert running.returncode == 143
    assert "is not canceled, and its recorded steps are kept" in printed
    (left,) = tenure("runs", "list", "--json").json()
    assert tenure("signal", left["id"], "go").out == "taken\n"
