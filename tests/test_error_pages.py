"""docs/errors matches the registry and the source, and its examples work."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tenure.cli.main import app
from tenure.errors import CODES, TenureError
from tools import error_pages
from tools.generated_files import ROOT, find_stale


def test_the_error_pages_are_up_to_date() -> None:
    assert find_stale(error_pages.pages()) == [], "run `make docs`"


@pytest.mark.parametrize("code", error_pages.EXAMPLES)
def test_the_example_of_a_page_happens(code: str, tmp_path: Path) -> None:
    command, answer = error_pages.EXAMPLES[code]
    program = [sys.executable, "-c", "from tenure.cli.main import main; main()", *command.split()[1:]]
    ran = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[0] == answer
    assert list(tmp_path.iterdir()) == [], "a refused command creates no file"


def test_an_error_links_to_its_page() -> None:
    for code in CODES:
        assert (ROOT / TenureError(code).docs).is_file()


def test_text_written_by_hand_is_preserved(tmp_path: Path) -> None:
    page = tmp_path / "LEASE_STALE.md"
    uses = error_pages.Uses()
    page.write_text(error_pages.page_of("LEASE_STALE", uses, "## By hand\n\nA note."))
    notes = error_pages.notes_of(page)
    assert notes.strip() == "## By hand\n\nA note."
    assert error_pages.page_of("LEASE_STALE", uses, notes) == page.read_text()


def test_a_page_shows_where_its_code_is_raised() -> None:
    page = (error_pages.PAGES / "LEASE_STALE.md").read_text()
    assert "src/tenure/kernel/decide/leases.py" in page
    assert "`the lease of attempt ... is ...`" in page
    assert "409 Conflict" in page


API_WORDS = re.compile(
    r"\b(GET|HEAD|POST|PUT|PATCH|DELETE) /|\?[a-z_]+=|(?<!-)\bheader|\b(Retry-After|Last-Event-ID|Content-Type|Authorization)\b"
)
RAISED = ("TenureError", "Detail", "BadParameter")


def test_only_http_errors_mention_paths_and_headers() -> None:
    """`GET /hooks` and `?step=` do not help on the command line or in Python. Text for the API only belongs into `at_api`."""
    for code, spec in CODES.items():
        assert API_WORDS.search(f"{spec.meaning} {spec.remedy}") is None, f"{code}: move this to at_api"
    wrong = [
        f"{path.relative_to(error_pages.SOURCE)}: {text.value}"
        for path in sorted(error_pages.SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in RAISED
        for text in ast.walk(node)
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and API_WORDS.search(text.value)
    ]
    connectors = (
        "govern/connectors/http_service.py: a secret cannot be used in a header: it is not printable ASCII"
    )
    about_headers = (
        "services/hooks/registry.py: "  # the settings of a hook name headers, on the command line too
    )
    assert [one for one in wrong if not one.startswith(about_headers)] == [connectors], (
        "move this to the code's at_api, see tenure.errors"
    )


def test_a_client_removes_http_advice_from_errors() -> None:
    for code, spec in CODES.items():
        message = TenureError(code).message.rstrip(".") if spec.at_api else TenureError(code).message
        assert spec.plain_message(spec.api_message(message)) == message
        assert spec.at_api in spec.api_message(message)
        assert not spec.at_api.endswith(".")


NAMED_COMMAND = re.compile(r"`tenure ([^`]+)`")


def test_every_command_in_the_registry_exists_with_its_options() -> None:
    for code, spec in CODES.items():
        for line in NAMED_COMMAND.findall(f"{spec.meaning} {spec.remedy}"):
            command: Any = get_command(app)
            words = line.split()
            while words and hasattr(command, "get_command"):
                command = command.get_command(None, words.pop(0))
                assert command is not None, f"{code}: there is no `tenure {line}`"
            options = {"--help", *(option for parameter in command.params for option in parameter.opts)}
            assert {word for word in words if word.startswith("--")} <= options, f"{code}: `tenure {line}`"
