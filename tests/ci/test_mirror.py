"""Mirrors and reads with real git: what is fetched, what is refused, and that nothing of a repository is executed."""

import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenure.ci.git_commands import (
    GitCommandFailed,
    GitCommandTimedOut,
    GitProgram,
    LocalRepository,
    check_ref,
)
from tenure.ci.globs import PathIndex
from tenure.ci.mirror import GitMirror, GitSettings, _credentials
from tenure.ci.settings import FetchSettings, RepositorySettings
from tenure.errors import TenureError
from tenure.testing.git_host import GitHost
from tests.ci.repositories import WorkRepository

OWNER = GitSettings(protocols=("file", "http", "https"))


@pytest.fixture
def work(tmp_path: Path) -> WorkRepository:
    return WorkRepository(tmp_path / "work")


def settings_for(work: WorkRepository, fetch: FetchSettings | None = None) -> RepositorySettings:
    return RepositorySettings(
        name="shop", url=str(work.folder), protocols=("file",), fetch=fetch or FetchSettings()
    )


def mirror_of(work: WorkRepository, fetch: FetchSettings | None = None) -> GitMirror:
    return GitMirror(work.folder.parent / "cache", settings_for(work, fetch), OWNER)


def test_a_mirror_fetches_a_ref_and_reads_its_files(work: WorkRepository) -> None:
    base = work.commit({"a.txt": "a", "b/c.txt": "c", "gone.txt": "g"})
    work.link("link", "a.txt")
    head = work.commit({"a.txt": "changed", "new name.txt": "c", "b/c.txt": None, "gone.txt": None})
    mirror = mirror_of(work)
    assert mirror.fetch_change("refs/heads/main") == head
    repository = mirror.repository
    assert repository.find_merge_base(base, head) == base
    assert repository.list_changed(base, head) == ["a.txt", "b/c.txt", "gone.txt", "link", "new name.txt"]
    files = {file.path: file for file in repository.list_files(head)}
    assert files["link"].mode == "120000"
    assert files["a.txt"].mode == "100644"
    contents = repository.read_blobs([files["a.txt"].blob, files["new name.txt"].blob], 1_000)
    assert list(contents.values()) == [b"changed", b"c"]
    with pytest.raises(TenureError, match="at most 3 are read"):
        repository.read_blobs([files["a.txt"].blob], 3)


def test_a_rename_counts_as_both_paths(work: WorkRepository) -> None:
    base = work.commit({"old/x.py": "the same content in both places\n" * 20})
    work.git("mv", "old/x.py", "x.py")
    head = work.commit({})
    assert LocalRepository(work.folder / ".git").list_changed(base, head) == ["old/x.py", "x.py"]


def test_a_commit_that_is_there_is_not_fetched_again(work: WorkRepository) -> None:
    head = work.commit({"a": "1"})
    mirror = mirror_of(work)
    mirror.fetch_change("refs/heads/main", head)
    work.folder.rename(work.folder.with_name("gone"))
    assert mirror.fetch_change("refs/heads/main", head) == head
    with pytest.raises(TenureError) as failed:
        mirror.fetch_change("refs/heads/main")
    assert failed.value.code == "REPOSITORY_REFUSED"


def test_a_pull_request_is_fetched_by_its_ref(work: WorkRepository) -> None:
    work.commit({"a": "1"})
    work.git("checkout", "--quiet", "-b", "feature")
    head = work.commit({"a": "2"})
    work.git("update-ref", "refs/pull/7/head", head)
    work.git("checkout", "--quiet", "main")
    work.git("branch", "--quiet", "-D", "feature")
    assert mirror_of(work).fetch_change("refs/pull/7/head", head) == head


def test_a_commit_that_a_force_push_removed_is_named(work: WorkRepository) -> None:
    work.commit({"a": "1"})
    lost = work.commit({"a": "2"})
    work.git("reset", "--quiet", "--hard", "HEAD~1")
    work.git("reflog", "expire", "--expire=now", "--all")
    work.git("gc", "--quiet", "--prune=now")
    with pytest.raises(TenureError, match=f"shop has no {lost}; a force push") as failed:
        mirror_of(work).fetch_change("refs/heads/main", lost)
    assert failed.value.code == "COMMIT_NOT_FOUND"
    with pytest.raises(TenureError, match="shop has no refs/heads/gone"):
        mirror_of(work).fetch_change("refs/heads/gone")


def test_a_commit_that_the_ref_has_left_behind_is_still_fetched(work: WorkRepository) -> None:
    first = work.commit({"a": "1"})
    left = work.commit({"a": "2"})
    work.git("tag", "keep")
    work.git("reset", "--quiet", "--hard", first)
    mirror = mirror_of(work)
    assert mirror.fetch_change("refs/heads/main", left) == left
    assert mirror.repository.has_commit(left)


def test_only_the_protocols_of_the_settings_are_used(work: WorkRepository) -> None:
    work.commit({"a": "1"})
    refused = RepositorySettings(name="shop", url=str(work.folder), protocols=("https",))
    with pytest.raises(TenureError, match="uses file; the protocols of this repository are https"):
        GitMirror(work.folder.parent / "cache", refused, OWNER).fetch_change("refs/heads/main")
    # Git itself refuses it, too, whatever our own check of the URL says.
    git = GitProgram(git_dir=str(work.folder / ".git"), protocols=("https",))
    with pytest.raises(GitCommandFailed, match="transport 'file' not allowed"):
        git.run("fetch", "--quiet", str(work.folder), "refs/heads/main")
    with pytest.raises(GitCommandFailed, match="transport 'ext' not allowed"):
        git.run("fetch", "--quiet", "ext::touch /tmp/never", "refs/heads/main")


def test_a_repository_that_is_too_large_is_refused_while_it_is_fetched(work: WorkRepository) -> None:
    (work.folder / "large").write_bytes(os.urandom(300_000))
    work.commit({})
    mirror = mirror_of(work, FetchSettings(size_bytes=50_000))
    with pytest.raises(TenureError, match="more than the 50000 bytes") as failed:
        mirror.fetch_change("refs/heads/main")
    assert failed.value.code == "REPOSITORY_TOO_LARGE"
    stored = sum(file.stat().st_size for file in mirror.folder.rglob("*") if file.is_file())
    assert stored < 200_000
    assert not list(mirror.folder.glob("objects/pack/tmp_*"))


@pytest.mark.parametrize(("asked", "allowed"), [(0.5, 600.0), (600.0, 0.5)])
def test_a_fetch_that_takes_too_long_is_stopped_with_its_helpers(
    tmp_path: Path, asked: float, allowed: float
) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x.git"
        settings = RepositorySettings(
            name="slow", url=url, protocols=("http",), fetch=FetchSettings(timeout_seconds=asked)
        )
        owner = msgspec.structs.replace(OWNER, timeout_seconds=allowed)
        with pytest.raises(TenureError, match="took longer than") as failed:
            GitMirror(tmp_path, settings, owner).fetch_change("refs/heads/main")
    assert failed.value.code == "NETWORK_FETCH_FAILED"
    assert failed.value.retryable


def test_an_unreachable_host_may_work_later(tmp_path: Path) -> None:
    settings = RepositorySettings(name="far", url="http://127.0.0.1:9/x.git", protocols=("http",))
    with pytest.raises(TenureError) as failed:
        GitMirror(tmp_path, settings, OWNER).fetch_change("refs/heads/main")
    assert failed.value.code == "NETWORK_FETCH_FAILED"


def test_nothing_of_a_repository_or_of_the_environment_is_executed(
    work: WorkRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap"
    script = tmp_path / "script"
    script.write_text(f'#!/bin/sh\necho "$0" >> {trap}\ncat\n')
    script.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    evil = f"""
[core]
    fsmonitor = {script}
    sshCommand = {script}
    hooksPath = {tmp_path / "hooks"}
[diff]
    external = {script}
[credential]
    helper = {script}
[filter "evil"]
    smudge = {script}
    clean = {script}
    process = {script}
[uploadpack]
    packObjectsHook = {script}
"""
    (home / ".gitconfig").write_text(evil)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(script))
    monkeypatch.setenv("GIT_SSH_COMMAND", str(script))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(script))
    base = work.commit({".gitattributes": "* filter=evil diff=evil\n*.bin filter=lfs\n", "x.txt": "1"})
    (work.folder / ".gitmodules").write_text('[submodule "s"]\n\tpath = s\n\turl = ext::touch /tmp/never\n')
    head = work.commit({"x.txt": "2"})
    mirror = mirror_of(work)
    mirror.fetch_change("refs/heads/main", head, base)
    for folder in (mirror.folder / "hooks", tmp_path / "hooks"):
        folder.mkdir(exist_ok=True)
        for name in ("reference-transaction", "post-checkout", "post-merge"):
            (folder / name).write_bytes(script.read_bytes())
            (folder / name).chmod(0o755)
    with (mirror.folder / "config").open("a") as file:
        file.write(evil)
    work.git("update-index", "--add", "--cacheinfo", f"160000,{base},s")
    work.git("commit", "--quiet", "--message", "Add a submodule")
    after = work.git("rev-parse", "HEAD")
    assert mirror.fetch_change("refs/heads/main") == after
    assert mirror.repository.list_changed(base, after) == [".gitmodules", "s", "x.txt"]
    files = mirror.repository.list_files(after)
    assert {file.path: file.mode for file in files}["s"] == "160000"
    mirror.repository.read_blobs([file.blob for file in files if file.mode == "100644"], 10_000)
    assert not trap.exists()


def test_a_malformed_object_is_refused(work: WorkRepository) -> None:
    work.commit({"a": "1"})
    blob = work.git("hash-object", "-w", "a")
    # A tree whose entry is named .git, which a checkout would write over the repository's own folder.
    entry = b"100644 .git\0" + bytes.fromhex(blob)
    made = subprocess.run(
        ["git", "-C", str(work.folder), "hash-object", "-w", "-t", "tree", "--literally", "--stdin"],
        input=entry, capture_output=True, check=True,
    )  # fmt: skip
    commit = work.git("commit-tree", made.stdout.decode().strip(), "-m", "evil")
    work.git("update-ref", "refs/heads/evil", commit)
    with pytest.raises(TenureError, match="an object that git refuses") as failed:
        mirror_of(work).fetch_change("refs/heads/evil")
    assert failed.value.code == "REPOSITORY_REFUSED"


def test_processes_take_turns_to_make_and_fill_a_mirror(work: WorkRepository) -> None:
    commits = [work.commit({"a": str(n)}) for n in range(6)]
    found: list[str] = []

    def fetch(commit: str) -> None:
        found.append(mirror_of(work).fetch_change("refs/heads/main", commit))

    threads = [threading.Thread(target=fetch, args=(commit,)) for commit in commits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(commits)


def test_many_packs_are_indexed_together_and_none_is_deleted(
    work: WorkRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.ci.mirror.PACKS_INDEXED", 3)
    mirror = mirror_of(work)
    commits = []
    for n in range(4):
        commits.append(work.commit({"a": str(n)}))
        mirror.fetch_change("refs/heads/main", commits[-1])
    packs = mirror.folder / "objects" / "pack"
    assert (packs / "multi-pack-index").exists()
    assert len(list(packs.glob("*.pack"))) == 4
    assert all(mirror.repository.list_files(commit) for commit in commits)


def test_a_token_is_sent_to_its_host_and_never_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TOKEN", "s3cret")
    settings = RepositorySettings(
        name="shop", url="https://example.com/x.git", fetch=FetchSettings(credential="env:GIT_TOKEN")
    )
    header = _credentials(settings)["http.https://example.com/.extraHeader"]
    assert header == "Authorization: Basic eC1hY2Nlc3MtdG9rZW46czNjcmV0"


@pytest.mark.parametrize(
    "ref",
    ["main", "refs/heads/../x", "refs/heads/x.lock", "--upload-pack=x", "refs/heads/a b", "refs/heads/@{1}"],
)
def test_a_text_that_is_no_full_ref_is_refused(ref: str) -> None:
    with pytest.raises(TenureError, match="is not a full ref"):
        check_ref(ref)


def test_a_revision_never_becomes_an_option(work: WorkRepository) -> None:
    work.commit({"a": "1"})
    with pytest.raises(TenureError) as failed:
        LocalRepository(work.folder / ".git").find_commit("--all")
    assert failed.value.code == "COMMIT_NOT_FOUND"


def test_a_command_that_prints_too_much_or_takes_too_long_is_stopped(work: WorkRepository) -> None:
    (work.folder / "large").write_bytes(b"x" * 100_000)
    work.commit({})
    git = GitProgram(git_dir=str(work.folder / ".git"))
    with pytest.raises(TenureError, match="prints more than"):
        git.run("cat-file", "blob", "HEAD:large", output_bytes_max=10_000)
    with pytest.raises(GitCommandTimedOut):
        git.run(
            "cat-file", "--batch", "--buffer", "--follow-symlinks", data=b"HEAD\n" * 2_000_000, seconds=0.01
        )


OWNER_REFUSES: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "protocol": ({"protocols": ("https",)}, {}, "REPOSITORY_REFUSED", "this host fetches with https"),
    "size": ({"size_bytes": 50_000}, {}, "REPOSITORY_TOO_LARGE", "more than the 50000 bytes"),
    "credential": (
        {"credentials": ("env:OTHER",)},
        {"credential": "file:/etc/shadow"},
        "REPOSITORY_REFUSED",
        "needs file:/etc/shadow, which this host does not give",
    ),
}


@pytest.mark.parametrize("what", OWNER_REFUSES)
def test_the_settings_of_a_repository_get_nothing_beyond_what_the_owner_allows(
    work: WorkRepository, what: str
) -> None:
    allowed, fetch, code, message = OWNER_REFUSES[what]
    (work.folder / "large").write_bytes(os.urandom(300_000))
    work.commit({})
    owner = msgspec.structs.replace(OWNER, **allowed)
    settings = settings_for(work, FetchSettings(**fetch))
    with pytest.raises(TenureError, match=message) as failed:
        GitMirror(work.folder.parent / "cache", settings, owner).fetch_change("refs/heads/main")
    assert failed.value.code == code


def test_what_the_owner_does_not_allow_is_refused_even_if_it_is_there(work: WorkRepository) -> None:
    head = work.commit({"a": "1"})
    mirror_of(work).fetch_change("refs/heads/main", head)
    stricter = GitMirror(work.folder.parent / "cache", settings_for(work), GitSettings())
    with pytest.raises(TenureError, match="uses file; this host fetches with https, ssh"):
        stricter.fetch_change("refs/heads/main", head)


def test_a_url_has_one_mirror_whatever_the_repository_is_called(work: WorkRepository) -> None:
    head = work.commit({"a": "1"})
    mirror = mirror_of(work)
    mirror.fetch_change("refs/heads/main", head)
    renamed = msgspec.structs.replace(settings_for(work), name="other", tenant="other")
    assert GitMirror(work.folder.parent / "cache", renamed, OWNER).folder == mirror.folder


def test_a_commit_is_fetched_by_its_id_alone(work: WorkRepository) -> None:
    head = work.commit({"a": "1"})
    assert mirror_of(work).fetch_change("", head) == head
    for wrong in ("--all", "main", "0" * 39):
        with pytest.raises(TenureError, match="is not the id of a commit"):
            mirror_of(work).fetch_change("", wrong)


def test_the_configuration_of_the_owner_gives_credentials_and_no_further_protocols(
    work: WorkRepository, tmp_path: Path
) -> None:
    head = work.commit({"a": "1"})
    script = tmp_path / "helper"
    script.write_text("#!/bin/sh\necho username=me\necho password=hush\n")
    script.chmod(0o755)
    config = tmp_path / "gitconfig"
    config.write_text(f"[credential]\n\thelper = {script}\n[protocol]\n\tallow = always\n")
    with GitHost(work.folder.parent, credentials="Basic bWU6aHVzaA==") as host:
        settings = RepositorySettings(
            name="shop", url=f"{host.url}/{work.folder.name}/.git", protocols=("http",)
        )
        with pytest.raises(TenureError, match="could not read Username"):
            GitMirror(tmp_path / "cache", settings, OWNER).fetch_change("refs/heads/main")
        owner = GitSettings(protocols=("http",), config_file=str(config))
        mirror = GitMirror(tmp_path / "cache", settings, owner)
        assert mirror.fetch_change("refs/heads/main") == head
        config.write_text(config.read_text() + f'[url "{work.folder.parent}"]\n\tinsteadOf = {host.url}\n')
        with pytest.raises(TenureError, match="transport 'file' not allowed"):
            mirror.fetch_change("refs/heads/main")
    stored = b"".join(file.read_bytes() for file in mirror.folder.rglob("*") if file.is_file())
    assert b"hush" not in stored
    assert b"bWU6aHVzaA" not in stored


def test_a_fetch_ends_when_it_is_asked_to_stop(tmp_path: Path) -> None:
    import socket

    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x.git"
        settings = RepositorySettings(name="slow", url=url, protocols=("http",))
        failed: list[str] = []

        def fetch() -> None:
            try:
                GitMirror(tmp_path, settings, OWNER, stop.is_set).fetch_change("refs/heads/main")
            except TenureError as error:
                failed.append(error.message)

        threads = [threading.Thread(target=fetch) for _ in range(2)]  # one fetches, one waits for the lock
        for thread in threads:
            thread.start()
        connection, _ = silent.accept()
        stop.set()
        for thread in threads:
            thread.join()
        connection.close()
    assert len(failed) == 2
    assert any("git fetch was stopped" in message for message in failed)


def test_only_the_objects_of_a_mirror_are_open_for_other_users(work: WorkRepository) -> None:
    work.commit({"a": "1"})
    before = os.umask(0o077)
    try:
        mirror = mirror_of(work)
        mirror.fetch_change("refs/heads/main")
    finally:
        os.umask(before)
    assert mirror.folder.stat().st_mode & 0o077 == 0
    objects = mirror.folder / "objects"
    assert all(file.stat().st_mode & 0o004 for file in (objects, *objects.rglob("*")))


def test_a_job_gets_exactly_the_files_that_its_digest_covers(work: WorkRepository) -> None:
    """The digest is of what the planner lists; a job's files are found by their bytes."""
    names = [b"d/a", b"d/\xe9", b"d/\\xe9", "d/\u00e9".encode(), b"d/e/f"]
    for name in names:
        path = os.path.join(os.fsencode(work.folder), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(name)
    commit = work.commit({})
    repository = LocalRepository(work.folder / ".git")
    listed = [file.path for file in repository.list_files(commit)]
    assert len(set(listed)) == len(names)
    index = PathIndex(listed)
    for glob in ("d/?", "d/*", "d", "**/f", "d/????"):
        assert len(repository.find_paths(commit, [glob])) == len(index.find(glob))
    assert repository.find_paths(commit, ["d/?"]) == [b"d/a", "d/\u00e9".encode()]
    assert sorted(repository.find_paths(commit, ["."])) == sorted(names)
