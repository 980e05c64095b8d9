"""A double of Slack: messages, as far as the connector and the approval cards use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from tenure.testing.doubles.base import Double, DoubleReply, DoubleRequest

_LISTS = frozenset({"blocks", "attachments", "metadata"})


class SlackDouble(Double):
    """`url` is the address of the API, without a slash at the end."""

    def __init__(self, *, token: str = "", **how: Any) -> None:
        super().__init__(token=token, **how)
        self.messages: list[dict[str, Any]] = []
        """Oldest first."""
        self._now = 1_700_000_000

    def in_channel(self, channel: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["channel"] == channel]

    def say(self, channel: str, text: str, *, thread_ts: str | None = None) -> str:
        return str(self._post({"channel": channel, "text": text, "thread_ts": thread_ts})["ts"])

    def handle(self, request: DoubleRequest) -> DoubleReply:
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return _error("invalid_auth")
        arguments = _arguments(request)
        match request.parts[-1:]:
            case ("chat.postMessage",):
                if not arguments.get("text") and not arguments.get("blocks"):
                    return _error("no_text")
                made = self._post(arguments)
                return _ok(channel=made["channel"], ts=made["ts"], message=made)
            case (("chat.update" | "chat.delete") as method,):
                found = self._find(arguments)
                if found is None:
                    return _error("message_not_found")
                if method == "chat.delete":
                    self.messages.remove(found)
                    return _ok(channel=found["channel"], ts=found["ts"])
                found.update(_pick(arguments, "text", "blocks", "metadata"))
                return _ok(channel=found["channel"], ts=found["ts"], text=found.get("text", ""))
            case ("conversations.history",):
                return self._list(arguments, lambda row: row.get("thread_ts") in (None, row["ts"]))
            case ("conversations.replies",):
                return self._list(arguments, lambda row: arguments["ts"] in (row["ts"], row.get("thread_ts")))
            case ("auth.test",):
                return _ok(user_id="UTENURE", team_id="TTENURE")
            case _:
                return _error("unknown_method")

    def _post(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._now += 1
        made = {**_pick(arguments, "channel", "text", "blocks", "metadata"), "ts": f"{self._now}.000100"}
        if arguments.get("thread_ts"):
            made["thread_ts"] = arguments["thread_ts"]
        self.messages.append(made)
        return made

    def _find(self, arguments: dict[str, Any]) -> dict[str, Any] | None:
        where = (arguments.get("channel"), arguments.get("ts"))
        return next((each for each in self.messages if (each["channel"], each["ts"]) == where), None)

    def _list(self, arguments: dict[str, Any], fits: Callable[[dict[str, Any]], bool]) -> DoubleReply:
        oldest, latest = float(arguments.get("oldest", 0)), float(arguments.get("latest", 1e12))
        rows = [
            message
            for message in reversed(self.in_channel(arguments["channel"]))
            if fits(message) and oldest <= float(message["ts"]) <= latest
        ]
        with_metadata = arguments.get("include_all_metadata") in ("true", True)
        begin = int(arguments.get("cursor", 0))
        end = begin + int(arguments.get("limit", 100))
        return _ok(
            messages=[
                {key: value for key, value in row.items() if with_metadata or key != "metadata"}
                for row in rows[begin:end]
            ],
            has_more=end < len(rows),
            response_metadata={"next_cursor": str(end) if end < len(rows) else ""},
        )


def _pick(arguments: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: arguments[name] for name in names if name in arguments}


def _arguments(request: DoubleRequest) -> dict[str, Any]:
    arguments: dict[str, Any] = {name: values[0] for name, values in request.query.items()}
    if request.body and request.headers.get("content-type", "").startswith("application/json"):
        arguments |= request.json()
    elif request.body:
        for name, value in parse_qsl(request.body.decode(), keep_blank_values=True):
            arguments[name] = msgspec.json.decode(value) if name in _LISTS else value
    return arguments


def _ok(**fields: Any) -> DoubleReply:
    return DoubleReply(200, {"ok": True, **fields})


def _error(error: str) -> DoubleReply:
    return DoubleReply(200, {"ok": False, "error": error})
