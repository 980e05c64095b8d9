"""Renders an approval as a Slack card, with Slack's own models. Pure.

Laws:
1. People approve what they can see: the card contains all proposed writes in the connector's words, with every character visible. If they do
   not fit, the card has no approve button, but a link to the full text.
2. The words of an agent or a workflow are separate, under a title that says so. They may be truncated.
3. Untrusted text is plain: escaped, without formatting, mentions, links or pictures.
4. The card names its revision and digest, and its buttons contain both.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from slack_sdk.models.blocks import (
    ActionsBlock,
    Block,
    ButtonElement,
    ContextBlock,
    DividerBlock,
    HeaderBlock,
    InteractiveElement,
    MarkdownTextObject,
    PlainTextObject,
    SectionBlock,
    TextObject,
)

from tenure.govern.connectors.slack import escape_markup
from tenure.govern.display_text import escape_invisible, truncate_text
from tenure.govern.proposals import ActProposal, read_proposal
from tenure.shapes.approvals import Approval

TEXT_CHARS_MAX = 3_000
"""Slack's limit for one text."""
HEADER_CHARS_MAX = 150
BLOCKS_MAX = 50
WRITE_BLOCKS_MAX = 8
"""How many texts the proposed writes may fill. Longer writes are not readable on a card."""
SAID_CHARS_MAX = 1_000
"""For the words of an agent and of a policy."""
FACT_CHARS_MAX = 300
DIGEST_CHARS = 12
APPROVE, REJECT = "tenure.approve", "tenure.reject"


class SlackMessage(msgspec.Struct, frozen=True):
    text: str
    blocks: list[dict[str, Any]]


def card_content_key(view: Approval) -> str:
    """What a card shows, as a key for comparison."""
    return f"{view.revision}/{view.status}/{' '.join(view.votes)}"


def render_card(view: Approval, link: str | None) -> SlackMessage:
    """The card of an open or ended approval. `link` leads to the full text."""
    asked = read_proposal(view.question) if view.governed else None
    writes, fits = _writes(view, asked)
    blocks: list[Block] = [
        HeaderBlock(
            text=PlainTextObject(text=_cut(f"Approval: {escape_invisible(view.action)}", HEADER_CHARS_MAX))
        ),
        _plain(view.title),
        _facts(view),
        DividerBlock(),
        *writes,
    ]
    if asked is not None and asked.rationale:
        blocks += [_title("Why people are asked"), _plain("\n".join(asked.rationale), SAID_CHARS_MAX)]
    if asked is not None and asked.why:
        blocks += [_title("In the agent's own words (unchecked)"), _plain(f"“{asked.why}”", SAID_CHARS_MAX)]
    digest = f"digest {view.digest[:DIGEST_CHARS]}" if view.digest else "binds no action"
    context = f"{view.id} · revision {view.revision} · {digest}"
    blocks.append(ContextBlock(elements=[PlainTextObject(text=context, emoji=False)]))
    if view.status == "requested":
        if not fits:
            blocks.append(_plain("This does not fit on a card: open the full text before you approve."))
        blocks.append(_buttons(view, link, approve=fits))
    else:
        by = ", ".join(view.votes) if view.status == "approved" else view.decided_by
        blocks.append(_plain(view.status.capitalize() + (f" by {by}" if by else "")))
    assert len(blocks) <= BLOCKS_MAX, "a card has few blocks"
    return SlackMessage(
        f"Approval {view.status}: {escape_markup(_cut(escape_invisible(view.title), 200))}",
        [block.to_dict() for block in blocks],
    )


def render_reminder(view: Approval) -> SlackMessage:
    """The message in the card's thread when half of the time has passed."""
    left = "" if view.expires_at is None else f" It expires {_moment(view.expires_at)}."
    text = f"Still waiting: {len(view.votes)} of {view.people} have approved.{left}"
    return SlackMessage(text, [SectionBlock(text=MarkdownTextObject(text=text)).to_dict()])


def _writes(view: Approval, asked: ActProposal | None) -> tuple[list[Block], bool]:
    """The proposed writes, and whether they are complete."""
    if asked is not None:
        title = "Proposed writes"
        text = "\n".join(f"• {escape_invisible(line)}" for line in asked.writes)
    else:
        shows = view.question
        if isinstance(shows, dict):
            shows = {name: value for name, value in shows.items() if name != "title"}
        if not shows:
            return [], True
        title = "Shown by the workflow (its own words)"
        text = _escape_lines(
            shows if isinstance(shows, str) else msgspec.json.format(msgspec.json.encode(shows)).decode()
        )
    pieces = _split_text(text)
    blocks = [SectionBlock(text=PlainTextObject(text=one, emoji=False)) for one in pieces[:WRITE_BLOCKS_MAX]]
    return [_title(title), *blocks], len(pieces) <= WRITE_BLOCKS_MAX and (asked is None or asked.whole)


def _escape_lines(text: str) -> str:
    return "\n".join(map(escape_invisible, text.split("\n")))


def _split_text(text: str) -> list[str]:
    """An escaped text, split at Slack's limit, but not inside of an escape."""
    pieces, piece = [], ""
    for char in text:
        escaped = escape_markup(char)
        if len(piece) + len(escaped) > TEXT_CHARS_MAX:
            pieces.append(piece)
            piece = ""
        piece += escaped
    return [*pieces, piece] if piece.strip() else pieces


def _facts(view: Approval) -> SectionBlock:
    people = f"{len(view.votes)} of {view.people}"
    facts = [
        ("Run", f"{view.run_id} ({escape_invisible(view.workflow)}, {escape_invisible(view.step)})"),
        ("Tier", view.tier),
        ("People", f"{people}, of the group {escape_invisible(view.group)}" if view.group else people),
    ]
    fields: list[TextObject | dict[str, Any] | str] = [
        PlainTextObject(text=escape_markup(f"{name}: {_cut(text, FACT_CHARS_MAX)}"), emoji=False)
        for name, text in facts
    ]
    if view.expires_at is not None:
        fields.append(MarkdownTextObject(text=f"Expires: {_moment(view.expires_at)}"))
    return SectionBlock(fields=fields)


def _buttons(view: Approval, link: str | None, *, approve: bool) -> ActionsBlock:
    value = f"{view.id}:{view.revision}:{view.digest}"
    buttons: list[InteractiveElement | dict[str, Any]] = []
    if approve:
        buttons.append(ButtonElement(text="Approve", action_id=APPROVE, value=value, style="primary"))
    buttons.append(ButtonElement(text="Reject", action_id=REJECT, value=value, style="danger"))
    if link is not None:
        buttons.append(ButtonElement(text="Open", action_id="tenure.open", url=link))
    return ActionsBlock(elements=buttons)


def _title(text: str) -> SectionBlock:
    return SectionBlock(text=MarkdownTextObject(text=f"*{text}*"))


def _plain(text: str, most: int = TEXT_CHARS_MAX) -> SectionBlock:
    """Untrusted text that may be truncated."""
    pieces = _split_text(truncate_text(_escape_lines(text), most - 100 if most >= TEXT_CHARS_MAX else most))
    return SectionBlock(text=PlainTextObject(text=pieces[0] if pieces else "-", emoji=False))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _moment(at: datetime) -> str:
    return f"<!date^{int(at.timestamp())}^{{date_short_pretty}} {{time}}|{at:%Y-%m-%d %H:%M} UTC>"
