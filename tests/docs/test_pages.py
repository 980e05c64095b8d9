"""The documentation works as shown: every block of Python and shell is run, and every link resolves."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import LANGUAGES, ROOT, blocks, pages, run

ELSEWHERE = {
    "ARCHITECTURE.md": "diagrams only",
    "benchmarks.md": "an hour's work; tests/bench runs the bench itself",
    "lifecycle.md": "generated",
    "testing.md": "its blocks are tests, and are run as such in tests/testing",
}
"""Pages whose blocks are not run here, each with the reason."""
NOT_RUN_MAX = 4
RUN = [page for page in pages() if page.name not in ELSEWHERE]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_the_code_blocks_of_a_page_run_as_shown(page: Path, tmp_path: Path) -> None:
    run(page, tmp_path)


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_every_code_block_has_a_language(page: Path) -> None:
    assert [f"{b.line}: {b.language!r}" for b in blocks(page) if b.language not in LANGUAGES] == []


def test_few_code_blocks_are_not_run() -> None:
    found = [f"{page.name}:{b.line}: {b.not_run}" for page in RUN for b in blocks(page) if b.not_run]
    assert len(found) <= NOT_RUN_MAX, found


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "docs" / "quickstart.md"], ids=lambda page: page.name
)
def test_every_block_of_the_first_pages_can_be_pasted_and_run(page: Path) -> None:
    """Each Python block is a whole file, which the page then runs with `python FILE`, serves or imports."""
    found = [block for block in blocks(page) if block.language == "python"]
    shell = "\n".join(block.text for block in blocks(page) if block.language == "sh")
    assert found
    for block in found:
        assert block.file is not None, f"{page.name}:{block.line} is not a file"
        compile(block.text, page.name, "exec")  # no `await` outside of a function
        name = Path(block.file).stem
        used = f"python {block.file}" in shell or f"tenure run {block.file}" in shell
        assert used or any(f"from {name} import" in other.text for other in found), block.file


def test_links_resolve() -> None:
    lost = []
    for page in pages():
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = target.partition("#")
            if "://" in target:
                continue
            found = (page.parent / path) if path else page
            if not found.exists():
                lost.append(f"{page.name}: {target}")
            elif anchor and found.suffix == ".md" and anchor not in _anchors(found):
                lost.append(f"{page.name}: {target}, which has no such heading")
    assert lost == []


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_an_incorrect_page_is_detected(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```sh\necho hello; y=2\n```\n```text\nhello ...\n```\n")
    run(page, tmp_path)
    for wrong in (
        "```python\nx = missing\n```\n",
        "```sh\nfalse\n```\n",
        "```sh\necho hello\n```\n\n```text\ngood bye\n```\n",
        "```python\nprint('b'); print('a')\n```\n\n```text\na\nb\n```\n",
    ):
        page.write_text(wrong)
        with pytest.raises(AssertionError, match=r"page\.md:1"):
            run(page, tmp_path)


def test_the_pages_run_this_checkout() -> None:
    assert ROOT / "docs" / "quickstart.md" in RUN
