"""A service that logs its effects, to be compared with the requests.

`POST /effects` appends to its log. Its mode says how it treats idempotency keys:

| mode | two requests with one `Idempotency-Key` | `GET /effects/KEY` |
|---|---|---|
| `honours` | make one effect, and get the same response | finds it |
| `found` | make two effects | finds it |
| `neither` | make two effects | is always 404 |

`PUT /things/NAME` sets a state and logs that too. As a process: `python -m tenure.testing.doubles --mode honours --log FILE` prints its
URL. The log has a line of JSON per effect, written before the response; `GET /log` returns all of it. `POST /trouble` injects a fault
(`{"drop": "after"}`), `POST /hold` holds requests back before they are handled, and `POST /release` releases them.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from tenure.private_files import append_file
from tenure.testing.doubles.base import Double, DoubleReply, DoubleRequest, InjectedFault

Mode = Literal["honours", "found", "neither"]
HOLD_SECONDS_MAX = 60.0


class Effect(msgspec.Struct, frozen=True):
    no: int
    key: str
    body: Any


class ServiceDouble(Double):
    def __init__(self, mode: Mode = "honours", *, log: str | Path | None = None, **how: Any) -> None:
        super().__init__(**how)
        self.mode = mode
        self.effects: list[Effect] = []
        self.state: dict[str, Any] = {}
        self._log = None if log is None else Path(log)
        self._open = threading.Event()
        self._open.set()
        self.held = 0

    def effects_of(self, key: str) -> int:
        return sum(effect.key == key for effect in self.effects)

    def hold(self) -> None:
        """Hold back requests that write, before they are handled."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def answer(self, request: DoubleRequest) -> DoubleReply | None:
        """The response to a request. Control requests are never held back."""
        match request.method, request.parts:
            case "POST", ("trouble",):
                self._faults.append(msgspec.convert(request.json(), InjectedFault))
            case "POST", ("hold",):
                self.hold()
            case "POST", ("release",):
                self.release()
            case _:
                if request.method != "GET" and not self._open.is_set():
                    self.held += 1
                    self._open.wait(HOLD_SECONDS_MAX)
                    self.held -= 1
                return super().answer(request)
        return DoubleReply(204)

    def handle(self, request: DoubleRequest) -> DoubleReply:
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return DoubleReply(401, {"message": "the token is missing or wrong"})
        match request.method, request.parts:
            case "POST", ("effects",):
                return self._effect(request)
            case "PUT", ("things", name):
                self.state[name] = request.json()
                self._note(_key_of(request), {"set": name, "to": request.json()})
                return DoubleReply(200, self.state[name])
            case "GET", ("things", name) if name in self.state:
                return DoubleReply(200, self.state[name])
            case "GET", ("effects", key) if self.mode != "neither" and (found := self._find(key)):
                return DoubleReply(200, {"no": found.no, "key": key})
            case "GET", ("log",):
                return DoubleReply(200, [msgspec.to_builtins(effect) for effect in self.effects])
            case _:
                return DoubleReply(404, {"message": "not found"})

    def _effect(self, request: DoubleRequest) -> DoubleReply:
        key = _key_of(request)
        first = self._find(key) if self.mode == "honours" and key else None
        if first is not None and first.body != request.json():
            return DoubleReply(422, {"message": "this key was used for another request"})
        effect = first or self._note(key, request.json())
        return DoubleReply(200 if first else 201, {"no": effect.no, "key": key})

    def _find(self, key: str) -> Effect | None:
        return next((effect for effect in self.effects if effect.key == key), None)

    def _note(self, key: str, body: Any) -> Effect:
        effect = Effect(len(self.effects) + 1, key, body)
        self.effects.append(effect)
        if self._log is not None:
            with append_file(self._log) as file:
                file.write(msgspec.json.encode(effect) + b"\n")
                file.flush()
                os.fsync(file.fileno())
        return effect


def _key_of(request: DoubleRequest) -> str:
    return request.headers.get("idempotency-key", "")


def read_log(path: str | Path) -> list[Effect]:
    """The effects in a log file. An incomplete last line is left out: it got no response."""
    whole = Path(path).read_bytes().rpartition(b"\n")[0] if Path(path).exists() else b""
    return [msgspec.json.decode(line, type=Effect) for line in whole.splitlines()]


def main() -> None:
    """Run as a process until SIGTERM or SIGINT."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    parser = argparse.ArgumentParser(description="A service that logs its effects.")
    parser.add_argument("--mode", choices=get_args(Mode), default="honours")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token", default="")
    parser.add_argument("--log", default=None)
    given = parser.parse_args()
    with ServiceDouble(given.mode, log=given.log, port=given.port, token=given.token) as service:
        sys.stdout.write(f"{service.url}\n")
        sys.stdout.flush()
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
