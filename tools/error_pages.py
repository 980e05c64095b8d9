"""Writes docs/errors: a page for each code of `tenure.errors.CODES`, and their index.

What a page says comes from the registry and from the source: which modules raise the code, and with what
messages. What is written by hand between the two markers of a page survives. `--check` writes nothing and
fails when a page is missing, stale or left over.
"""

import ast
import sys
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

from tenure.errors import CODES

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "tenure"
PAGES = ROOT / "docs" / "errors"
INDEX = "README.md"
LOOKERS_ON = ("simulate",)
"""Packages that expect errors of others and have none of their own."""

NOTES_BEGIN = "<!-- Written by hand; kept when this page is made anew. -->"
NOTES_END = "<!-- End of what is written by hand. -->"
_GENERATED = "<!-- Made by tools/error_pages.py from src/tenure/errors and the code that raises it. -->"

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Runs, plans and steps",
        ("RUN_", "PLAN_", "WORKFLOW_", "EXPRESSION_", "STEP_", "COMMAND_FAILED", "COMMANDS_", "INTERNAL_"),
    ),
    ("Leases and checkpoints", ("LEASE_", "MESSAGE_", "HEARTBEAT_", "CHECKPOINT_")),
    ("Waits, approvals and children", ("WAIT_", "EVENT_", "APPROV", "ACCOUNT_", "CHILD_", "TOO_MANY_BEHIND")),
    (
        "Requests and limits",
        ("IDEMPOTENCY_", "PAYLOAD_", "LIMIT_", "TENANT_", "QUEUE_", "INVALID_", "FILTER_", "COMMAND_"),
    ),
    ("Schedules", ("SCHEDULE_",)),
    ("Seals and the ledger", ("SIGNING_", "SEAL_", "LEDGER_", "EVIDENCE_")),
    ("Policy and freezes", ("POLICY_", "SECOND_", "FROZEN")),
    ("Actions and receipts", ("ACT_", "ACTION_", "WRITES_", "BUDGET_", "RECEIPT_")),
    ("Connectors", ("CONNECTOR", "UNKNOWN_OPERATION", "OUTGOING_")),
    (
        "The API",
        (
            "REQUEST_",
            "CURSOR_",
            "UNAUTHENTICATED",
            "SIGNATURE_",
            "FORBIDDEN",
            "ORIGIN_",
            "NOT_",
            "METHOD_",
            "STREAM_",
            "UNSUPPORTED_",
            "RATE_",
            "TOO_MANY_",
            "SERVER_",
            "UPSTREAM_",
            "NLM_",
            "AGENT_",
            "LISTEN_",
            "EXTRA_",
        ),
    ),
    (
        "People, keys and hooks",
        (
            "CLIENT_",
            "PERSON_",
            "KEY_",
            "ALREADY_",
            "CHANGED_",
            "ENROLMENT_",
            "SLACK_",
            "HOOK_",
            "DELIVERY_",
            "WEBHOOK_",
            "SECRET_",
        ),
    ),
    ("Profiles", ("PROFILE_",)),
    ("Databases", ("STORE_", "ARTIFACT_")),
)

EXAMPLES: dict[str, tuple[str, str]] = {
    "PROFILE_NOT_FOUND": (
        "tenure lifecycle show waterfall",
        "error PROFILE_NOT_FOUND: there is no profile 'waterfall'; there are agent-runs, approval-runs, delta-ci, git-with-intent, governed-runtime, tenure",
    ),
    "STORE_NOT_MIGRATED": (
        "tenure doctor --db nowhere.db",
        "error STORE_NOT_MIGRATED: there is no database at nowhere.db",
    ),
    "STORE_NOT_A_DATABASE": (
        "tenure doctor --db mysql://localhost/tenure",
        "error STORE_NOT_A_DATABASE: mysql:// is not supported; use sqlite:PATH or postgresql://",
    ),
}
"""Code -> a command that is refused with it, and the first line of what it prints; the tests run them."""


class Uses:
    """Where the source names a code, and what it says when it raises it."""

    def __init__(self) -> None:
        self.modules: dict[str, set[str]] = {code: set() for code in CODES}
        self.messages: dict[str, set[str]] = {code: set() for code in CODES}
        for path in sorted(SOURCE.rglob("*.py")):
            if path.relative_to(SOURCE).parts[0] not in (*LOOKERS_ON, "errors"):
                self._read(path)

    def _read(self, path: Path) -> None:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        not_uses = set(_mentions(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node.value in CODES and id(node) not in not_uses:
                self.modules[node.value].add(path.relative_to(ROOT).as_posix())
            elif isinstance(node, ast.Call) and _name(node.func) == "TenureError" and len(node.args) > 1:
                code, message = node.args[0], _text(node.args[1])
                if isinstance(code, ast.Constant) and code.value in CODES and message is not None:
                    self.messages[code.value].add(message)


def _mentions(tree: ast.Module) -> Iterator[int]:
    """Constants that do not use a code: prose, and what somebody else's code is compared with."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            yield id(node.value)
        elif isinstance(node, ast.Compare | ast.MatchValue):
            yield from map(id, ast.walk(node))


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _text(node: ast.expr) -> str | None:
    """A message as it stands in the source, with `...` for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "..."
            for part in node.values
        )
    return None


def notes_of(page: Path) -> str:
    """What was written by hand on a page."""
    if not page.exists():
        return ""
    _, found, rest = page.read_text(encoding="utf-8").partition(NOTES_BEGIN)
    return rest.partition(NOTES_END)[0].strip("\n") if found else ""


def _quoted(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _status(code: int) -> str:
    return f"{code} {HTTPStatus(code).phrase}"


def page_of(code: str, uses: Uses, notes: str) -> str:
    """A code's page."""
    spec = CODES[code]
    again = (
        "yes: the same request may succeed later" if spec.retryable else "no: something has to change first"
    )
    lines = [
        f"# {code}",
        "",
        _GENERATED,
        "",
        spec.meaning,
        "",
        "| | |",
        "|---|---|",
        f"| HTTP status | {_status(spec.status)} |",
        f"| Worth repeating | {again} |",
        "",
        "## What to do",
        "",
        spec.remedy_at_api,
        "",
    ]
    if messages := sorted(uses.messages[code]):
        lines += ["## What it says", "", *[f"- {_quoted(message)}" for message in messages], ""]
    if code in EXAMPLES:
        command, answer = EXAMPLES[code]
        lines += ["## Example", "", "```console", f"$ {command}", answer, "```", ""]
    lines += ["## Where it comes from", ""]
    if modules := sorted(uses.modules[code]):
        lines += [f"- [`{module}`](../../{module})" for module in modules]
    else:
        lines += ["No code raises it yet; the name is reserved."]
    lines += ["", NOTES_BEGIN]
    if notes:
        lines += ["", notes, ""]
    lines += [NOTES_END, "", f"[All errors]({INDEX})", ""]
    return "\n".join(lines)


def index() -> str:
    """The list of all codes."""
    lines = [
        "# Errors",
        "",
        _GENERATED,
        "",
        "Every error of Tenure has a stable code. A refused request changed nothing. The message says what failed, and the",
        "page of the code says what to do. Programs should compare codes, never messages.",
        "",
    ]
    left = list(CODES)
    for title, prefixes in GROUPS:
        codes = [code for code in left if code.startswith(prefixes)]
        left = [code for code in left if code not in codes]
        lines += [f"## {title}", "", "| code | HTTP | meaning |", "|---|---|---|"]
        lines += [f"| [{code}]({code}.md) | {CODES[code].status} | {CODES[code].meaning} |" for code in codes]
        lines += [""]
    if left:
        raise SystemExit(
            f"no group of the index has {', '.join(left)}: give them one in tools/error_pages.py"
        )
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """Every page as it should be."""
    uses = Uses()
    made = {PAGES / f"{code}.md": page_of(code, uses, notes_of(PAGES / f"{code}.md")) for code in CODES}
    return {PAGES / INDEX: index(), **made}


def problems() -> Iterator[str]:
    """What is missing, stale or left over."""
    wanted = pages()
    for path, text in wanted.items():
        if not path.exists():
            yield f"{path.relative_to(ROOT)} is missing"
        elif path.read_text(encoding="utf-8") != text:
            yield f"{path.relative_to(ROOT)} is stale"
    for path in sorted(PAGES.glob("*.md")):
        if path not in wanted:
            yield f"{path.relative_to(ROOT)} is about a code that does not exist"


def main(arguments: list[str]) -> int:
    """Write the pages, or check them."""
    if arguments == ["--check"]:
        found = list(problems())
        print("\n".join(found) if found else "the pages of docs/errors are up to date")
        if found:
            print("run `make docs`")
        return 1 if found else 0
    if arguments:
        print("usage: error_pages.py [--check]")
        return 2
    PAGES.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    written = 0
    for path, text in wanted.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            written += 1
    for path in PAGES.glob("*.md"):
        if path not in wanted:
            path.unlink()
    print(f"docs/errors: {written} of {len(wanted)} pages written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
