"""`tenure lifecycle` and the common behavior of all commands, run as processes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.cli.common import console
from tenure.cli.dev import lifecycle_page
from tenure.errors import Detail, TenureError
from tenure.kernel import profiles
from tests.profiles.samples import PLAIN

ROOT = Path(__file__).resolve().parents[2]


def tenure(*arguments: str, cwd: Path = ROOT, own: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from tenure.cli.main import main; main()", *arguments]
    env = os.environ if own is None else {**os.environ, "TENURE_PROFILES": str(own)}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=60)


def test_tenure_without_arguments_prints_help() -> None:
    shown = tenure()
    assert shown.returncode == 0
    assert "First steps" in shown.stdout
    assert "tenure init hello" in shown.stdout
    assert "lifecycle" in shown.stdout


def test_the_version_is_that_of_the_package() -> None:
    shown = tenure("--version")
    assert shown.returncode == 0
    assert shown.stdout.startswith("tenure 0.")


def test_a_usage_error_exits_with_2_and_explains() -> None:
    shown = tenure("lifecycle", "show")
    assert shown.returncode == 2
    assert "Usage:" in shown.stderr
    assert tenure("no-such-command").returncode == 2


def test_a_refusal_exits_with_1_and_advises() -> None:
    shown = tenure("lifecycle", "show", "delta")
    assert shown.returncode == 1
    assert shown.stdout == ""
    assert "error PROFILE_NOT_FOUND: there is no profile 'delta'" in shown.stderr
    assert "What to do: List the profiles with `tenure lifecycle list`." in shown.stderr
    assert "More: tenure explain PROFILE_NOT_FOUND" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_refusal_lists_every_problem(capsys: pytest.CaptureFixture[str]) -> None:
    console.show_error(
        TenureError("PROFILE_INVALID", "two things", (Detail("a.b", "odd"), Detail("", "[torn]")))
    )
    assert "  a.b: odd\n  (the whole): [torn]\n" in capsys.readouterr().err


def test_list_names_all_profiles() -> None:
    shown = tenure("lifecycle", "list")
    assert shown.returncode == 0
    for name in profiles.names():
        assert name in shown.stdout


@pytest.mark.parametrize("name", profiles.names())
def test_show_prints_words_tables_timing_rules_and_reasons(name: str) -> None:
    shown = tenure("lifecycle", "show", name)
    assert shown.returncode == 0
    profile = profiles.get(name)
    for word in () if profile.run.kernel else profile.run.states:
        assert word in shown.stdout
    shows = ("run: words", "run: transitions") if not profile.run.kernel else ("the kernel's own words",)
    for part in ("retries", "lease", "failure code", *shows):
        assert part in shown.stdout
    assert ("extra edges, not in the document" in shown.stdout) == bool(
        profile.run.extra or profile.step.extra
    )
    if name == "delta-ci":
        for owner in ("Orchestrator", "Runner", "Status Reporter"):
            assert owner in shown.stdout


def test_show_prints_the_kernels_table_on_request() -> None:
    assert "suspend_approval" not in tenure("lifecycle", "show", "git-with-intent").stdout
    shown = tenure("lifecycle", "show", "git-with-intent", "--entity", "step").stdout
    assert "suspend_approval" in shown
    assert "neither its states nor a table" in shown
    assert tenure("lifecycle", "show", "git-with-intent", "--entity", "planet").returncode == 2


def test_show_draws_a_state_diagram() -> None:
    whole = tenure("lifecycle", "show", "delta-ci", "--mermaid").stdout.splitlines()
    assert whole[0] == "stateDiagram-v2"
    assert "    run_CREATED --> run_PLANNING: run created by webhook/manual command" in whole
    assert "    lease_GRANTED --> lease_ACTIVE: AckLease" in whole
    one = tenure("lifecycle", "show", "delta-ci", "--mermaid", "--entity", "lease").stdout.splitlines()
    assert "  [*] --> GRANTED" in one
    assert "  EXPIRED --> [*]" in one


def test_show_prints_json() -> None:
    shown = json.loads(tenure("lifecycle", "show", "approval-runs", "--json").stdout)
    assert shown["profile"]["run"]["words"]["waiting_approval"] == "WAITING_APPROVAL"
    assert shown["proof"]["problems"] == []


def test_prove_shows_every_profile_and_object() -> None:
    shown = tenure("lifecycle", "prove")
    assert shown.returncode == 0
    assert shown.stdout.count("proven") == 4 * len(profiles.names())
    assert re.search(
        rf"{len(profiles.names())} profiles: (\d+) of \1 edges of the documents realised, \d+ extra edges",
        shown.stdout,
    )
    assert shown.stderr == ""


def test_prove_prints_json() -> None:
    shown = json.loads(tenure("lifecycle", "prove", "--json").stdout)
    assert shown["kernel"]["problems"] == []
    assert [profile["profile"] for profile in shown["profiles"]] == list(profiles.names())
    assert {e["edges_realised"] == e["edges_total"] for p in shown["profiles"] for e in p["entities"]} == {
        True
    }


# -------------------------------------------------------------------------------------------------- check


def checked(text: str | bytes, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "mine.toml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return tenure("lifecycle", "check", str(file))


def test_check_proves_a_custom_profile(tmp_path: Path) -> None:
    shown = checked(PLAIN, tmp_path)
    assert shown.returncode == 0
    assert shown.stdout.count("proven") == 4


def test_check_refuses_a_malformed_profile(tmp_path: Path) -> None:
    shown = checked(PLAIN.replace("retries = 3", "retries = 'many'"), tmp_path)
    assert shown.returncode == 1
    assert "error PROFILE_INVALID" in shown.stderr
    assert "timing.retries: Expected `int`, got `str`" in shown.stderr
    assert checked(b"\xff\xfe\x00", tmp_path).returncode == 1


def test_check_refuses_a_profile_that_fails_the_proof(tmp_path: Path) -> None:
    source = (ROOT / "src/tenure/kernel/profiles/approval-runs.toml").read_text()
    shown = checked(
        source.replace('waiting_approval = "WAITING_APPROVAL"', 'waiting_approval = "RUNNING"', 1), tmp_path
    )
    assert shown.returncode == 1
    assert "run: RUNNING -> WAITING_APPROVAL of the document is never taken" in shown.stderr


def test_check_refuses_a_slow_heartbeat(tmp_path: Path) -> None:
    shown = checked(PLAIN.replace("lease_seconds = 30.0", "lease_seconds = 29.0"), tmp_path)
    assert shown.returncode == 1
    assert "error HEARTBEAT_TOO_SLOW" in shown.stderr


def test_check_of_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    assert tenure("lifecycle", "check", str(tmp_path / "none.toml")).returncode == 2
    assert tenure("lifecycle", "check", str(tmp_path)).returncode == 2


def test_check_refuses_a_built_in_name(tmp_path: Path) -> None:
    shown = checked(tenure("lifecycle", "show", "delta-ci", "--toml").stdout, tmp_path)
    assert shown.returncode == 1
    assert "error PROFILE_INVALID" in shown.stderr
    assert "the name of a built-in profile, 'delta-ci'" in shown.stderr


# -------------------------------------------------------------------------------------------- own profiles


@pytest.mark.parametrize("name", profiles.names())
def test_a_profile_is_printed_as_a_file_to_start_from(name: str) -> None:
    file = ROOT / f"src/tenure/kernel/profiles/{name}.toml"
    assert tenure("lifecycle", "show", name, "--toml").stdout == file.read_text()


def test_custom_profiles_are_marked(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(PLAIN)
    listed = json.loads(tenure("lifecycle", "list", "--json", own=tmp_path).stdout)
    assert [line["name"] for line in listed if line["own"]] == ["plain"]
    assert "mine.toml" in tenure("lifecycle", "list", own=tmp_path).stdout
    assert f"your own profile: {file}" in tenure("lifecycle", "show", "plain", own=tmp_path).stdout
    assert tenure("lifecycle", "show", "plain", "--toml", own=tmp_path).stdout == PLAIN
    proven = tenure("lifecycle", "prove", own=tmp_path).stdout
    assert proven.count("plain (own)") == 4
    assert f"{len(profiles.names()) + 1} profiles" in proven
    assert tenure("lifecycle", "docs", "--check", own=tmp_path).returncode == 0


def test_a_run_with_a_custom_profile_is_shown_in_its_words(tmp_path: Path) -> None:
    source = tenure("lifecycle", "show", "delta-ci", "--toml").stdout
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "ours.toml").write_text(source.replace('name = "delta-ci"', 'name = "ours"', 1))
    (tmp_path / "app.py").write_text(
        "import tenure\n\n@tenure.workflow(profile='ours')\ndef greet() -> str:\n    return 'hello'\n"
    )
    own = tmp_path / "own"
    done = tenure("run", "app.py", "--json", cwd=tmp_path, own=own)
    assert done.returncode == 0, done.stderr
    (line,) = json.loads(tenure("runs", "list", "--json", cwd=tmp_path, own=own).stdout)
    assert (line["profile"], line["shown"]) == ("ours", "SUCCESS")
    other = tenure("runs", "show", line["id"], "--profile", "ours", "--json", cwd=tmp_path, own=own)
    assert '"SUCCESS"' in other.stdout
    # Without the profile, the run is shown with kernel states, and commands that need the profile are refused.
    (line,) = json.loads(tenure("runs", "list", "--json", cwd=tmp_path).stdout)
    assert (line["profile"], line["shown"]) == ("ours", "succeeded")
    assert "PROFILE_NOT_FOUND" in tenure("runs", "show", line["id"], "--profile", "ours", cwd=tmp_path).stderr
    assert "PROFILE_NOT_FOUND" in tenure("run", "app.py", cwd=tmp_path).stderr


def test_with_an_invalid_profile_only_lifecycle_commands_work(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("name = 1")
    for words in (("runs", "list"), ("doctor",), ("serve",), ("lifecycle", "list"), ("lifecycle", "prove")):
        ended = tenure(*words, cwd=tmp_path, own=tmp_path)
        assert ended.returncode == 1
        assert "error PROFILE_INVALID" in ended.stderr
        assert str(bad) in ended.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["bad.toml"]
    assert "name: Expected `str`" in tenure("lifecycle", "check", str(bad), own=tmp_path).stderr
    assert tenure("explain", "PROFILE_INVALID", own=tmp_path).returncode == 0


# --------------------------------------------------------------------------------------------------- docs


def test_the_page_of_lifecycles_is_up_to_date() -> None:
    assert (ROOT / "docs/lifecycle.md").read_text(encoding="utf-8") == lifecycle_page.render_page(), (
        "run `make docs`"
    )


def test_docs_writes_the_page_and_detects_a_stale_one(tmp_path: Path) -> None:
    assert tenure("lifecycle", "docs", cwd=tmp_path).returncode == 2
    page = tmp_path / "docs" / "lifecycle.md"
    page.parent.mkdir()
    assert tenure("lifecycle", "docs", "--check", cwd=tmp_path).returncode == 1
    assert tenure("lifecycle", "docs", cwd=tmp_path).returncode == 0
    assert tenure("lifecycle", "docs", "--check", cwd=tmp_path).returncode == 0
    page.write_text(page.read_text(encoding="utf-8") + "one more line\n", encoding="utf-8")
    stale = tenure("lifecycle", "docs", "--check", cwd=tmp_path)
    assert stale.returncode == 1
    assert "is not up to date" in stale.stderr
