"""`make site`: the site builds in strict mode, has every page, and loads nothing from another host."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
LOADED = re.compile(
    r"<(?:script|img|iframe)[^>]+src=\"(?:https?:)?//|<link[^>]+rel=\"(?:stylesheet|preconnect)\"[^>]+href=\"https?://"
)
"""What a browser loads without a click of the reader."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)),
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    missing = []
    for page in pages:
        folder = page.parent if page.stem in ("index", "README") else page.with_suffix("")
        if not (site / folder / "index.html").exists():
            missing.append(str(page))
    assert missing == []


def test_the_site_loads_nothing_from_another_host(site: Path) -> None:
    assert [
        str(page.relative_to(site)) for page in site.rglob("*.html") if LOADED.search(page.read_text())
    ] == []


def test_every_page_for_readers_is_in_one_section_of_the_navigation() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert [title for section in nav for title in section] == [
        "Start",
        "How-to guides",
        "Explanations",
        "Reference",
    ]
    listed = sorted(_pages(nav))
    assert listed == sorted(set(listed))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= set(listed)


def _pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    return [page for entry in entries for page in _pages(entry)]
