"""The question that people answer before an action is done.

Laws:
1. `writes` are the connector's rendering of target and fields. The agent's own words are separate: `why`.
2. `whole` says whether all writes are included: nobody approves what they cannot see.
3. A proposal is a payload: it can be erased. The approval is bound to the action's digest, not to these words.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tenure.govern import display_text

WRITE_CHARS_MAX = 2_000


class ActProposal(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    action: str
    target: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    writes: list[str] = []
    """Rendered by the connector from target and fields, with every character visible."""
    whole: bool = True
    rationale: list[str] = []
    """Why people are asked: the policy's version and the rules that require it."""
    why: str = ""


def encode_proposal(
    *,
    action: str,
    target: dict[str, Any],
    fields: dict[str, Any],
    rendered: list[str],
    rationale: list[str],
    why: str = "",
) -> bytes:
    writes = [display_text.escape_invisible(line) for line in rendered]
    cut = any(display_text.CUT in line or len(line) > WRITE_CHARS_MAX for line in writes)
    proposal = ActProposal(
        title=f"{action}: {display_text.truncate_text(writes[0], 150)}" if writes else action,
        action=action,
        target=target,
        fields=fields,
        writes=[display_text.truncate_text(line, WRITE_CHARS_MAX) for line in writes],
        whole=not cut and bool(writes),
        rationale=rationale,
        why=why,
    )
    return msgspec.json.encode(proposal)


def read_proposal(question: Any) -> ActProposal | None:
    """The proposal in a question, or None if the question is about something else."""
    try:
        return msgspec.convert(question, ActProposal)
    except msgspec.ValidationError:
        return None
