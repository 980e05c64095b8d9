"""The files that globs of a job name."""

import os
from pathlib import Path
from typing import Any

import pytest

from tenure.ci_runner.workspace_files import WorkspaceProblem, find_files

SEEN_AS = "/job/workspace"


def paths(root: Path, *patterns: str, bytes_max: int = 1 << 20) -> list[str]:
    return [file.path for file in find_files(root, patterns, seen_as=SEEN_AS, bytes_max=bytes_max)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a.txt", "b.xml", "dist/x", "dist/sub/y.txt", "src/deep/er/z.xml"):
        file = tmp_path / "w" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    return tmp_path / "w"


def test_patterns_name_files_and_whole_folders(root: Path) -> None:
    assert paths(root, "*.txt") == ["a.txt"]
    assert paths(root, "**/*.xml") == ["b.xml", "src/deep/er/z.xml"]
    assert (
        paths(root, "dist") == paths(root, "dist/**") == paths(root, "dist/") == ["dist/sub/y.txt", "dist/x"]
    )
    assert paths(root, "dist/*") == ["dist/x"]
    assert paths(root, "src/**/er/?.xml", "a.*") == ["a.txt", "src/deep/er/z.xml"]
    assert len(paths(root, ".")) == 5
    assert paths(root, "nothing") == []


@pytest.mark.parametrize(
    "pattern", ["../a", "/etc/passwd", "a/../../b", "", "x" * 600, "[ab].txt", "!a.txt", "./a.txt"]
)
def test_a_pattern_that_leaves_the_workspace_is_refused(root: Path, pattern: str) -> None:
    with pytest.raises(WorkspaceProblem):
        paths(root, pattern)


def test_links_are_followed_only_inside_of_the_workspace(root: Path) -> None:
    (root / "in").symlink_to("dist/x")
    (root / "absolute").symlink_to(f"{SEEN_AS}/a.txt")
    (root / "folder").symlink_to("dist")
    (root / "loop").symlink_to("loop")
    assert paths(root, "in", "absolute", "folder") == ["absolute", "in"]
    assert find_files(root, ["in"], seen_as=SEEN_AS, bytes_max=100)[0].local == root / "dist/x"
    for name, target in (("out", "/etc/passwd"), ("up", "../../x"), ("hop", "folder/../../../x")):
        (root / name).symlink_to(target)
        with pytest.raises(WorkspaceProblem, match="leads out"):
            paths(root, name)
    assert paths(root, "*.txt") == ["a.txt"]  # links that a pattern does not match do not matter
    with pytest.raises(WorkspaceProblem):
        paths(root, "loop")


def test_bytes_are_limited(root: Path) -> None:
    with pytest.raises(WorkspaceProblem, match="more than"):
        paths(root, ".", bytes_max=3)


@pytest.mark.parametrize(
    ("glob", "read"),
    [
        ("*.txt", set()),
        ("dist/*", {"dist"}),
        ("dist", {"dist", "dist/sub"}),
        ("d*/", {"dist", "dist/sub"}),
        ("*/deep/*.xml", {"dist", "src", "src/deep"}),
        ("src/**/z.xml", {"src", "src/deep", "src/deep/er"}),
    ],
)
def test_folders_that_no_glob_reaches_are_not_read(
    root: Path, glob: str, read: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = []
    scan = os.scandir

    def record(folder: Path) -> Any:
        folders.append(str(folder.relative_to(root)))
        return scan(folder)

    monkeypatch.setattr("tenure.ci_runner.workspace_files.os.scandir", record)
    paths(root, glob)
    assert set(folders) == read | {"."}
