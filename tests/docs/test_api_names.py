"""The Python names that the pages mention exist: `tenure.NAME`, `engine.METHOD`, `engine.GROUP.METHOD`, `client.…`."""

import re
from functools import cached_property
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import tenure
from tenure.client import Client
from tenure.engine.engine import Engine

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
CALL = re.compile(r"(?<![./\w])(engine|client)\.(?!md\b)([a-z]\w*)\b(?:\.([a-z]\w*))?(?![\w:])")
NAME = re.compile(r"`tenure\.([A-Z]\w+)")
OLD = re.compile(r"^\| `[^|]+\| ", re.MULTILINE)
"""The left column of the changelog's table of renames."""
CLIENT = Client("http://localhost:1", key="tn_a_b")


def text_of(page: Path) -> str:
    text = page.read_text()
    return OLD.sub("| ", text) if page.name == "CHANGELOG.md" else text


def group_type(name: str) -> Any:
    """The class of a group of the engine. An engine has its groups only after it is opened."""
    found: Any = getattr(Engine, name, None)
    if not isinstance(found, property | cached_property):
        return found
    getter: Any = found.fget if isinstance(found, property) else found.func
    return get_type_hints(getter)["return"]


def exists(owner: str, name: str, member: str) -> bool:
    """Whether there is an `owner.name.member`."""
    group = group_type(name) if owner == "engine" else getattr(CLIENT, name, None)
    return group is not None and (not member or hasattr(group, member))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_calls_of_a_page_exist(page: Path) -> None:
    found = sorted(set(CALL.findall(text_of(page))))
    assert [".".join(call) for call in found if not exists(*call)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_public_names_of_a_page_exist(page: Path) -> None:
    assert [name for name in NAME.findall(text_of(page)) if name not in tenure.__all__] == []
