"""What the README shows works as it is shown."""

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


def run(folder: Path, *command: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "TENURE_DB": ""}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_first_steps_in_python(tmp_path: Path) -> None:
    shown = run(tmp_path, sys.executable, "-c", block("python")).splitlines()
    assert shown == [
        "Step 'ok' waits for an approval of 'approve': 0 of 1 people said yes.",
        "{'image': 'app:main', 'try': 1}",
    ]
    assert (tmp_path / "runs.db").exists()


def test_the_first_steps_in_the_shell(tmp_path: Path) -> None:
    shown = run(tmp_path, "bash", "-euo", "pipefail", "-c", block("sh"))
    assert "the run is waiting_approval" in shown
    assert "Step 'ok' waits for an approval" in shown
    assert "fail NETWORK_DOWN; the run is retry_wait" in shown
    assert "retry_wait (RUNNING in delta-ci)" in shown
    assert "deploy (try 1): complete; the run is succeeded" in shown
    assert "no violation" in shown
