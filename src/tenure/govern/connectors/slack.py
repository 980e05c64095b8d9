"""Slack: messages that are posted, updated and deleted.

Laws:
1. A message carries the mark of its key as metadata, which does not show; it is found again by it.
2. A text is a text: `&`, `<` and `>` are escaped, so that none calls people or hides where a link leads. Who wants more sends blocks,
   which are shown to approvers as they are.
3. Slack answers 200 to what it refuses; what it says then decides. What it says of itself being in trouble leaves the end unknown.
"""

from __future__ import annotations

from html import unescape
from typing import Any
from urllib.parse import urlencode

from tenure.govern.connector import Call, Found, Operation, Reversal
from tenure.govern.connectors.base import ConnectorBase
from tenure.govern.connectors.faults import LIMITED, LOST, REJECTED, failed, raise_for, retry_after_seconds
from tenure.govern.connectors.link import Link
from tenure.govern.connectors.marks import mark, text_digest
from tenure.govern.connectors.schemas import object_of
from tenure.govern.wording import lines, shown

BASE_URL = "https://slack.com/api"
EVENT_TYPE = "tenure_act"
PAGES_MAX = 5
PAGE_ROWS = 200
_IN_TROUBLE = frozenset(
    {"internal_error", "fatal_error", "service_unavailable", "request_timeout", "team_added_to_org"}
)
_LIMITED = frozenset({"ratelimited", "rate_limited", "message_limit_exceeded"})
_GONE = "message_not_found"

_CHANNEL = {"type": "string", "pattern": "[A-Z][A-Z0-9]{2,20}", "description": "The id of a channel."}
_TS = {"type": "string", "pattern": r"[0-9]{1,12}\.[0-9]{1,10}", "description": "Slack's name of a message."}
_TEXT = {"type": "string", "minLength": 1, "maxLength": 12_000}
_BLOCKS = {
    "type": "array",
    "items": {"type": "object"},
    "maxItems": 50,
    "description": "Block Kit, sent as it is.",
}
_MESSAGE = object_of(channel=_CHANNEL, ts=_TS, thread_ts_=_TS)

OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation(
            name="message.post",
            summary="Post a message.",
            target=object_of(channel=_CHANNEL, thread_ts_=_TS),
            fields=object_of(text=_TEXT, blocks_=_BLOCKS),
            repeats="marker",
            reverses_by="message.delete",
        ),
        Operation(
            name="message.update",
            summary="Change a message of ours.",
            target=_MESSAGE,
            fields=object_of(text=_TEXT, blocks_=_BLOCKS),
            repeats="sets_state",
            reverses_by="message.update",
        ),
        Operation(
            name="message.delete",
            summary="Delete a message of ours.",
            target=_MESSAGE,
            fields=object_of(),
            repeats="sets_state",
            undo_hint="Post the message again; its text is no longer there.",
            tier="med",
        ),
    )
}


class SlackConnector(ConnectorBase):
    """See the laws above."""

    def __init__(self, name: str = "slack", link: Link | None = None) -> None:
        self.name = name
        self.operations = OPERATIONS
        self._link = link or Link(base_url=BASE_URL)

    async def _ask(
        self, call: Call, method: str, asked: dict[str, Any], *, gone: bool = False
    ) -> dict[str, Any]:
        """One call of the Web API; with `gone`, a message that is not there is an answer like others."""
        headers = {
            "Authorization": f"Bearer {self._link.token(call.tenant)}",
            "Content-Type": "application/json; charset=utf-8",
        }
        if method.startswith("conversations."):  # what reads takes a query, what writes takes JSON
            query = urlencode(
                {key: str(value).lower() if value is True else value for key, value in asked.items()}
            )
            answer = await self._link.request(call, "GET", f"/{method}?{query}", headers=headers)
        else:
            answer = await self._link.request(call, "POST", f"/{method}", json=asked, headers=headers)
        raise_for(answer)
        body = answer.json()
        if not isinstance(body, dict):
            raise failed("unknown", LOST, "answered with something else than an object")
        if body.get("ok") is True or (gone and body.get("error") == _GONE):
            return body
        error = str(body.get("error", ""))
        if error in _LIMITED:
            after = retry_after_seconds(answer)
            raise failed("not_done", LIMITED, f"said {error}", retryable=True, retry_after_seconds=after)
        if error in _IN_TROUBLE or not error:
            raise failed("unknown", LOST, f"said {error or 'neither yes nor no'}")
        raise failed("not_done", REJECTED, f"said {error}")

    async def call(self, call: Call) -> Any:
        """Do it."""
        where: dict[str, Any] = {name: value for name, value in call.target.items() if name != "thread_ts"}
        if call.operation == "message.delete":
            await self._ask(call, "chat.delete", where, gone=True)
            return {}
        text = escaped(call.fields["text"])
        asked: dict[str, Any] = {**where, "text": text}
        if "blocks" in call.fields:
            asked["blocks"] = call.fields["blocks"]
        if call.operation == "message.update":
            if "blocks" not in call.fields:
                asked["blocks"] = []  # else those of before would go on showing
            body = await self._ask(call, "chat.update", asked)
        else:
            if "thread_ts" in call.target:
                asked["thread_ts"] = call.target["thread_ts"]
            marked = {"event_type": EVENT_TYPE, "event_payload": {"mark": mark(call)}}
            asked |= {"metadata": marked, "unfurl_links": False, "unfurl_media": False}
            body = await self._ask(call, "chat.postMessage", asked)
        # A message of blocks is compared by its text all the same: Slack rewrites blocks.
        return {
            **{key: body[key] for key in ("channel", "ts") if key in body},
            "digest": text_digest(call.fields["text"]),
        }

    async def _message(self, call: Call) -> dict[str, Any] | None:
        """The message that is the target."""
        ts = call.target["ts"]
        asked = {
            "channel": call.target["channel"],
            "oldest": ts,
            "latest": ts,
            "inclusive": True,
            "limit": 10,
        }
        thread = call.target.get("thread_ts")
        if thread is None:
            body = await self._ask(call, "conversations.history", asked)
        else:
            body = await self._ask(call, "conversations.replies", {**asked, "ts": thread})
        return next((each for each in body.get("messages", []) if each.get("ts") == ts), None)

    async def state(self, call: Call) -> dict[str, Any] | None:
        """Of a message: its text (to be set again), or what it is compared by."""
        if call.operation == "message.post":
            return None
        message = await self._message(call)
        if message is None:
            return {"digest": None}
        text = unescape(str(message.get("text", "")))
        if call.operation == "message.delete":
            return {"digest": text_digest(text)}
        return {"digest": text_digest(text), "text": text}

    async def lookup(self, call: Call) -> Found | None:
        """By the mark in the metadata of messages."""
        if call.operation != "message.post":
            return None
        asked: dict[str, Any] = {
            "channel": call.target["channel"],
            "limit": PAGE_ROWS,
            "include_all_metadata": True,
        }
        method = "conversations.history"
        if "thread_ts" in call.target:
            method, asked["ts"] = "conversations.replies", call.target["thread_ts"]
        for _page in range(PAGES_MAX):
            body = await self._ask(call, method, asked)
            for message in body.get("messages", []):
                found = message.get("metadata") or {}
                if found.get("event_type") == EVENT_TYPE and found.get("event_payload", {}).get(
                    "mark"
                ) == mark(call):
                    text = unescape(str(message.get("text", "")))
                    where = {"channel": call.target["channel"], "ts": message["ts"]}
                    return Found({**where, "digest": text_digest(text)})
            cursor = (body.get("response_metadata") or {}).get("next_cursor")
            if not cursor:
                break
            asked["cursor"] = cursor
        return None

    def reverse(
        self,
        operation: str,
        target: dict[str, Any],
        fields: dict[str, Any],
        before: dict[str, Any] | None,
        result: Any,
    ) -> Reversal | None:
        """Delete what was posted; give back the text that was changed."""
        if operation == "message.post" and isinstance(result, dict) and "ts" in result:
            where = {"channel": result.get("channel", target["channel"]), "ts": result["ts"]}
            if "thread_ts" in target:
                where["thread_ts"] = target["thread_ts"]
            return Reversal(
                operation="message.delete", target=where, fields={}, expects={"digest": result.get("digest")}
            )
        if operation == "message.update" and before and before.get("text") and "blocks" not in fields:
            if before["digest"] == text_digest(fields["text"]):
                return None
            return Reversal(
                operation=operation,
                target=target,
                fields={"text": before["text"]},
                expects={"digest": text_digest(fields["text"])},
            )
        return None

    def render(self, operation: str, target: dict[str, Any], fields: dict[str, Any]) -> list[str]:
        """In words."""
        where = f"in {shown(target.get('channel', ''))}"
        if "thread_ts" in target:
            where += f", thread {shown(target['thread_ts'])}"
        verb = {"message.post": "Post", "message.update": "Change", "message.delete": "Delete"}[operation]
        name = f"the message {shown(target.get('ts', ''))}" if "ts" in target else "a message"
        said = [f"{verb} {name} {where}"]
        said += (
            [f"  {shown(line, 1_000)}" for line in fields.get("text", "").split("\n")]
            if "text" in fields
            else []
        )
        said += [
            f"  block {n}: {shown(block, 1_000)}" for n, block in enumerate(fields.get("blocks", []), start=1)
        ]
        return lines(*said)


def escaped(text: str) -> str:
    """A text in which nothing is Slack's markup of people, channels and links."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
