"""`tenure lifecycle` and the frame of the command line, run as a person would."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.cli import console, lifecycle_docs
from tenure.errors import Detail, TenureError
from tenure.kernel import profiles
from tests.profiles.samples import PLAIN

ROOT = Path(__file__).resolve().parents[2]


def tenure(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from tenure.cli.main import main; main()", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=60)


def test_bare_tenure_teaches() -> None:
    shown = tenure()
    assert shown.returncode == 0
    assert "First steps" in shown.stdout
    assert "tenure init hello" in shown.stdout
    assert "lifecycle" in shown.stdout


def test_the_version_is_the_packages() -> None:
    shown = tenure("--version")
    assert shown.returncode == 0
    assert shown.stdout.startswith("tenure 0.")


def test_a_wrong_use_ends_with_2_and_says_how() -> None:
    shown = tenure("lifecycle", "show")
    assert shown.returncode == 2
    assert "Usage:" in shown.stderr
    assert tenure("no-such-command").returncode == 2


def test_a_refusal_ends_with_1_and_says_what_to_do() -> None:
    shown = tenure("lifecycle", "show", "delta")
    assert shown.returncode == 1
    assert shown.stdout == ""
    assert "error PROFILE_NOT_FOUND: there is no profile 'delta'" in shown.stderr
    assert "What to do: List them with `tenure lifecycle list`." in shown.stderr
    assert "More: tenure explain PROFILE_NOT_FOUND" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_refusal_names_every_place(capsys: pytest.CaptureFixture[str]) -> None:
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
    assert ("beyond the document" in shown.stdout) == bool(profile.run.beyond or profile.step.beyond)
    if name == "delta-ci":
        for owner in ("Orchestrator", "Runner", "Status Reporter"):
            assert owner in shown.stdout


def test_show_prints_the_kernels_table_when_it_is_asked_for() -> None:
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


def test_show_speaks_json() -> None:
    shown = json.loads(tenure("lifecycle", "show", "approval-runs", "--json").stdout)
    assert shown["profile"]["run"]["words"]["waiting_approval"] == "WAITING_APPROVAL"
    assert shown["proof"]["problems"] == []


def test_prove_shows_every_profile_and_object() -> None:
    shown = tenure("lifecycle", "prove")
    assert shown.returncode == 0
    assert shown.stdout.count("proven") == 4 * len(profiles.names())
    assert re.search(
        rf"{len(profiles.names())} profiles: (\d+) of \1 edges of the documents realised, \d+ beyond them",
        shown.stdout,
    )
    assert shown.stderr == ""


def test_prove_speaks_json() -> None:
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


def test_check_proves_a_profile_of_ones_own(tmp_path: Path) -> None:
    shown = checked(PLAIN, tmp_path)
    assert shown.returncode == 0
    assert shown.stdout.count("proven") == 4


def test_check_refuses_what_is_malformed(tmp_path: Path) -> None:
    shown = checked(PLAIN.replace("retries = 3", "retries = 'many'"), tmp_path)
    assert shown.returncode == 1
    assert "error PROFILE_INVALID" in shown.stderr
    assert "timing.retries: Expected `int`, got `str`" in shown.stderr
    assert checked(b"\xff\xfe\x00", tmp_path).returncode == 1


def test_check_refuses_what_the_proof_refuses(tmp_path: Path) -> None:
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


def test_check_of_a_file_that_is_not_there_is_a_wrong_use(tmp_path: Path) -> None:
    assert tenure("lifecycle", "check", str(tmp_path / "none.toml")).returncode == 2
    assert tenure("lifecycle", "check", str(tmp_path)).returncode == 2


# --------------------------------------------------------------------------------------------------- docs


def test_the_page_of_lifecycles_is_up_to_date() -> None:
    assert (ROOT / "docs/lifecycle.md").read_text(encoding="utf-8") == lifecycle_docs.page(), (
        "run `make docs`"
    )


def test_docs_writes_the_page_and_notices_when_it_is_stale(tmp_path: Path) -> None:
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
