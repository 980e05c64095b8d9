"""Writes docs/errors: a page for each code of `tenure.errors.CODES`, and their index.

The content comes from the registry and from the source: which modules raise the code, and with which messages. Notes
between the two markers of a page are written by hand and are kept. `--check` writes nothing and fails if a page is
missing, stale or left over.
"""

import ast
import sys
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

from tenure.errors import CODES
from tools.generated_files import ROOT, write_or_check

SOURCE = ROOT / "src" / "tenure"
PAGES = ROOT / "docs" / "errors"
INDEX = "README.md"
SKIPPED_PACKAGES = ("simulate", "errors")
"""Packages that name codes without raising errors for users."""

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
    (
        "CI",
        (
            "CI_",
            "REPOSITORY_",
            "NETWORK_",
            "COMMIT_",
            "PIPELINE_",
            "REPORT_",
            "VCS_",
            "SANDBOX_",
        ),
    ),
    ("Files and logs of jobs", ("UPLOAD_", "CACHE_", "LOG_", "ARTIFACT_EXPIRED")),
    ("Schedules", ("SCHEDULE_",)),
    ("Reports to the VCS", ("REPORT_", "VCS_")),
    ("Seals and the ledger", ("SIGNING_", "SEAL_", "LEDGER_", "EVIDENCE_")),
    ("Policy and freezes", ("POLICY_", "SECOND_", "FROZEN")),
    ("Actions and receipts", ("ACT_", "ACTION_", "WRITES_", "BUDGET_", "RECEIPT_")),
    ("Connectors", ("CONNECTOR", "UNKNOWN_OPERATION", "OUTGOING_")),
    (
        "The API",
        (
            "REQUEST_",
            "RANGE_",
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
            "RANGE_",
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
"""Code -> a command that fails with it, and the first line of its output. The tests run the commands."""


class Uses:
    """Where the source names each code, and the messages with which it raises it."""

    def __init__(self) -> None:
        self.modules: dict[str, set[str]] = {code: set() for code in CODES}
        self.messages: dict[str, set[str]] = {code: set() for code in CODES}
        for path in sorted(SOURCE.rglob("*.py")):
            if path.relative_to(SOURCE).parts[0] not in SKIPPED_PACKAGES:
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
    """The ids of constants that do not use a code: docstrings, and comparisons with the code of an error."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            yield id(node.value)
        elif isinstance(node, ast.Compare | ast.MatchValue):
            yield from map(id, ast.walk(node))


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _text(node: ast.expr) -> str | None:
    """A message in the source, with `...` in place of values."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "..."
            for part in node.values
        )
    return None


def notes_of(page: Path) -> str:
    """The notes on a page that were written by hand."""
    if not page.exists():
        return ""
    _, found, rest = page.read_text(encoding="utf-8").partition(NOTES_BEGIN)
    return rest.partition(NOTES_END)[0].strip("\n") if found else ""


def _quoted(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def page_of(code: str, uses: Uses, notes: str) -> str:
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
        f"| HTTP status | {spec.status} {HTTPStatus(spec.status).phrase} |",
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
            f"no group of the index has {', '.join(left)}: add their prefixes to GROUPS in tools/error_pages.py"
        )
    return "\n".join(lines)


def pages() -> dict[Path, str | None]:
    """Every page with its text, and None for pages of codes that do not exist."""
    uses = Uses()
    made = {PAGES / f"{code}.md": page_of(code, uses, notes_of(PAGES / f"{code}.md")) for code in CODES}
    return {**dict.fromkeys(sorted(PAGES.glob("*.md"))), PAGES / INDEX: index(), **made}


if __name__ == "__main__":
    sys.exit(write_or_check(pages()))
