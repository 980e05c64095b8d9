"""The story of `tenure up agent-runs`: agents, published documents, and readers without the orchestrator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.systems.agent_runs import PARTS


@pytest.mark.clause("AGR-12")
def test_every_part_of_the_story_happens(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tenure.cli",
            "up",
            "agent-runs",
            "--once",
            "--json",
            "--folder",
            tmp_path / "up",
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
    )
    logs = {log.name: log.read_text()[-1500:] for log in (tmp_path / "up" / "logs").glob("*.log")}
    assert done.returncode == 0, (done.stdout, done.stderr[-2000:], logs)
    assert {part["text"] for part in json.loads(done.stdout)["happened"]} == set(PARTS)
