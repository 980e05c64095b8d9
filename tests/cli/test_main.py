"""The `tenure` command: fast help, suggestions, completion, and options that every command has."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.cli.main import COMMANDS, COMPLETE_VARIABLE, app
from tests.cli.shell import Tenure, in_folder

SECONDS_OF_HELP = 0.3
HEAVY = (
    "tenure.engine",
    "tenure.store",
    "tenure.kernel",
    "tenure.orchestrator",
    "structlog",
    "asyncio",
    "cel",
)


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    monkeypatch.setenv("COLUMNS", "160")
    return in_folder(tmp_path, monkeypatch, capsys)


def processor_seconds(*words: str) -> tuple[float, str]:
    """Run Python. Return its CPU time, which the load of the machine hardly changes, and its output."""
    before = os.times()
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    after = os.times()
    return after.children_user - before.children_user, done.stdout


def test_help_loads_no_heavy_modules() -> None:
    program = (
        "import sys; from tenure.cli.main import main; sys.argv = ['tenure', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    took, out = min(processor_seconds("-c", program) for _ in range(3))
    bare, _ = min(processor_seconds("-c", "import typer, rich.console") for _ in range(3))
    assert out.splitlines()[-1] == "[]"
    assert took < max(SECONDS_OF_HELP, 2.5 * bare), f"{took:.2f} s, of which typer and rich {bare:.2f} s"


def test_every_command_is_listed_in_the_help_and_documented(tenure: Tenure) -> None:
    help_text = tenure("--help").out
    for name, line in COMMANDS.items():
        assert name in help_text
        assert line.text in help_text
    for name in COMMANDS:
        if name == "bench":
            continue  # the bench prints its own help
        own = tenure(name, "--help")
        assert own.code == 0, name
        assert "Usage: tenure " + name in own.out
    assert tenure().out == help_text
    assert "docs/" not in help_text, "an installed package has no docs folder"
    assert tenure("lifecycle", "show", "tenure").code == 0, "a command that the help names does not work"
    assert tenure("--version").out.startswith("tenure 0.")


def test_a_mistyped_command_gets_a_suggestion(tenure: Tenure) -> None:
    for given, meant in (("rnus", "runs"), ("aprovals", "approvals"), ("docter", "doctor")):
        ended = tenure(given)
        assert ended.code == 2
        assert f"Did you mean '{meant}'" in ended.err
    inner = tenure("runs", "lst")
    assert inner.code == 2
    assert "Did you mean 'list'" in inner.err
    assert tenure("--no-such-option").code == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_completion_script(tenure: Tenure, shell: str) -> None:
    script = tenure("completion", shell).out
    assert COMPLETE_VARIABLE in script
    assert "tenure" in script


def completed(folder: Path, line: str) -> str:
    environment = {
        **os.environ,
        COMPLETE_VARIABLE: "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - (0 if line.endswith(" ") else 1)),
    }
    environment.pop("TENURE_DB", None)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv[0] = 'tenure'; from tenure.cli.main import main; main()",
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def test_commands_and_ids_are_completed(tenure: Tenure, tmp_path: Path) -> None:
    assert tenure("completion", "tcsh").code == 2
    (tmp_path / "one.json").write_text('[{"name": "build"}]')
    run = tenure("runs", "create", "--workflow", "w", "--plan", "one.json").out.strip()
    assert {"run", "runs"} <= set(completed(tmp_path, "tenure ru").split())
    assert "cancel" in completed(tmp_path, "tenure runs can")
    assert run in completed(tmp_path, "tenure runs show run_")


def test_a_finished_run_is_deleted_after_confirmation(tenure: Tenure, tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('[{"name": "build"}]')
    run = tenure("runs", "create", "--workflow", "w", "--plan", "one.json").out.strip()
    assert "RUN_" in tenure("runs", "delete", run, "--yes").err, "an open run was deleted"
    tenure("runs", "cancel", run)
    assert tenure("runs", "delete", run).code == 2, "the run was deleted without confirmation"
    assert tenure("runs", "delete", run, "--yes", "--json").json() == {"run": run, "deleted": True}
    assert "RUN_NOT_FOUND" in tenure("runs", "show", run).err
    assert tenure("doctor").code == 0


# ------------------------------------------------------------------------------------- init and workflows


def test_init_creates_a_working_project_and_overwrites_nothing(tenure: Tenure, tmp_path: Path) -> None:
    made = tenure("init", "hello")
    assert made.code == 0
    assert "tenure run app.py --input name=Ada" in made.out
    folder = tmp_path / "hello"
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "app.py",
        "test_app.py",
        "workflow.yaml",
    ]
    (folder / "app.py").write_text("mine")
    again = tenure("init", "hello")
    assert again.code == 1
    assert "app.py: exists already" in again.err
    assert (folder / "app.py").read_text() == "mine"
    assert tenure("workflows", "check", "hello/workflow.yaml").code == 0
    assert tenure("init", "other", "--json").json()["files"][0] == "app.py"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", "-W", "error"]
    tested = subprocess.run(words, cwd=tmp_path / "other", capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout
    assert "2 passed" in tested.stdout


def test_files_are_checked_with_line_numbers(tenure: Tenure, tmp_path: Path) -> None:
    tenure("init")
    (tmp_path / "bad.yaml").write_text("name: x\nsteps:\n  - id: a\n    rum: [echo]\n")
    ended = tenure("workflows", "check", "workflow.yaml", "bad.yaml")
    assert ended.code == 1
    assert "greeting" in ended.out
    assert "bad.yaml:3:5: steps[0]" in ended.err
    answers = tenure("workflows", "check", "workflow.yaml", "bad.yaml", "--json")
    assert answers.code == 1
    fine, bad = json.loads(answers.out)
    assert (fine["valid"], fine["steps"]) == (True, ["write", "ok", "send"])
    assert (bad["valid"], bad["error"]["code"]) == (False, "WORKFLOW_INVALID")
    schema = tenure("workflows", "schema").json()
    assert schema["type"] == "object"


def test_workflows_are_registered_and_shown(tenure: Tenure, tmp_path: Path) -> None:
    tenure("init")
    assert tenure("workflows", "list").code == 1, "there is no database yet"
    (row,) = tenure("workflows", "register", "workflow.yaml", "--json").json()
    assert (row["name"], row["kind"]) == ("greeting", "declared")
    shown = tenure("workflows", "show", "greeting").out
    assert "write (run), ok (approval), send (run)" in shown
    assert shown.startswith(f"{'workflow:':<{len('unconfirmed: ')}}greeting"), (
        "the column must be wider than the longest name"
    )
    assert tenure("workflows", "show", "greeting", "--json").json()["versions"] == [row["version"]]
    missing = tenure("workflows", "show", "greting")
    assert missing.code == 1
    assert "workflows list" in missing.err
    (tmp_path / "v.yaml").write_text('name: v\nversion: "1"\nsteps:\n  - {id: a, run: "true"}\n')
    assert tenure("workflows", "register", "v.yaml").out == "registered v version 1\n"
    (tmp_path / "v.yaml").write_text('name: v\nversion: "1"\nsteps:\n  - {id: b, run: "true"}\n')
    assert "WORKFLOW_CHANGED" in tenure("workflows", "register", "v.yaml").err


def test_the_cli_is_one_object_for_tests() -> None:
    assert app.info.name == "tenure"
