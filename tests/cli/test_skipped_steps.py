"""The output of commands about steps that were skipped by their conditions."""

from pathlib import Path

import pytest

from tests.cli.shell import Tenure, in_folder

FILE = """name: w
inputs: {dry: {type: boolean, default: true}}
steps:
  - {id: say, run: [echo, hello]}
  - {id: label, run: [echo, "${{ steps.say.output.stdout }}"], if: steps.say.output.stdout == "bye"}
  - {id: gate, approval: {title: Really?}, if: inputs.dry == false}
"""


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    (tmp_path / "w.yaml").write_text(FILE)
    return in_folder(tmp_path, monkeypatch, capsys)


def test_show_timeline_and_history_explain_skipped_steps(tenure: Tenure) -> None:
    ran = tenure("run", "w.yaml")
    assert ran.code == 0, ran.err
    (line,) = tenure("runs", "list", "--json").json()
    assert line["steps_skipped"] == 2
    run = line["id"]
    shown = " ".join(tenure("runs", "show", run).out.split())
    assert 'skipped label (steps.say.output.stdout == "bye"), gate (inputs.dry == false)' in shown
    assert "label step succeeded (skipped) CONDITION_FALSE:" in shown
    printed = " ".join(tenure("runs", "events", run, "--timeline").out.split())
    assert "gate skipped CONDITION_FALSE: inputs.dry == false" in printed
    events = " ".join(tenure("runs", "events", run).out.split())
    assert "gate: skipped (CONDITION_FALSE: inputs.dry == false)" in events
