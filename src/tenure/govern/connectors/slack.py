"""The Slack connector: posts, updates and deletes messages.

Laws:
1. A message has the marker of its key in its metadata, which is invisible, and is found by it.
2. A text is plain: `&`, `<` and `>` are escaped, so that it mentions nobody and hides no link. For more, send blocks, which approvers see
   unchanged.
3. Slack answers refusals with status 200; the error in the body decides. An internal error of Slack leaves the outcome unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import unescape
from typing import Any
from urllib.parse import urlencode

from tenure.expressions.json_schema import object_schema
from tenure.govern.connector import ConnectorCall, FoundEffect, Operation, Reversal
from tenure.govern.connectors.faults import (
    LOST,
    REJECTED,
    call_failed,
    raise_for_response,
    rate_limited,
    retry_after_seconds,
)
from tenure.govern.connectors.http_service import ServiceConnector, marker_text, pick_fields, text_digest
from tenure.govern.display_text import PARAGRAPH_CHARS_MAX, display_lines, display_paragraph, display_value

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
_TS = {
    "type": "string",
    "pattern": r"[0-9]{1,12}\.[0-9]{1,10}",
    "description": "The timestamp that identifies a message.",
}
_TEXT = {"type": "string", "minLength": 1, "maxLength": 12_000}
_BLOCKS = {
    "type": "array",
    "items": {"type": "object"},
    "maxItems": 50,
    "description": "Block Kit, sent unchanged.",
}
_MESSAGE = object_schema(channel=_CHANNEL, ts=_TS, thread_ts_=_TS)

OPERATIONS: Mapping[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation(
            name="message.post",
            summary="Post a message.",
            target=object_schema(channel=_CHANNEL, thread_ts_=_TS),
            fields=object_schema(text=_TEXT, blocks_=_BLOCKS),
            repeats="marker",
            reverses_by="message.delete",
        ),
        Operation(
            name="message.update",
            summary="Change a message that Tenure posted.",
            target=_MESSAGE,
            fields=object_schema(text=_TEXT, blocks_=_BLOCKS),
            repeats="sets_state",
            reverses_by="message.update",
        ),
        Operation(
            name="message.delete",
            summary="Delete a message that Tenure posted.",
            target=_MESSAGE,
            fields=object_schema(),
            repeats="sets_state",
            undo_hint="Post the message again; its text is not kept.",
            tier="med",
        ),
    )
}


class SlackConnector(ServiceConnector):
    name = "slack"
    operations = OPERATIONS
    base_url = BASE_URL

    async def _request(
        self, call: ConnectorCall, method: str, body: dict[str, Any], *, gone: bool = False
    ) -> dict[str, Any]:
        """One call of the Web API. With `gone`, a missing message is returned like a success."""
        headers = {
            "Authorization": f"Bearer {self._link.token(call.tenant)}",
            "Content-Type": "application/json; charset=utf-8",
        }
        if method.startswith(
            "conversations."
        ):  # methods that read take a query, methods that write take JSON
            answer = await self._link.request(call, "GET", f"/{method}?{urlencode(body)}", headers=headers)
        else:
            answer = await self._link.request(call, "POST", f"/{method}", json=body, headers=headers)
        raise_for_response(answer)
        reply = answer.json()
        if not isinstance(reply, dict):
            raise call_failed("unknown", LOST, "answered with something other than an object")
        if reply.get("ok") is True or (gone and reply.get("error") == _GONE):
            return reply
        error = str(reply.get("error", ""))
        if error in _LIMITED:
            raise rate_limited(f"answered {error}", retry_after_seconds(answer))
        if error in _IN_TROUBLE or not error:
            raise call_failed("unknown", LOST, f"answered {error or 'without a result'}")
        raise call_failed("not_done", REJECTED, f"answered {error}")

    async def call(self, call: ConnectorCall) -> Any:
        where: dict[str, Any] = {name: value for name, value in call.target.items() if name != "thread_ts"}
        if call.operation == "message.delete":
            await self._request(call, "chat.delete", where, gone=True)
            return {}
        body = {**where, **call.fields, "text": escape_markup(call.fields["text"])}
        if call.operation == "message.update":
            # Without `blocks`, the old blocks would stay visible.
            reply = await self._request(call, "chat.update", {"blocks": [], **body})
        else:
            body |= {
                **pick_fields(call.target, ("thread_ts",)),
                "metadata": {"event_type": EVENT_TYPE, "event_payload": {"mark": marker_text(call)}},
                "unfurl_links": False,
                "unfurl_media": False,
            }
            reply = await self._request(call, "chat.postMessage", body)
        # A message with blocks is compared by its text: Slack rewrites blocks.
        return {**pick_fields(reply, ("channel", "ts")), "digest": text_digest(call.fields["text"])}

    async def _list_messages(self, call: ConnectorCall, **query: str) -> dict[str, Any]:
        query["channel"] = call.target["channel"]
        if "thread_ts" not in call.target:
            return await self._request(call, "conversations.history", query)
        return await self._request(call, "conversations.replies", {**query, "ts": call.target["thread_ts"]})

    async def state(self, call: ConnectorCall) -> dict[str, Any] | None:
        """The text of a message, to restore it, and a digest to compare it."""
        if call.operation == "message.post":
            return None
        ts = call.target["ts"]
        body = await self._list_messages(call, oldest=ts, latest=ts, inclusive="true", limit="10")
        message = next((each for each in body.get("messages", []) if each.get("ts") == ts), None)
        if message is None:
            return {"digest": None}
        text = _plain_text(message)
        return {"digest": text_digest(text), **({} if call.operation == "message.delete" else {"text": text})}

    async def lookup(self, call: ConnectorCall) -> FoundEffect | None:
        if call.operation != "message.post":
            return None
        query = {"limit": str(PAGE_ROWS), "include_all_metadata": "true"}
        for _page in range(PAGES_MAX):
            body = await self._list_messages(call, **query)
            for message in body.get("messages", []):
                found = message.get("metadata") or {}
                mark = found.get("event_payload", {}).get("mark")
                if found.get("event_type") == EVENT_TYPE and mark == marker_text(call):
                    where = {"channel": call.target["channel"], "ts": message["ts"]}
                    return FoundEffect({**where, "digest": text_digest(_plain_text(message))})
            cursor = (body.get("response_metadata") or {}).get("next_cursor")
            if not cursor:
                break
            query["cursor"] = cursor
        return None

    def reverse(
        self,
        operation: str,
        target: dict[str, Any],
        fields: dict[str, Any],
        before: dict[str, Any] | None,
        result: Any,
    ) -> Reversal | None:
        """Deletes a posted message; restores a changed text."""
        if operation == "message.post" and isinstance(result, dict) and "ts" in result:
            return Reversal(
                operation="message.delete",
                target={**target, **pick_fields(result, ("channel", "ts"))},
                fields={},
                expects={"digest": result.get("digest")},
            )
        if operation == "message.update" and before and before.get("text") and "blocks" not in fields:
            written = text_digest(fields["text"])
            if before["digest"] != written:
                return Reversal(
                    operation=operation,
                    target=target,
                    fields={"text": before["text"]},
                    expects={"digest": written},
                )
        return None

    def render(self, operation: str, target: dict[str, Any], fields: dict[str, Any]) -> list[str]:
        where = f"in {display_value(target.get('channel', ''))}"
        if "thread_ts" in target:
            where += f", thread {display_value(target['thread_ts'])}"
        verb = {"message.post": "Post", "message.update": "Change", "message.delete": "Delete"}[operation]
        name = f"the message {display_value(target.get('ts', ''))}" if "ts" in target else "a message"
        return display_lines(
            f"{verb} {name} {where}",
            *(display_paragraph(fields["text"]) if "text" in fields else ()),
            *(
                f"  block {n}: {display_value(block, PARAGRAPH_CHARS_MAX)}"
                for n, block in enumerate(fields.get("blocks", []), start=1)
            ),
        )


def _plain_text(message: dict[str, Any]) -> str:
    return unescape(str(message.get("text", "")))


def escape_markup(text: str) -> str:
    """A text without Slack markup of people, channels and links."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
