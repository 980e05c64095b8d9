"""`tenure up`: each system is started whole, its story is played, and every part of it happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.systems import delta_ci
from tenure.systems.catalogue import SUMMARIES, System, load_system
from tenure.systems.delta_ci import play as play_delta_ci

STORY_SECONDS = 240


def play(name: str, folder: Path, *options: str) -> tuple[int, dict[str, object], str]:
    """Play a story as a command. Returns its exit code, its report, and what went wrong."""
    done = subprocess.run(
        [sys.executable, "-m", "tenure.cli", "up", name, "--once", "--json", "--folder", folder, *options],
        check=False,
        capture_output=True,
        text=True,
        timeout=STORY_SECONDS,
    )
    logs = [f"{log.name}: {log.read_text()[-1_500:]}" for log in sorted((folder / "logs").glob("*.log"))]
    report = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    return done.returncode, report, "\n".join([done.stdout[-2_000:], done.stderr[-3_000:], *logs])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.parametrize("name", [name for name in SUMMARIES if name != "delta-ci"])
def test_every_part_of_a_story_happens(
    name: str, store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    check_story(load_system(name), name, store, request, tmp_path)


@pytest.mark.timeout(300)
@pytest.mark.clause("DCI-20")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_change_is_planned_from_its_difference_and_what_was_tested_is_reused(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Delta CI: three pushes to a repository that git serves, their plans with reasons, and a reused job."""
    check_story(System(delta_ci.PARTS, play_delta_ci), "delta-ci", store, request, tmp_path)


def check_story(
    system: System, name: str, store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    options = [] if store == "sqlite" else ["--db", str(request.getfixturevalue("postgres_dsn"))]
    code, report, trouble = play(name, tmp_path / "up", *options)
    assert code == 0, trouble
    happened = report["happened"]
    assert isinstance(happened, list)
    assert {part["text"] for part in happened} == set(system.parts)


def test_an_unknown_system_is_refused_with_the_nearest_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tenure.cli", "up", "delta-cl", "--once"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "did you mean 'delta-ci'?" in done.stderr


@pytest.mark.timeout(300)
def test_a_system_keeps_running_and_says_how_to_look_around(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tenure.cli", "up", "git-with-intent", "--folder", str(tmp_path / "up")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as up:
        assert up.stdout is not None
        printed: list[str] = []
        try:
            for line in up.stdout:
                printed.append(line.strip())
                if "until Ctrl-C" in line:
                    break
            exported = next(line for line in printed if line.startswith("export "))
            variables = dict(part.split("=", 1) for part in exported.partition(";")[0].split()[1:])
            listed = subprocess.run(
                [sys.executable, "-m", "tenure.cli", "runs", "list", "--json"],
                env={"PATH": os.environ["PATH"], **variables},
                check=True,
                capture_output=True,
                text=True,
            )
            assert len(json.loads(listed.stdout)) == 2, "the run of the agent, and the run that undid it"
        finally:
            up.send_signal(signal.SIGINT)
            code = up.wait(60)
    assert code == 0, printed
