"""The card of an approval, as Slack shows it: built with Slack's own models, pure.

Laws:
1. What is approved is what can be seen: the proposed writes stand there whole, in the connector's words, every character visible. Where
   they do not fit, there is no button to approve, but a link to where they do.
2. What an agent or a workflow says of itself stands apart, under a title that says so. It may be cut.
3. Texts of others are plain: escaped, without formatting, mentions, links or pictures.
4. The card says which revision and which digest it shows, and its buttons carry both.
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

from tenure.govern.asking import Proposal, read_proposal
from tenure.govern.wording import bounded, visible
from tenure.orchestrator.questions import ApprovalView

TEXT_CHARS_MAX = 3_000
"""Slack's, of one text."""
HEADER_CHARS_MAX = 150
BLOCKS_MAX = 50
WRITE_BLOCKS_MAX = 8
"""Texts that the proposed writes may fill; what is longer is nothing to be read on a card."""
SAID_CHARS_MAX = 1_000
"""Of an agent's own words, and of a policy's."""
FACT_CHARS_MAX = 300
DIGEST_CHARS = 12
APPROVE, REJECT = "tenure.approve", "tenure.reject"


class Message(msgspec.Struct, frozen=True):
    """What is posted."""

    text: str
    """For notifications."""
    blocks: list[dict[str, Any]]


def shown_of(view: ApprovalView) -> str:
    """What a card of this question shows, to be compared with."""
    return f"{view.revision}/{view.status}/{' '.join(view.votes)}"


def card(view: ApprovalView, link: str | None) -> Message:
    """The card of a question, open or ended; `link` leads to the whole of it."""
    asked = read_proposal(view.question) if view.governed else None
    writes, fits = _writes(view, asked)
    blocks: list[Block] = [
        HeaderBlock(text=PlainTextObject(text=_cut(f"Approval: {visible(view.action)}", HEADER_CHARS_MAX))),
        _plain(view.title),
        _facts(view),
        DividerBlock(),
        *writes,
    ]
    if asked is not None and asked.rationale:
        blocks += [_title("Why people are asked"), _plain("\n".join(asked.rationale), SAID_CHARS_MAX)]
    if asked is not None and asked.why:
        blocks += [_title("In the agent's own words (unchecked)"), _plain(f"“{asked.why}”", SAID_CHARS_MAX)]
    blocks.append(_context(view))
    if view.status == "requested":
        if not fits:
            blocks.append(_plain("This does not fit a card: look at the whole of it before you approve."))
        blocks.append(_buttons(view, link, approve=fits))
    else:
        blocks.append(_ended(view))
    assert len(blocks) <= BLOCKS_MAX, "a card has few blocks"
    return Message(
        f"Approval {view.status}: {_escaped(_cut(visible(view.title), 200))}",
        [block.to_dict() for block in blocks],
    )


def reminder(view: ApprovalView) -> Message:
    """What is said in the card's thread when half of the time has gone."""
    left = "" if view.expires_at is None else f" It expires {_moment(view.expires_at)}."
    text = f"Still waiting: {len(view.votes)} of {view.people} have said yes.{left}"
    return Message(text, [SectionBlock(text=MarkdownTextObject(text=text)).to_dict()])


def _writes(view: ApprovalView, asked: Proposal | None) -> tuple[list[Block], bool]:
    """What is to be done, and whether all of it is here."""
    if asked is not None:
        title, text, fits = (
            "Proposed writes",
            "\n".join(f"• {visible(line)}" for line in asked.writes),
            asked.whole,
        )
    else:
        shows = view.question
        if isinstance(shows, dict):
            shows = {name: value for name, value in shows.items() if name != "title"}
        if not shows:
            return [], True
        body = shows if isinstance(shows, str) else msgspec.json.format(msgspec.json.encode(shows)).decode()
        title, text, fits = (
            "Shown by the workflow (its own words)",
            "\n".join(map(visible, body.split("\n"))),
            True,
        )
    pieces = _pieces(text)
    if len(pieces) > WRITE_BLOCKS_MAX:
        pieces, fits = pieces[:WRITE_BLOCKS_MAX], False
    return [
        _title(title),
        *(SectionBlock(text=PlainTextObject(text=one, emoji=False)) for one in pieces),
    ], fits


def _pieces(text: str) -> list[str]:
    """A text, escaped, in parts that Slack takes; none ends within an escaped character."""
    pieces, piece = [], ""
    for char in text:
        escaped = _escaped(char)
        if len(piece) + len(escaped) > TEXT_CHARS_MAX:
            pieces.append(piece)
            piece = ""
        piece += escaped
    return [*pieces, piece] if piece.strip() else pieces


def _facts(view: ApprovalView) -> SectionBlock:
    people = f"{len(view.votes)} of {view.people}"
    facts = [
        ("Run", f"{view.run_id} ({visible(view.workflow)}, {visible(view.step)})"),
        ("Tier", view.tier),
        ("People", f"{people}, of the group {visible(view.group)}" if view.group else people),
    ]
    fields: list[TextObject | dict[str, Any] | str] = [
        PlainTextObject(text=_escaped(f"{name}: {_cut(text, FACT_CHARS_MAX)}"), emoji=False)
        for name, text in facts
    ]
    if view.expires_at is not None:
        fields.append(MarkdownTextObject(text=f"Expires: {_moment(view.expires_at)}"))
    return SectionBlock(fields=fields)


def _context(view: ApprovalView) -> ContextBlock:
    digest = f"digest {view.digest[:DIGEST_CHARS]}" if view.digest else "binds no action"
    text = f"{view.id} · revision {view.revision} · {digest}"
    return ContextBlock(elements=[PlainTextObject(text=text, emoji=False)])


def _buttons(view: ApprovalView, link: str | None, *, approve: bool) -> ActionsBlock:
    value = f"{view.id}:{view.revision}:{view.digest}"
    buttons: list[InteractiveElement | dict[str, Any]] = []
    if approve:
        buttons.append(ButtonElement(text="Approve", action_id=APPROVE, value=value, style="primary"))
    buttons.append(ButtonElement(text="Reject", action_id=REJECT, value=value, style="danger"))
    if link is not None:
        buttons.append(ButtonElement(text="Open", action_id="tenure.open", url=link))
    return ActionsBlock(elements=buttons)


def _ended(view: ApprovalView) -> SectionBlock:
    by = ", ".join(view.votes) if view.status == "approved" else view.decided_by
    text = view.status.capitalize() + (f" by {by}" if by else "")
    return _plain(text)


def _title(text: str) -> SectionBlock:
    return SectionBlock(text=MarkdownTextObject(text=f"*{text}*"))


def _plain(text: str, most: int = TEXT_CHARS_MAX) -> SectionBlock:
    """A text of others that may be cut."""
    seen = "\n".join(visible(line) for line in text.split("\n"))
    pieces = _pieces(bounded(seen, most - 100 if most >= TEXT_CHARS_MAX else most))
    return SectionBlock(text=PlainTextObject(text=pieces[0] if pieces else "-", emoji=False))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _moment(at: datetime) -> str:
    """A moment, in the reader's own time."""
    return f"<!date^{int(at.timestamp())}^{{date_short_pretty}} {{time}}|{at:%Y-%m-%d %H:%M} UTC>"
