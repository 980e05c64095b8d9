"""A runner written from docs/runner-protocol.md alone, with nothing but the standard library.

    runner = PlainRunner("http://127.0.0.1:8700", "tn_...", ["default|tool:build"])
    runner.run_one(work)      # work(job) -> output; job.checkpoint, job.log, job.act, job.upload, job.canceled

It repeats a request without an answer under the same numbers, sends heartbeats from its own thread, and stops its own work when the
lease has expired without an answer. It passes the conformance suite:

    tenure runner conformance -- python examples/plain_runner.py
"""

import hashlib
import http.client
import json
import os
import secrets
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

AGAIN = (429, 502, 503)


class Refused(Exception):
    """An answer with status 400 or above."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(f"{status} {error.get('code')}: {error.get('message')}")
        self.status = status
        self.code = error.get("code")
        self.retryable = bool(error.get("retryable"))


class Canceled(Exception):
    """The job was asked to stop, and has stopped."""


class Suspended(Exception):
    """The step waits, and the lease has ended."""


class NotDone(Exception):
    """An act that will not be done, with its `state` and `code`."""


class PlainRunner:
    """One worker with one slot."""

    def __init__(self, server: str, key: str, capabilities: list[str], worker: str = "plain-1") -> None:
        self.server = urllib.parse.urlsplit(server)
        self.key = key
        self.capabilities = capabilities
        self.worker = worker
        self.patience_seconds = 20.0

    def ask(
        self, method: str, path: str, token: str, body: Any = None, kind: str = "application/json"
    ) -> Any:
        """Send a request until it is answered. The result is the answer's JSON, or its bytes."""
        content = json.dumps(body).encode() if kind == "application/json" and body is not None else body
        headers = {"Authorization": f"Bearer {token}"} | ({"Content-Type": kind} if body is not None else {})
        deadline = time.monotonic() + self.patience_seconds
        while True:
            refused: Exception
            try:
                connection = http.client.HTTPConnection(
                    self.server.hostname or "", self.server.port, timeout=40
                )
                try:
                    connection.request(method, path, content, headers)
                    answer = connection.getresponse()
                    text = answer.read()
                finally:
                    connection.close()
                if answer.status < 400:
                    is_json = answer.headers.get_content_type() == "application/json"
                    return json.loads(text) if is_json else text
                refused = Refused(answer.status, json.loads(text).get("error", {}))
                if not (refused.retryable or answer.status in AGAIN):
                    raise refused
            except (OSError, http.client.HTTPException, ValueError) as broken:
                refused = broken
            if time.monotonic() > deadline:
                raise refused
            time.sleep(0.05)

    def claim(self, wait_s: float = 0, most: int = 1) -> list["Job"]:
        """Claim jobs."""
        asked = {
            "claim_id": secrets.token_hex(8),  # the same in every repeat
            "capabilities": self.capabilities,
            "max": most,
            "wait_s": wait_s,
            "worker": self.worker,
        }
        return [Job(self, lease) for lease in self.ask("POST", "/runner/claim", self.key, asked)["leases"]]

    def run_one(self, work: Callable[["Job"], Any], wait_s: float = 10) -> "Job | None":
        """Claim one job, do it, and report the outcome."""
        for job in self.claim(wait_s):
            job.do(work)
            return job
        return None


class Job:
    """A lease."""

    def __init__(self, runner: PlainRunner, lease: dict[str, Any]) -> None:
        self.runner = runner
        self.lease = lease
        self.input = lease.get("input")
        self.canceled = threading.Event()
        self.lost = threading.Event()
        self.outcome = ""
        self._seq = 0
        self._over = threading.Event()

    def say(self, verb: str, seq: int | None = None, **what: Any) -> dict[str, Any]:
        """Send a message, with the next number unless one is given."""
        if seq is None:
            self._seq += 1
            seq = self._seq
        path = f"/runner/leases/{self.lease['id']}/{verb}"
        try:
            answer: dict[str, Any] = self.runner.ask("POST", path, self.lease["token"], {"seq": seq, **what})
        except Refused as refused:
            if refused.code in ("LEASE_STALE", "UNAUTHENTICATED"):
                self.lost.set()
            elif refused.code == "RUN_CANCELING":
                self.canceled.set()
            raise
        if answer["cancel"]:
            self.canceled.set()
        return answer

    def state(self) -> dict[str, Any]:
        """The recorded state from which the job continues."""
        found: dict[str, Any] = self.runner.ask(
            "GET", f"/runner/leases/{self.lease['id']}", self.lease["token"]
        )
        return found

    def checkpoint(self, name: str, output: Any = None) -> None:
        """Record a checkpoint."""
        self.say("checkpoint", name=name, output=output)

    def log(self, *lines: str) -> None:
        """Add lines to the run's log."""
        self.say("log", lines=[{"text": line} for line in lines])

    def act(self, label: str, action: str, **what: Any) -> Any:
        """Let the server do an action. The result is the service's answer. Raises `Suspended` while people are asked."""
        path = f"/runner/leases/{self.lease['id']}/act"
        while True:
            asked = {"label": label, "action": action, **what}
            told = self.runner.ask("POST", path, self.lease["token"], asked)
            if told["state"] == "done":
                return told.get("result")
            if told["state"] == "wait":
                if self.say("suspend", waits=[told["wait"]])["state"] != "go_on":
                    raise Suspended
            elif told["state"] == "cancel":
                raise Canceled
            elif told["state"] == "failed" and told.get("retry_at"):
                time.sleep(0.2)
            else:
                raise NotDone(told["state"], told.get("code", ""))

    def upload(self, name: str, body: bytes, kind: str = "application/octet-stream") -> dict[str, Any]:
        """Upload a file."""
        path = f"/runner/leases/{self.lease['id']}/artifacts/{urllib.parse.quote(name, safe='')}"
        found: dict[str, Any] = self.runner.ask("PUT", path, self.lease["token"], body, kind)
        return found

    def download(self, name: str) -> bytes:
        """Download a file of the run."""
        path = f"/runner/leases/{self.lease['id']}/artifacts/{urllib.parse.quote(name, safe='')}"
        found: bytes = self.runner.ask("GET", path, self.lease["token"])
        return found

    def begin(self) -> None:
        """Acknowledge the lease, start the step, and send heartbeats from now on."""
        self.say("ack")
        self.say("running")
        threading.Thread(target=self._beat, daemon=True).start()

    def do(self, work: Callable[["Job"], Any]) -> None:
        """Do the work, and report the outcome."""
        try:
            self.begin()
            output = work(self)
            if self.lease["kind"] == "plan":  # its result is the list of the run's steps
                self.say("complete", plan=output)
            else:
                self.say("complete", output=output)
            self.outcome = "succeeded"
        except Suspended:
            self.outcome = "suspended"
        except NotDone as refused:
            self.outcome = "refused"
            if refused.args[0] != "refused":  # otherwise the step has ended
                self.say("fail", code=refused.args[1], message="it was not done", retryable=False)
        except Canceled:
            self.say("cancel-ack")
            self.outcome = "canceled"
        except Stopped:
            self.outcome = "lost"
        except Failed as failed:
            self.say("fail", code=failed.code, message=str(failed), retryable=failed.retryable)
            self.outcome = "failed"
        except Refused as refused:
            self.outcome = "lost" if self.lost.is_set() else f"refused {refused.code}"
        except Exception as fault:
            self.say("fail", code="STEP_FAILED", message=str(fault))
            self.outcome = "failed"
        finally:
            self._over.set()

    def _beat(self) -> None:
        held_until = time.monotonic() + self.lease["lease_seconds"]
        while not self._over.wait(self.lease["heartbeat_seconds"]):
            sent = time.monotonic()
            try:
                self.say("heartbeat", seq=0)
                held_until = sent + self.lease["lease_seconds"]
            except Exception:
                if self.lost.is_set() or time.monotonic() > held_until:
                    self.lost.set()
                    return


# --------------------------------------------------------------------------------- the tool of the conformance suite

REFERENCE = "$tenure.artifact"
INLINE_BYTES_MAX = 256 * 1024


class Failed(Exception):
    """The job fails, with its own code."""

    def __init__(self, code: str, message: str, retryable: bool) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable


class Stopped(Exception):
    """The lease has ended, so nothing more is sent."""


def work_for(job: Job, seconds: float) -> None:
    """Work that can be stopped at any moment."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if job.lost.is_set():
            raise Stopped
        if job.canceled.is_set():
            raise Canceled
        time.sleep(0.02)


def given(job: Job) -> Any:
    """The input of a job, which may be an artifact."""
    if isinstance(job.input, dict) and REFERENCE in job.input:
        return json.loads(job.download(job.input[REFERENCE]))
    return job.input


def kept(job: Job, output: Any) -> Any:
    """An output as it is sent. A large one is uploaded, and a reference is sent instead."""
    body = json.dumps(output).encode()
    if len(body) <= INLINE_BYTES_MAX:
        return output
    return job.upload(f"sha256:{hashlib.sha256(body).hexdigest()}", body)["reference"]


def awaited(job: Job, **what: Any) -> dict[str, Any]:
    """Open a wait, release the lease until the wait has settled, and continue with its answer."""
    opened = job.say("wait", label="asked", **what)
    known = {wait["no"]: wait for wait in job.state()["waits"]}
    if (
        known[opened["wait"]]["state"] == "open"
        and job.say("suspend", waits=[opened["wait"]])["state"] != "go_on"
    ):
        raise Suspended
    return next(wait for wait in job.state()["waits"] if wait["no"] == opened["wait"])


def command(asked: dict[str, Any]) -> Any:
    """A command of a workflow file."""
    done = subprocess.run(
        asked["argv"],
        env={"PATH": os.environ.get("PATH", ""), **asked.get("env", {})},
        cwd=asked.get("cwd"),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failed("COMMAND_FAILED", done.stderr[-1000:], True)
    told = {"exit_code": 0, "stdout": done.stdout.rstrip("\n"), "stderr_tail": done.stderr[-1000:]}
    if asked.get("output") == "json":
        told |= {"json": json.loads(done.stdout), "stdout": ""}
    return told


def conformance(job: Job) -> Any:
    """The tool `conformance`, as docs/runner-protocol.md describes it; and commands."""
    asked, attempt = given(job), job.lease["attempt"]
    if job.lease["tool"] == "run":
        return command(asked)
    do = asked["do"]
    if do == "echo":
        return kept(job, asked.get("value"))
    if do == "large":
        return kept(job, "x" * asked["size"])
    if do == "size":
        return sum(len(text) for text in asked["texts"])
    if do == "fail":
        if attempt <= asked.get("tries", 1_000):
            raise Failed(asked["code"], asked["message"], asked["retryable"])
        return {"attempt": attempt, "key": job.lease["idempotency_key"]}
    if do == "work":
        work_for(job, asked["seconds"])
        return {"attempt": attempt}
    if do == "log":
        job.log(*asked["lines"])
        return None
    if do == "upload":
        digest = job.upload(asked["name"], asked["text"].encode(), "text/plain")["digest"]
        return {"digest": digest, "text": job.download(asked["name"]).decode()}
    if do == "checkpoints":
        there = {one["name"] for one in job.state()["checkpoints"] if one["state"] == "done"}
        recorded: list[str] = []
        for name in asked["names"]:
            if name not in there:
                job.checkpoint(name, {"name": name})
                recorded.append(name)
            if attempt == 1 and len(recorded) == asked["fail_after"]:
                raise Failed("FLAKY", "as asked for", True)
        return {"recorded": recorded}
    if do == "plan":
        return asked["steps"]
    if do == "approval":
        return {"outcome": awaited(job, approval={"action": asked["action"]})["outcome"]}
    if do == "event":
        wait = awaited(job, event={"event": asked["event"], "within_seconds": 600})
        return {"outcome": wait["outcome"], "payload": wait["result"]}
    raise Failed("UNKNOWN_WORK", f"there is no work {do!r}", False)


def main() -> None:
    """Serve until the process is ended. The settings are environment variables."""
    runner = PlainRunner(
        os.environ["TENURE_SERVER"],
        os.environ["TENURE_KEY"],
        os.environ["TENURE_CAPABILITIES"].split(),
        os.environ.get("TENURE_WORKER", "plain-1"),
    )
    while True:
        try:
            jobs = runner.claim(wait_s=5, most=4)
        except (Refused, OSError, ValueError) as fault:
            print(f"no claim: {fault}", file=sys.stderr)
            continue
        for job in jobs:
            threading.Thread(target=job.do, args=(conformance,), daemon=True).start()


if __name__ == "__main__":
    main()
