"""`tenure schedule`: every command once, and refusals."""

import json
from pathlib import Path

import pytest

from tests.cli.apps import YAML
from tests.cli.shell import Tenure, in_folder

NIGHTLY = ("schedule", "create", "nightly", "report", "--plan", "plan.json", "--cron", "30 2 * * *")


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    (tmp_path / "plan.json").write_text('[{"name": "build"}, {"name": "ship"}]')
    return in_folder(tmp_path, monkeypatch, capsys)


def test_a_schedule_is_managed_from_the_shell(tenure: Tenure) -> None:
    made = tenure(
        *NIGHTLY, "--zone", "Europe/Berlin", "--catch-up", "all", "--label", "team=a", "--by", "ada"
    )
    assert made.code == 0, made.err
    assert made.out.startswith("nightly is due next at ")
    assert "02:30 CE" in made.out
    assert "nightly" in tenure("schedule", "list").out
    assert "all, at most 10" in tenure("schedule", "list").out

    shown = tenure("schedule", "show", "nightly").out
    for words in ("30 2 * * * (Europe/Berlin)", "none yet", "team=a", "owner:         ada", "revision 1"):
        assert words in shown
    times = tenure("schedule", "next", "nightly", "-n", "3").out.splitlines()
    assert len(times) == 3
    assert all(" 02:30 " in line and line.endswith(" UTC)") for line in times)

    assert tenure("schedule", "pause", "nightly").out == "nightly is paused\n"
    assert tenure("schedule", "pause", "nightly").out == "nightly is paused\n"
    assert "paused" in tenure("schedule", "list").out
    run = tenure("schedule", "trigger", "nightly", "--by", "bob").out.strip()
    printed = tenure("runs", "show", run, "--json").json()["run"]
    assert printed["workflow"] == "report"
    assert tenure("schedule", "unpause", "nightly").out.startswith("nightly is due next at ")
    assert tenure("schedule", "delete", "nightly").out == "deleted\n"
    assert tenure("schedule", "list").out == "no schedules\n"
    assert tenure("runs", "show", run).code == 0, "deleting the schedule deleted its runs"
    assert tenure("doctor").code == 0


def test_every_command_prints_json(tenure: Tenure) -> None:
    made = tenure(*NIGHTLY, "--input", '{"a": 1}', "--pass-slot", "--json").json()
    assert made["name"] == "nightly"
    assert [step["name"] for step in made["plan"]] == ["build", "ship"]
    assert made["input"] == {"a": 1}
    assert tenure("schedule", "show", "nightly", "--json").json() == made
    assert tenure("schedule", "list", "--json").json() == [made]
    assert tenure("schedule", "next", "nightly", "--json").json()[0] == made["next_at"]
    paused = tenure("schedule", "pause", "nightly", "--json").json()
    assert (paused["paused"], paused["next_at"], paused["revision"]) == (True, None, 2)
    assert tenure("schedule", "unpause", "nightly", "--json").json()["next_at"] == made["next_at"]
    run = tenure("schedule", "trigger", "nightly", "--json").json()["run"]
    printed = tenure("runs", "show", run, "--json").json()["run"]
    assert printed["input"].keys() == {"a", "slot"}
    assert tenure("schedule", "delete", "nightly", "--json").json() == {"deleted": "nightly"}


def test_python_workflows_and_workflow_files_can_be_scheduled(tenure: Tenure, tmp_path: Path) -> None:
    (tmp_path / "night.py").write_text(
        "import tenure\n@tenure.workflow(name='night.report', version='3')\n"
        "async def report(day: int, slot: str) -> None: ...\n"
    )
    (tmp_path / "hello.yaml").write_text(YAML)
    create = ("schedule", "create", "--cron", "30 2 * * *", "--json")
    code = tenure(*create, "code", "night.py:report", "--input", "day=5", "--pass-slot").json()
    assert (code["workflow"], code["code_version"], code["profile"]) == ("night.report", "3", "tenure")
    assert (code["queue"], code["input"]) == ("default|flow:night.report@3", {"day": 5})
    file = tenure(*create, "file", "hello.yaml", "--input", "name=Ada").json()
    assert (file["workflow"], file["input"]) == ("greeting", {"name": "Ada", "loud": False})
    assert [step["name"] for step in file["plan"]] == ["write", "ok", "send"]
    assert "default|flow:night.report@3" in tenure("schedule", "show", "code").out
    for more, message in (
        (("night.py:report", "--input", "day=5"), "slot"),
        (("night.py:nobody",), "night.py:night.report"),
        (("nobody",), "there is no module 'nobody'"),
        (("hello.yaml", "--input", "who=me"), "who"),
    ):
        refused = tenure(*create, "bad", *more)
        assert refused.code == 1
        assert message in refused.err
    assert len(tenure("schedule", "list", "--json").json()) == 2


@pytest.mark.parametrize("command", ["show", "pause", "unpause", "trigger", "delete", "next"])
def test_a_missing_schedule_is_reported(tenure: Tenure, command: str) -> None:
    assert tenure("migrate").code == 0
    refused = tenure("schedule", command, "nobody", "--json")
    assert refused.code == 1
    assert json.loads(refused.err)["error"]["code"] == "SCHEDULE_NOT_FOUND"


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (("--cron", "61 * * * *"), 1, "'61' at character 1 is not a valid minute"),
        (("--cron", "0 0 31 2 *"), 1, "names days that its months do not have"),
        (("--zone", "Mars/Olympus"), 1, "'Mars/Olympus' is not a time zone"),
        (("--pass-slot", "--input", "[1]"), 1, "must be an object"),
        (("--profile", "waterfall"), 1, "there is no profile 'waterfall'"),
        (("--input", "{"), 1, "--input is not JSON"),
        (("--input", "1", "--input", "2"), 2, "with --plan, give one JSON value"),
        (("--catch-up", "never"), 2, "'never' is not one of"),
        (("--catch-up-max", "0"), 2, "catch-up-max"),
        (("--cron", " "), 2, "it is empty"),
    ],
)
def test_an_invalid_schedule_is_refused(
    tenure: Tenure, more: tuple[str, ...], code: int, message: str
) -> None:
    refused = tenure(*NIGHTLY, *more)
    assert refused.code == code
    assert message in " ".join(refused.err.split())


def test_a_schedule_name_is_unique(tenure: Tenure) -> None:
    assert tenure(*NIGHTLY).code == 0
    refused = tenure(*NIGHTLY)
    assert refused.code == 1
    assert "SCHEDULE_EXISTS" in refused.err
    assert tenure(*NIGHTLY, "--tenant", "other").code == 0


def test_help_explains_the_cron_format(tenure: Tenure) -> None:
    printed = tenure("schedule", "--help").out
    assert "minute hour day-of-month month day-of-week" in " ".join(printed.split())
