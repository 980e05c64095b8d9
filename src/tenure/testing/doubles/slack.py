"""A Slack that knows messages, as far as the connector and the approval cards do."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import msgspec

from tenure.testing.doubles.base import Double, Reply, Request

_LISTS = frozenset({"blocks", "attachments", "metadata"})


class SlackDouble(Double):
    """`url` is the API's, without a slash at its end."""

    def __init__(self, *, token: str = "", **how: Any) -> None:
        super().__init__(token=token, **how)
        self.messages: list[dict[str, Any]] = []
        """The oldest first."""
        self._now = 1_700_000_000

    def in_channel(self, channel: str) -> list[dict[str, Any]]:
        """The messages of a channel."""
        return [message for message in self.messages if message["channel"] == channel]

    def say(self, channel: str, text: str, *, thread_ts: str | None = None) -> str:
        """Somebody else's message."""
        return str(self._post({"channel": channel, "text": text, "thread_ts": thread_ts})["ts"])

    def handle(self, request: Request) -> Reply:
        """One call of the Web API."""
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return _no("invalid_auth")
        asked = _asked(request)
        match request.parts[-1:]:
            case ("chat.postMessage",):
                if not asked.get("text") and not asked.get("blocks"):
                    return _no("no_text")
                made = self._post(asked)
                return _yes(channel=made["channel"], ts=made["ts"], message=made)
            case ("chat.update",):
                found = self._find(asked)
                if found is None:
                    return _no("message_not_found")
                found.update({key: asked[key] for key in ("text", "blocks", "metadata") if key in asked})
                return _yes(channel=found["channel"], ts=found["ts"], text=found.get("text", ""))
            case ("chat.delete",):
                found = self._find(asked)
                if found is None:
                    return _no("message_not_found")
                self.messages.remove(found)
                return _yes(channel=found["channel"], ts=found["ts"])
            case ("conversations.history",):
                return self._list(asked, self._is_top)
            case ("conversations.replies",):
                return self._list(
                    asked, lambda message: asked["ts"] in (message["ts"], message.get("thread_ts"))
                )
            case ("auth.test",):
                return _yes(user_id="UTENURE", team_id="TTENURE")
            case _:
                return _no("unknown_method")

    def _is_top(self, message: dict[str, Any]) -> bool:
        return message.get("thread_ts") in (None, message["ts"])

    def _post(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._now += 1
        kept: dict[str, Any] = {
            key: asked[key] for key in ("channel", "text", "blocks", "metadata") if key in asked
        }
        made: dict[str, Any] = {**kept, "ts": f"{self._now}.000100"}
        if asked.get("thread_ts"):
            made["thread_ts"] = asked["thread_ts"]
        self.messages.append(made)
        return made

    def _find(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        where = (asked.get("channel"), asked.get("ts"))
        return next((each for each in self.messages if (each["channel"], each["ts"]) == where), None)

    def _list(self, asked: dict[str, Any], fits: Any) -> Reply:
        oldest, latest = float(asked.get("oldest", 0)), float(asked.get("latest", 1e12))
        rows = [
            message
            for message in reversed(self.in_channel(asked["channel"]))
            if fits(message) and oldest <= float(message["ts"]) <= latest
        ]
        shown = (
            rows if asked.get("include_all_metadata") in ("true", True) else [_without(row) for row in rows]
        )
        begin, size = int(asked.get("cursor", 0)), int(asked.get("limit", 100))
        end = begin + size
        return _yes(
            messages=shown[begin:end],
            has_more=end < len(rows),
            response_metadata={"next_cursor": str(end) if end < len(rows) else ""},
        )


def _without(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "metadata"}


def _asked(request: Request) -> dict[str, Any]:
    """The arguments, whichever way they came."""
    asked: dict[str, Any] = {name: values[0] for name, values in request.query.items()}
    if request.body and request.headers.get("content-type", "").startswith("application/json"):
        asked |= request.json()
    elif request.body:
        for name, value in parse_qsl(request.body.decode(), keep_blank_values=True):
            asked[name] = msgspec.json.decode(value) if name in _LISTS else value
    return asked


def _yes(**told: Any) -> Reply:
    return Reply(200, {"ok": True, **told})


def _no(error: str) -> Reply:
    return Reply(200, {"ok": False, "error": error})
