"""The queue text of a step: its queue, and the capability that a worker needs to claim it.

Law: a capability is `queue|what`, where `what` is `run` (commands), `tool:NAME` or `flow:NAME@VERSION`. Steps that
nobody leases (gates) have the plain queue.
"""

from __future__ import annotations

from tenure.errors import Detail, TenureError
from tenure.limits import NAME_CHARS_MAX

RUN = "run"
"""The capability to execute commands."""
SEPARATOR = "|"


def tool(name: str) -> str:
    """The capability of workers that have this tool."""
    return f"tool:{name}"


def flow(name: str, version: str) -> str:
    """The capability of workers that have this version of a code workflow."""
    return f"flow:{name}@{version}"


def capability(queue: str, what: str) -> str:
    """The queue text of a step on `queue` that needs a worker for `what`."""
    for part, text in (("queue", queue), ("what it needs", what)):
        if not text or not text.isprintable() or SEPARATOR in text:
            raise TenureError(
                "INVALID_INPUT",
                f"{part} must be printable, not empty and without {SEPARATOR!r}: {text[:60]!r} is not",
            )
    whole = f"{queue}{SEPARATOR}{what}"
    if len(whole) > NAME_CHARS_MAX:
        raise TenureError(
            "INVALID_INPUT",
            f"queue and {what.partition(':')[0]} together have {len(whole)} characters; at most {NAME_CHARS_MAX}",
        )
    return whole


def check(text: str) -> None:
    """Refuse an invalid capability: a runner that asks for one would never get a step."""
    queue, separator, what = text.partition(SEPARATOR)
    kind, _, name = what.partition(":")
    fits = what == RUN or (kind == "tool" and name) or (kind == "flow" and all(name.rpartition("@")[::2]))
    if not (separator and queue and fits and text.isprintable() and SEPARATOR not in what):
        problem = (
            f"{text[:60]!r} is not a capability: write QUEUE|run, QUEUE|tool:NAME or QUEUE|flow:NAME@VERSION"
        )
    elif len(text) > NAME_CHARS_MAX:
        problem = f"a capability has at most {NAME_CHARS_MAX} characters"
    else:
        return
    raise TenureError("INVALID_INPUT", problem, (Detail("capabilities", problem),))


def split(text: str) -> tuple[str, str]:
    """A queue text as its queue and its capability, which is empty for a plain queue."""
    queue, _, what = text.partition(SEPARATOR)
    return queue, what
