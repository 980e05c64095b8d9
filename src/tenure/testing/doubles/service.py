"""A service that keeps a log of what it did, to be compared with what was asked of it.

It does one thing: `POST /effects` appends to its log. How it treats keys is its mode:

| mode | two requests of one key (`Idempotency-Key`) | `GET /effects/KEY` |
|---|---|---|
| `honours` | make one effect, and are answered alike | finds it |
| `found` | make two effects | finds it |
| `neither` | make two effects | is 404, always |

`PUT /things/NAME` sets a state and logs that too. As a process: `python -m tenure.testing.doubles --mode honours --log FILE` prints its
URL; the log has a line of JSON for each effect, written to the file before it is answered, and `GET /log` gives all of it. `POST /trouble` makes
trouble (`{"drop": "after"}`), `POST /hold` and `POST /release` hold requests back before anything is done.
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
from tenure.testing.doubles.base import Double, Reply, Request

Mode = Literal["honours", "found", "neither"]
HOLD_SECONDS_MAX = 60.0


class Effect(msgspec.Struct, frozen=True):
    """Something that was done."""

    no: int
    key: str
    body: Any


class ServiceDouble(Double):
    """See above."""

    def __init__(self, mode: Mode = "honours", *, log: str | Path | None = None, **how: Any) -> None:
        super().__init__(**how)
        self.mode = mode
        self.effects: list[Effect] = []
        """Its own log: what it did, in order."""
        self.state: dict[str, Any] = {}
        self._log = None if log is None else Path(log)
        self._open = threading.Event()
        self._open.set()
        self.held = 0
        """Requests that are held back now."""

    def effects_of(self, key: str) -> int:
        """How often something was done for a key."""
        return sum(effect.key == key for effect in self.effects)

    def hold(self) -> None:
        """Requests that write wait, before anything is done."""
        self._open.clear()

    def release(self) -> None:
        """They go on."""
        self._open.set()

    def answer(self, request: Request) -> Reply | None:
        """As every double; what steers it is not held back."""
        control = {"trouble": self._trouble, "hold": self._hold, "release": self._release}.get(
            request.path.strip("/")
        )
        if control is not None and request.method == "POST":
            return control(request)
        if request.method != "GET" and not self._open.is_set():
            self.held += 1
            self._open.wait(HOLD_SECONDS_MAX)
            self.held -= 1
        return super().answer(request)

    def handle(self, request: Request) -> Reply:
        """Do one thing."""
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return Reply(401, {"message": "who are you?"})
        match request.method, request.parts:
            case "POST", ("effects",):
                return self._effect(request)
            case "PUT", ("things", name):
                self.state[name] = request.json()
                self._note(_key_of(request), {"set": name, "to": request.json()})
                return Reply(200, self.state[name])
            case "GET", ("things", name) if name in self.state:
                return Reply(200, self.state[name])
            case "GET", ("effects", key) if self.mode != "neither" and self.effects_of(key):
                return Reply(200, self._shown(key))
            case "GET", ("log",):
                return Reply(200, [msgspec.to_builtins(effect) for effect in self.effects])
            case _:
                return Reply(404, {"message": "there is no such thing"})

    def _effect(self, request: Request) -> Reply:
        key = _key_of(request)
        if self.mode == "honours" and key and self.effects_of(key):
            first = next(effect for effect in self.effects if effect.key == key)
            if first.body != request.json():
                return Reply(422, {"message": "this key was used for another request"})
            return Reply(200, self._shown(key))
        made = self._note(key, request.json())
        return Reply(201, {"no": made.no, "key": key})

    def _shown(self, key: str) -> dict[str, Any]:
        return next({"no": effect.no, "key": key} for effect in self.effects if effect.key == key)

    def _note(self, key: str, body: Any) -> Effect:
        effect = Effect(len(self.effects) + 1, key, body)
        self.effects.append(effect)
        if self._log is not None:
            with append_file(self._log) as opened:
                opened.write(msgspec.json.encode(effect) + b"\n")
                opened.flush()
                os.fsync(opened.fileno())
        return effect

    def _trouble(self, request: Request) -> Reply:
        how = request.json()
        self.trouble(**{**how, **({"methods": frozenset(how["methods"])} if "methods" in how else {})})
        return Reply(204)

    def _hold(self, _request: Request) -> Reply:
        self.hold()
        return Reply(204)

    def _release(self, _request: Request) -> Reply:
        self.release()
        return Reply(204)


def _key_of(request: Request) -> str:
    return request.headers.get("idempotency-key", "")


def read_log(path: str | Path) -> list[Effect]:
    """The effects in a log file; a line that is not whole was never answered for."""
    whole, _, _ = Path(path).read_bytes().rpartition(b"\n") if Path(path).exists() else (b"", b"", b"")
    return [msgspec.json.decode(line, type=Effect) for line in whole.splitlines()]


def main() -> None:
    """Be a process of its own, until it is told to end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    parser = argparse.ArgumentParser(description="A service that keeps a log of what it did.")
    parser.add_argument("--mode", choices=get_args(Mode), default="honours")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token", default="")
    parser.add_argument("--log", default=None)
    given = parser.parse_args()
    with ServiceDouble(given.mode, log=given.log, port=given.port, token=given.token) as service:
        sys.stdout.write(f"{service.url}\n")
        sys.stdout.flush()
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
