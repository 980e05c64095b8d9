"""The git host of tests and demonstrations: real clones and pushes over HTTP."""

from pathlib import Path

import pytest

from tenure.errors import TenureError
from tenure.testing.git_host import NO_COMMIT, GitHost, Push, git

AUTHOR = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
}


def commit(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    git(folder, "add", name)
    git(folder, "commit", "--quiet", "-m", f"Write {name}", **AUTHOR)
    return git(folder, "rev-parse", "HEAD")


def test_a_push_is_stored_and_reported_with_both_commits(tmp_path: Path) -> None:
    pushes: list[Push] = []
    with GitHost(tmp_path / "host", on_push=pushes.append) as host:
        url = host.create("shop")
        work = tmp_path / "work"
        work.mkdir()
        git(work, "init", "--quiet", "--initial-branch=main")
        first = commit(work, "a.txt", "1")
        git(work, "push", "--quiet", url, "main")
        second = commit(work, "a.txt", "2")
        git(work, "push", "--quiet", url, "main")
        git(tmp_path, "clone", "--quiet", url, "copy")
        assert host.refs("shop") == {"refs/heads/main": second}
    assert (tmp_path / "copy" / "a.txt").read_text() == "2"
    assert pushes == [
        Push("shop", "refs/heads/main", NO_COMMIT, first),
        Push("shop", "refs/heads/main", first, second),
    ]


def test_a_host_with_credentials_refuses_everybody_else(tmp_path: Path) -> None:
    with GitHost(tmp_path / "host", credentials="Basic eDp5") as host:
        url = host.create("shop")
        with pytest.raises(TenureError, match="could not read Username"):
            git(tmp_path, "clone", url, "copy", GIT_TERMINAL_PROMPT="0")
        git(
            tmp_path,
            "-c",
            "http.extraHeader=Authorization: Basic eDp5",
            "clone",
            "--quiet",
            url,
            "copy",
        )
