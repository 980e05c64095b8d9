"""What people are shown of an action before they say yes or no to it.

Laws:
1. The writes are the connector's words for target and fields, and nothing else's: `writes`. What an agent says of them is apart: `why`.
2. Where not all of them are here, that is said (`whole`): nobody approves what they cannot see.
3. It is a payload like others: it can be erased, and the approval is bound by its digest, not by these words.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tenure.govern import wording

WRITE_CHARS_MAX = 2_000


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """The question of an approval of an act, as JSON."""

    title: str
    action: str
    """`connector.operation`."""
    target: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    writes: list[str] = []
    """Made by the connector from target and fields; every character of it can be seen."""
    whole: bool = True
    """Whether `writes` are all of them, uncut."""
    rationale: list[str] = []
    """Why people are asked: the policy's version, and the rules that said so."""
    why: str = ""
    """The agent's own words."""


def proposal(
    *,
    action: str,
    target: dict[str, Any],
    fields: dict[str, Any],
    rendered: list[str],
    rationale: list[str],
    why: str = "",
) -> bytes:
    """A question about an action, as the kernel keeps it."""
    writes = [wording.visible(line) for line in rendered]
    cut = any(wording.CUT in line for line in writes) or any(len(line) > WRITE_CHARS_MAX for line in writes)
    asked = Proposal(
        title=f"{action}: {wording.bounded(writes[0], 150)}" if writes else action,
        action=action,
        target=target,
        fields=fields,
        writes=[wording.bounded(line, WRITE_CHARS_MAX) for line in writes],
        whole=not cut and bool(writes),
        rationale=rationale,
        why=why,
    )
    return msgspec.json.encode(asked)


def read_proposal(question: Any) -> Proposal | None:
    """A question about an action; None: it is about something else."""
    try:
        return msgspec.convert(question, Proposal)
    except msgspec.ValidationError:
        return None
