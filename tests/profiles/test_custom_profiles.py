"""The folder of TENURE_PROFILES: either all of its files are valid, or none is used."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure import custom_profiles, declared
from tenure.config import choose_profiles
from tenure.errors import TenureError
from tenure.kernel import profiles
from tenure.limits import PROFILE_BYTES_MAX
from tests.profiles.custom import OURS, use_profiles
from tests.profiles.samples import PLAIN

PACKAGED = Path(profiles.__file__).parent


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A profile folder for a process that has read none yet."""
    monkeypatch.setenv("TENURE_PROFILES", str(tmp_path))
    custom_profiles.load_custom_profiles.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    custom_profiles.load_custom_profiles.cache_clear()
    use_profiles()


def refused(folder: Path) -> TenureError:
    with pytest.raises(TenureError) as caught:
        custom_profiles.load_custom_profiles()
    assert caught.value.code == "PROFILE_INVALID"
    assert str(folder) in caught.value.message
    assert profiles.custom_names() == ()
    return caught.value


def test_without_the_setting_there_are_no_custom_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENURE_PROFILES", raising=False)
    assert choose_profiles() is None
    monkeypatch.setenv("TENURE_PROFILES", "")
    assert choose_profiles() is None
    monkeypatch.setenv("TENURE_PROFILES", "mine")
    assert choose_profiles() == "mine"


def test_the_files_of_the_folder_are_profiles(folder: Path) -> None:
    (folder / "b.toml").write_text(OURS)
    (folder / "a.toml").write_text(PLAIN)
    (folder / "notes.txt").write_text("not a profile")
    (folder / ".a.toml").write_text("an editor's")
    (folder / "below").mkdir()
    (folder / "below" / "c.toml").write_text("not looked at")
    found = custom_profiles.load_custom_profiles()
    assert {name: own.file.name for name, own in found.items()} == {"plain": "a.toml", "ours": "b.toml"}
    assert profiles.custom_names() == ("ours", "plain")
    assert profiles.names() == (*profiles.built_in_names(), "ours", "plain")
    assert profiles.get("ours").title == "Plain"


def test_custom_profiles_are_read_once(folder: Path) -> None:
    (folder / "a.toml").write_text(OURS)
    custom_profiles.load_custom_profiles()
    (folder / "a.toml").write_text(OURS.replace("retries = 3", "retries = 5"))
    (folder / "b.toml").write_text("broken")
    assert custom_profiles.load_custom_profiles()["ours"].profile.timing.retries == 3


def test_a_workflow_may_use_a_custom_profile_before_an_engine_exists(folder: Path) -> None:
    (folder / "a.toml").write_text(OURS)

    @tenure.workflow(profile="ours")
    def greet() -> str:
        return "hello"

    assert greet.profile.name == "ours"


def test_a_declared_workflow_may_name_a_custom_profile(folder: Path) -> None:
    (folder / "a.toml").write_text(OURS)
    found = declared.load_workflow("name: x\nprofile: ours\nsteps:\n  - id: a\n    run: [make]\n")
    assert found.profile == "ours"
    with pytest.raises(TenureError, match=r"must be one of .*, tenure, ours, not theirs"):
        declared.load_workflow("name: x\nprofile: theirs\nsteps:\n  - id: a\n    run: [make]\n")


def test_nothing_starts_with_an_invalid_profile(folder: Path) -> None:
    (folder / "a.toml").write_text("name = 1")
    with pytest.raises(TenureError, match=r"PROFILE_INVALID.*a\.toml"):
        tenure.Engine(str(folder / "x.db"))
    with pytest.raises(TenureError, match=r"PROFILE_INVALID.*a\.toml"):
        tenure.workflow(name="greet")(lambda: None)


APPROVALS = (PACKAGED / "approval-runs.toml").read_text().replace('"approval-runs"', '"ours"', 1)
BAD = {
    "not TOML": ("name = ", "not TOML"),
    "an unknown key": ("colour = 1\n" + OURS, "colour"),
    "a missing key": (OURS.replace("retries = 3\n", ""), "retries"),
    "code": (OURS.replace("retries = 3", "retries = \"__import__('os').getpid()\""), "Expected `int`"),
    "a slow heartbeat": (OURS.replace("lease_seconds = 30.0", "lease_seconds = 29.0"), "too slow"),
    "words that do not fit the kernel": (
        APPROVALS.replace('waiting_approval = "WAITING_APPROVAL"', 'waiting_approval = "RUNNING"', 1),
        "does not fit the kernel",
    ),
    "a built-in name": (
        OURS.replace('"ours"', '"delta-ci"', 1),
        "the name of a built-in profile, 'delta-ci'",
    ),
    "too long": (OURS + "#" * PROFILE_BYTES_MAX, "bytes"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_invalid_file_is_named_and_no_profile_is_used(folder: Path, case: str) -> None:
    text, problem = BAD[case]
    (folder / "a.toml").write_text(PLAIN)
    (folder / "bad.toml").write_text(text)
    error = refused(folder / "bad.toml")
    assert problem in error.message
    (folder / "bad.toml").write_text(OURS)
    assert set(custom_profiles.load_custom_profiles()) == {"plain", "ours"}


def test_a_duplicate_name_is_refused_with_both_files(folder: Path) -> None:
    (folder / "a.toml").write_text(OURS)
    (folder / "b.toml").write_text(OURS)
    assert str(folder / "b.toml") in refused(folder / "a.toml").message


def test_an_unreadable_file_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "a.toml").write_bytes(b"\xff\xfe")
    assert "UTF-8" in refused(folder / "a.toml").message
    (folder / "a.toml").unlink()
    (folder / "a.toml").mkdir()
    assert "cannot be read" in refused(folder / "a.toml").message
    monkeypatch.setenv("TENURE_PROFILES", str(folder / "none"))
    assert "cannot be read" in refused(folder / "none").message
