"""Runners that each break the protocol in one way, to test the conformance suite: `python broken_runner.py HOW`."""

import contextlib
import secrets
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples import plain_runner
from examples.plain_runner import Job, PlainRunner, Refused


def deaf(job: Job, seconds: float) -> None:
    """Work that ignores a cancel."""
    del job
    time.sleep(seconds)


class Forgetful(PlainRunner):
    """Abandons a claim whose answer was lost and claims again under another id."""

    def claim(self, wait_s: float = 0, most: int = 1) -> list[Job]:
        self.patience_seconds = 0.0
        try:
            return super().claim(wait_s, most)
        finally:
            self.patience_seconds = 20.0


class Sloppy(Job):
    """Sends numbers as strings."""

    def say(self, verb: str, seq: int | None = None, **what: Any) -> dict[str, Any]:
        answer = super().say(verb, seq, **what)
        if verb == "running":
            with contextlib.suppress(Refused):
                self.runner.ask(
                    "POST", f"/runner/leases/{self.lease['id']}/heartbeat", self.lease["token"], {"seq": "0"}
                )
        return answer


class Renumbering(Job):
    """Repeats a message under another sequence number: the effect happens twice, or the server refuses it."""

    def say(self, verb: str, seq: int | None = None, **what: Any) -> dict[str, Any]:
        if verb != "complete":
            return super().say(verb, seq, **what)
        self.runner.patience_seconds = 0.0
        try:
            return super().say(verb, seq, **what)
        except (OSError, ValueError):
            return super().say(verb, None, **what, cost=secrets.token_hex(2))
        finally:
            self.runner.patience_seconds = 20.0


def main() -> None:
    how = sys.argv[1]
    if how == "deaf":
        plain_runner.work_for = deaf
    elif how == "forgetful":
        plain_runner.PlainRunner = Forgetful  # type: ignore[misc]  # replaced on purpose by the broken one
    elif how == "sloppy":
        plain_runner.Job = Sloppy  # type: ignore[misc]  # likewise
    elif how == "renumbering":
        plain_runner.Job = Renumbering  # type: ignore[misc]  # likewise
    elif how == "gone":
        sys.exit(3)
    plain_runner.main()


if __name__ == "__main__":
    main()
