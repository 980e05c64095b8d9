"""Globs: what they match, and that no glob makes matching slow."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.ci.globs import PathIndex, compile_glob, find_glob_problem, matches_branch, may_match_below

CASES = {
    ("a/*.py", "a/x.py"): True,
    ("a/*.py", "a/b/x.py"): False,
    ("**/*.py", "x.py"): True,
    ("**/*.py", "a/b/x.py"): True,
    ("a/**", "a/b"): True,
    ("a/**", "a"): False,
    ("a/**/b", "a/b"): True,
    ("a/**/b", "a/x/y/b"): True,
    ("a", "a/b/c"): True,
    ("a", "ab"): False,
    ("a/", "a/b"): True,
    ("*", "a/b"): False,
    ("**", "a/b"): True,
    (".", "a/b"): True,
    ("a/**/b/**/c", "a/b/x/b/c"): True,
    ("a/**/b/**/c", "a/x/c"): False,
    ("*a*b", "xaxbxb"): True,
    ("a?c", "a/c"): False,
    ("**/a*/z", "q/ab/c/ad/z"): True,
    ("a*c/d", "acx/d"): False,
    ("a/*/", "a/b/c"): True,
    ("a.b", "axb"): False,
}


@pytest.mark.parametrize(("glob", "path"), CASES)
def test_a_glob_matches_what_the_page_says(glob: str, path: str) -> None:
    assert bool(compile_glob(glob).fullmatch(path)) is CASES[glob, path]


@pytest.mark.parametrize(
    "glob",
    ["", "/etc/passwd", "../x", "a/../../x", "a\\b", "a//b", "./a", "~/x", "a/**b", "*.{py,toml}", "[ab]", "!a", ".git/config", "a\nb"],
)  # fmt: skip
def test_a_glob_that_leaves_the_workspace_or_means_something_elsewhere_is_refused(glob: str) -> None:
    assert find_glob_problem(glob)


def test_a_branch_without_wildcards_is_only_itself() -> None:
    assert matches_branch(["main", "release/*"], "release/1")
    assert not matches_branch(["main"], "main/evil")


def slow_match(glob: str, path: str) -> bool:
    """The meaning of a glob with wildcards, as an ordinary regular expression that tries everything."""
    parts = (
        r"(?:[^/]+/)*"
        if part == "**"
        else re.escape(part).replace(r"\*", "[^/]*").replace(r"\?", "[^/]") + "/"
        for part in glob.split("/")
    )
    return re.fullmatch("".join(parts), path + "/") is not None


_PART = st.sampled_from(["a", "b", "*", "a*", "*b", "*a*b", "?", "**"])


@given(
    st.lists(_PART, min_size=1, max_size=5).map("/".join),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=6).map("/".join),
)
def test_a_glob_that_never_goes_back_loses_no_match(glob: str, path: str) -> None:
    if not set(glob) & set("*?") or glob.endswith("**"):
        return
    assert bool(compile_glob(glob).fullmatch(path)) is slow_match(glob, path)


@given(
    st.lists(_PART, min_size=1, max_size=5).map("/".join),
    st.sampled_from(["", "/"]),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=6),
)
def test_no_folder_of_a_match_is_left_out(glob: str, end: str, names: list[str]) -> None:
    if compile_glob(glob + end).fullmatch("/".join(names)):
        assert all(may_match_below(glob + end, "/".join(names[:n])) for n in range(1, len(names)))


def test_a_glob_of_many_stars_is_matched_in_linear_time() -> None:
    # Going back at every star would take longer than the age of the universe.
    assert compile_glob("*a" * 40 + "b").fullmatch("a" * 4_000) is None
    assert compile_glob("**/a/" * 40 + "b").fullmatch("a/" * 2_000 + "c") is None


def test_an_index_finds_what_each_path_alone_would_find() -> None:
    paths = [
        f"{top}/{name}{n}.{end}"
        for top in ("a", "ab", "b")
        for name in "xy"
        for n in range(3)
        for end in ("py", "md")
    ]
    index = PathIndex(paths)
    for glob in ("a/*.py", "**/x*", "a", "ab/", "*/y1.md", "b/**", "."):
        found = [index.paths[at] for at in index.find(glob)]
        assert found == sorted(path for path in paths if compile_glob(glob).fullmatch(path))
    assert len(index.find_all(["a", "a/*.py"])) == len(index.find("a"))
