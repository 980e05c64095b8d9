"""The conformance suite for runners: it puts a runner into every situation of docs/runner-protocol.md.

Laws:
1. The runner is an ordinary process: it gets an address and a key by its environment. All it needs to know of the suite is the tool
   `conformance`, which that document describes.
2. The suite judges by what is visible from outside: the runner's requests and the state of the run. It never judges speed; it waits for
   each expected event, up to its patience.
3. The suite uses its own database in a temporary folder, and its own server and relay on loopback.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import msgspec

from tenure import ids
from tenure.artifacts import is_reference
from tenure.declared import load_workflow
from tenure.doctor.examination import examine_database
from tenure.engine import Engine
from tenure.kernel.identity_rows import ApiKeyRow, ClientRow, TenantRow
from tenure.kernel.run_rows import CLOSED_RUN, AttemptRow, PayloadRow, StepRow
from tenure.runner_conformance.relay import Relay, RelayedRequest
from tenure.server.http_server import serving
from tenure.server.settings import Settings
from tenure.services.identity.principals import new_id, new_key
from tenure.shapes.steps import Step
from tenure.store.identity import AdminChange, Identity

TENANT = "conformance"
TOOL = "conformance"
QUEUE = f"default|tool:{TOOL}"
COMMANDS = "default|run"
PATIENCE_SECONDS = 60.0
LOOK_SECONDS = 0.05
END_SECONDS = 10.0
_MALFORMED = (400, 401, 403, 404, 405, 413, 415, 422)
"""Statuses that a correct runner never gets."""


class ExpectationFailed(Exception):
    """The runner broke the protocol; the text describes what was seen."""


class RunnerNotStarted(Exception):
    """The runner's command cannot be started; the text says why."""


Play: TypeAlias = "Callable[[RunnerHarness], Awaitable[None]]"


class Situation(msgspec.Struct, frozen=True):
    name: str
    expected: str
    play: Play
    commands: bool = False
    """Whether it is only for runners that run commands."""


class SituationResult(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    expected: str
    passed: bool
    seen: str = ""
    """If it failed: what was seen instead."""


SITUATIONS: list[Situation] = []


def situation(name: str, expected: str, *, commands: bool = False) -> Callable[[Play], Play]:
    """Add the decorated function to the situations."""

    def register(play: Play) -> Play:
        SITUATIONS.append(Situation(name, expected, play, commands))
        return play

    return register


class RunnerHarness:
    """A server, a relay and the runner."""

    def __init__(self, folder: Path, command: Sequence[str], patience: float, commands: bool) -> None:
        self.relay = Relay()
        self.engine = Engine(f"sqlite:{folder / 'conformance.db'}")
        self._command = command
        self._patience = patience
        self._commands = commands
        self._key = ""
        self._process: asyncio.subprocess.Process | None = None
        self._serving: AsyncExitStack | None = None
        self._numbers = 0

    # --------------------------------------------------------------------------------------- start and stop

    async def prepare(self) -> None:
        identity, made = Identity(self.engine.store), new_key()
        change = AdminChange(tenant=TENANT, kind="conformance", actor="conformance")
        await identity.put(TenantRow(TENANT, TENANT, "{}", 1), change)
        client = ClientRow(TENANT, new_id("cli_"), "the runner", '["runner"]', None, 1)
        key = ApiKeyRow(
            made.id, TENANT, "client", client.id, "conformance", made.hash, None, "conformance", 1, None
        )
        await identity.put_all([client, key], change)
        self._key = made.text
        self.engine = self.engine.scoped(tenant=TENANT)

    async def serve(self) -> None:
        stack = AsyncExitStack()
        _, address = await stack.enter_async_context(
            serving(self.engine, Settings(port=0, grace_seconds=1.0))
        )
        host, _, port = address.removeprefix("http://").rpartition(":")
        self.relay.upstream, self._serving = (host, int(port)), stack

    async def end_server(self) -> None:
        self.relay.upstream = None
        if self._serving is not None:
            await self._serving.aclose()
            self._serving = None

    async def start_runner(self) -> None:
        if self._process is not None and self._process.returncode is None:
            return
        environment: dict[str, str] = {
            **os.environ,
            "TENURE_SERVER": self.relay.address,
            "TENURE_KEY": self._key,
            "TENURE_CAPABILITIES": f"{QUEUE} {COMMANDS}" if self._commands else QUEUE,
            "TENURE_WORKER": "conformance-1",
        }
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, env=environment, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
            )
        except OSError as fault:
            raise RunnerNotStarted(f"cannot start {self._command[0]!r}: {fault.strerror}") from fault

    async def end_runner(self) -> None:
        """Send SIGTERM, and SIGKILL if the runner does not end."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), END_SECONDS)
                return

    # ------------------------------------------------------------------------------------------ runs

    async def begin(self, do: str, **given: Any) -> str:
        how = {name: given.pop(name) for name in ("lease_seconds", "retries", "backoff") if name in given}
        step: dict[str, Any] = {"name": "job", "tool": TOOL, "input": {"do": do, **given}}
        self._numbers += 1
        return await self.engine.create(f"conformance-{self._numbers}", [step | how], profile="agent-runs")

    async def until(self, what: str, look: Callable[[], Awaitable[Any]], when: str | None = None) -> Any:
        """Wait for something that must happen. `what` names it in the error; `when` is for a runner that ends too early."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        while not (found := await look()):
            if self._process is not None and self._process.returncode is not None:
                raise ExpectationFailed(
                    f"the runner ended with code {self._process.returncode} {when or f'before {what}'}"
                )
            if loop.time() > deadline:
                raise ExpectationFailed(f"after {self._patience:.0f} s: {what} did not happen")
            await asyncio.sleep(LOOK_SECONDS)
        return found

    async def reach(self, run: str, statuses: Collection[str], what: str, when: str | None = None) -> str:
        """Wait until a run has one of these statuses, and return it."""

        async def look() -> str | None:
            seen = (await self.engine.get(run)).status
            return seen if seen in statuses else None

        return str(await self.until(what, look, when))

    async def run_declared(self, text: str) -> tuple[str, dict[str, Step]]:
        """Run a workflow file to its end; its id and its steps by name."""
        run = (await self.engine.submit(load_workflow(text), {})).id
        await self.reach(run, CLOSED_RUN, "the end of the run")
        return run, {one.name: one for one in await self.engine.runs.steps(run)}

    async def end(self, run: str, status: str = "succeeded") -> Step:
        """Wait for the end of a run with this status, and return its step."""
        seen = await self.reach(
            run,
            CLOSED_RUN,
            f"the end of the run ({status})",
            f"while the run was expected to reach {status}",
        )
        (step,) = [one for one in await self.engine.runs.steps(run) if one.kind == "work"]
        if seen != status:
            raise ExpectationFailed(
                f"the run is {seen}, not {status}: {step.reason} {step.error or ''}".strip()
            )
        return step

    async def started(self, run: str) -> None:
        """Wait until the first attempt is running."""

        async def look() -> bool:
            return any(row.n == 1 and row.state == "running" for row in await self.attempts(run))

        await self.until("`running` of try 1", look)

    async def attempts(self, run: str) -> list[AttemptRow]:
        return list(await self.engine.store.read("attempts_of", ids.run_int(run)))

    async def output(self, run: str) -> bytes:
        steps: list[StepRow] = await self.engine.store.read("steps_of", ids.run_int(run))
        bodies: list[PayloadRow] = await self.engine.store.read(
            "payload", ids.run_int(run), steps[-1].output_ref or 0
        )
        return bodies[0].body if bodies else b""

    def messages(self, lease: str) -> list[tuple[str, dict[str, Any], RelayedRequest]]:
        """The messages of a lease, single and in batches: verb, fields, request."""
        found = []
        for asked in self.relay.requests:
            verb = asked.path.partition(f"/runner/leases/{lease}/")[2]
            if asked.method == "POST" and verb:
                found.append((verb, asked.body or {}, asked))
            elif asked.path.startswith("/runner/messages") and isinstance(asked.body, dict):
                mine = (one for one in asked.body.get("messages", ()) if one.get("lease") == lease)
                found += [(one.get("type", ""), one, asked) for one in mine]
        return found


def expect(seen: Any, wanted: Any, what: str) -> None:
    """Fail unless what was seen is what was wanted."""
    if seen != wanted:
        raise ExpectationFailed(f"{what} is {seen!r}, not {wanted!r}"[:500])


# ------------------------------------------------------------------------------------------------- situations


@situation("claim", "claims a step and completes it with its output")
async def _claim(play: RunnerHarness) -> None:
    value = {"text": "grüße, 東京", "list": [1, 2.5, None, True], "whole": 12345678901}
    step = await play.end(await play.begin("echo", value=value))
    expect(step.output, value, "the output")


@situation("credentials", "claims with its key, and sends messages of a lease with that lease's token")
async def _credentials(play: RunnerHarness) -> None:
    await play.end(await play.begin("echo", value=1))
    for asked in play.relay.requests:
        wanted = "tl_" if asked.path.startswith("/runner/leases/") else "tn_"
        if not asked.credential.startswith(wanted):
            raise ExpectationFailed(
                f"{asked.method} {asked.path} came with {asked.credential[:3]!r}, not {wanted}…"
            )


@situation("numbers", "numbers the messages of a lease 1, 2, 3 … in the order of sending")
async def _numbers(play: RunnerHarness) -> None:
    run = await play.begin("checkpoints", names=["a", "b", "c"], fail_after=0)
    await play.end(run)
    numbers = [
        body.get("seq")
        for verb, body, _ in play.messages(f"{run}.0.1")
        if not (verb == "heartbeat" and not body.get("seq"))
    ]
    expect(list(dict.fromkeys(numbers)), list(range(1, len(set(numbers)) + 1)), "the sequence")


@situation("many", "runs many steps, one after another or concurrently")
async def _many(play: RunnerHarness) -> None:
    runs = [await play.begin("echo", value=n) for n in range(8)]
    expect([(await play.end(run)).output for run in runs], list(range(8)), "the outputs")


@situation("fail", "reports how a step failed: its code and its message")
async def _fail(play: RunnerHarness) -> None:
    run = await play.begin("fail", code="COMPILE_ERROR", message="no such file", retryable=False, retries=2)
    step = await play.end(run, "failed")
    expect((step.reason, step.error, step.attempt), ("COMPILE_ERROR", "no such file", 1), "the failure")


@situation("retry", "runs the next attempt of a failed step under the same idempotency key")
async def _retry(play: RunnerHarness) -> None:
    run = await play.begin(
        "fail", code="FLAKY", message="once", retryable=True, tries=1, retries=2, backoff={"seconds": [0.0]}
    )
    step = await play.end(run)
    expect(step.output, {"attempt": 2, "key": f"{run}/job"}, "the output")


@situation("heartbeat", "keeps a lease for as long as the work takes: one attempt")
async def _heartbeat(play: RunnerHarness) -> None:
    run = await play.begin("work", seconds=4, lease_seconds=2)
    step = await play.end(run)
    expect(step.output, {"attempt": 1}, "the output")


@situation(
    "expiry", "stops the work when its lease has expired without a response, and sends nothing more about it"
)
async def _expiry(play: RunnerHarness) -> None:
    run = await play.begin("work", seconds=5, lease_seconds=2, retries=3)
    await play.started(run)
    lease = f"{run}.0.1"
    play.relay.blocked = lease

    async def second() -> bool:
        return len(await play.attempts(run)) > 1

    await play.until("the second try", second)
    play.relay.blocked = None
    before = len(play.messages(lease))
    step = await play.end(run)
    expect(step.attempt, 2, "the try that counted")
    late = [verb for verb, *_ in play.messages(lease)[before:] if verb in ("complete", "fail", "checkpoint")]
    expect(late, [], "what was sent for the lost attempt afterwards")


@situation("stale", "sends nothing more about a lease after LEASE_STALE")
async def _stale(play: RunnerHarness) -> None:
    run = await play.begin("work", seconds=4, lease_seconds=3, retries=3)
    await play.started(run)
    lease = f"{run}.0.1"
    await play.engine.runs.revoke_lease(run, "job")

    async def refused_at() -> float | None:
        return next((a.ended for *_, a in play.messages(lease) if _is_stale_reply(a, lease)), None)

    when = await play.until("a message that is refused with LEASE_STALE", refused_at)
    step = await play.end(run)
    expect(step.attempt, 2, "the try that counted")
    late = [verb for verb, _, asked in play.messages(lease) if asked.begun > when]
    expect(late, [], "what was sent after that")


def _is_stale_reply(asked: RelayedRequest, lease: str) -> bool:
    if asked.code == "LEASE_STALE":
        return True
    answers = asked.answer.get("answers", ()) if isinstance(asked.answer, dict) else ()
    codes = [(one.get("error") or {}).get("code") for one in answers]
    mine = [one.get("lease") for one in (asked.body or {}).get("messages", ())] if codes else []
    return any(code == "LEASE_STALE" and mine[i] == lease for i, code in enumerate(codes))


@situation("cancel", "stops when it receives `cancel`, and sends cancel-ack")
async def _cancel(play: RunnerHarness) -> None:
    run = await play.begin("work", seconds=600, lease_seconds=3)
    await play.started(run)
    await play.engine.cancel(run)
    await play.end(run, "canceled")
    verbs = [verb for verb, *_ in play.messages(f"{run}.0.1")]
    if "cancel-ack" not in verbs:
        raise ExpectationFailed(f"no cancel-ack; it sent {', '.join(verbs)}")


@situation("approval", "asks for an approval, releases the step, and continues with the answer")
async def _approval(play: RunnerHarness) -> None:
    run = await play.begin("approval", action="deploy")
    await play.reach(run, ("waiting_approval",), "the question")
    await play.engine.approve(run, approver="ada")
    step = await play.end(run)
    expect((step.output, step.attempt), ({"outcome": "approved"}, 2), "output and try")


@situation("event", "waits for an event without a lease, and continues with its payload")
async def _event(play: RunnerHarness) -> None:
    run = await play.begin("event", event="go")
    await play.reach(run, ("waiting_external",), "the wait")
    await play.engine.signal(run, "go", {"n": 7})
    step = await play.end(run)
    expect(step.output, {"outcome": "received", "payload": {"n": 7}}, "the output")


@situation("checkpoints", "skips recorded checkpoints in the next attempt")
async def _checkpoints(play: RunnerHarness) -> None:
    run = await play.begin(
        "checkpoints", names=["a", "b", "c"], fail_after=2, retries=2, backoff={"seconds": [0.0]}
    )
    step = await play.end(run)
    expect(step.output, {"recorded": ["c"]}, "the output of the second try")


@situation("log", "sends lines to the run's log, once each")
async def _log(play: RunnerHarness) -> None:
    play.relay.plan("after", "/log")
    run = await play.begin("log", lines=["one", "two"])
    await play.end(run)
    play.relay.forget_plans()
    lines = await play.engine.store.read("log_lines_of", ids.run_int(run), 0, 10)
    expect([line.text for line in lines], ["one", "two"], "the log")


@situation("artifact", "uploads a file and downloads it again")
async def _artifact(play: RunnerHarness) -> None:
    step = await play.end(await play.begin("upload", name="report.txt", text="all is well"))
    output = step.output if isinstance(step.output, dict) else {}
    expect(output.get("text"), "all is well", "the text that was downloaded")
    if not str(output.get("digest", "")).startswith("sha256:"):
        raise ExpectationFailed(f"the digest is {output.get('digest')!r}")


@situation("large output", "uploads an output over 256 KiB, and sends its reference")
async def _large(play: RunnerHarness) -> None:
    run = await play.begin("large", size=300_000)
    await play.end(run)
    body = await play.output(run)
    if not is_reference(body):
        raise ExpectationFailed(f"the output is {body[:60]!r}…, not a reference")
    expect(await play.engine.artifacts.get(body) == msgspec.json.encode("x" * 300_000), True, "the artifact")


@situation("large input", "downloads an input over 256 KiB by its reference")
async def _large_input(play: RunnerHarness) -> None:
    text = "y" * 200_000
    _, steps = await play.run_declared(
        f"name: large\nsteps:\n  - {{id: one, uses: {TOOL}, with: {{do: echo, value: {text}}}}}\n"
        f"  - {{id: job, uses: {TOOL}, with: {{do: size, texts: ['${{{{ steps.one.output }}}}', '${{{{ steps.one.output }}}}']}}}}\n"
    )
    job = steps["job"]
    expect((job.state, job.output), ("succeeded", 400_000), "the size of the texts")


@situation(
    "lost answers", "repeats requests without a response, with the same numbers: one attempt, one effect"
)
async def _lost(play: RunnerHarness) -> None:
    for how in ("before", "after"):
        for part in ("/runner/claim", "/complete"):
            play.relay.plan(how, part)
        run = await play.begin("echo", value=how)
        step = await play.end(run)
        play.relay.forget_plans()
        expect((step.output, step.attempt), (how, 1), "output and try")
        last = [body for verb, body, _ in play.messages(f"{run}.0.1") if verb == "complete"]
        if any(body != last[0] for body in last):
            raise ExpectationFailed(f"a repeated `complete` was another message: {last}"[:300])


@situation("repeated claim", "repeats a claim without a response under the same claim_id")
async def _claims(play: RunnerHarness) -> None:
    play.relay.plan("after", "/runner/claim")
    play.relay.plan("after", "/runner/messages")
    run = await play.begin("echo", value="again", lease_seconds=3)

    async def cut() -> bool:
        return play.relay.faults_left < 2

    await play.until("a claim", cut)
    at = len(play.relay.requests)
    step = await play.end(run)
    play.relay.forget_plans()
    unanswered = next(a for a in reversed(play.relay.requests[:at]) if a.status is None and _claim_id(a))
    again = [a for a in play.relay.requests if a is not unanswered and _claim_id(a) == _claim_id(unanswered)]
    if not again:
        raise ExpectationFailed(f"claim {_claim_id(unanswered)} had no answer and was not repeated")
    expect(step.attempt, 1, "the try")


def _claim_id(asked: RelayedRequest) -> str | None:
    body = asked.body if isinstance(asked.body, dict) else {}
    if asked.path.startswith("/runner/messages"):
        body = body.get("claim") or {}
    return body.get("claim_id") if asked.path.startswith(("/runner/claim", "/runner/messages")) else None


@situation("busy server", "repeats a request after 503")
async def _busy(play: RunnerHarness) -> None:
    for part in ("/complete", "/runner/messages"):
        play.relay.plan("busy", part)
    step = await play.end(await play.begin("echo", value="busy"))
    play.relay.forget_plans()
    expect((step.output, step.attempt), ("busy", 1), "output and try")


@situation("server restart", "continues its work after the server was away: one attempt")
async def _restart(play: RunnerHarness) -> None:
    run = await play.begin("work", seconds=3, lease_seconds=30)
    await play.started(run)
    await play.end_server()
    await asyncio.sleep(1.0)
    await play.serve()
    step = await play.end(run)
    expect(step.output, {"attempt": 1}, "the output")


@situation("workflow files", "runs steps of a workflow file with the plain values it is given")
async def _declared(play: RunnerHarness) -> None:
    run, steps = await play.run_declared(f"""name: declared
inputs: {{n: {{type: integer, default: 2}}}}
steps:
  - {{id: one, uses: {TOOL}, with: {{do: echo, value: {{n: "${{{{ inputs.n + 1 }}}}"}}}}}}
  - {{id: never, uses: {TOOL}, if: steps.one.output.n > 100, with: {{do: fail, code: NO, message: leased, retryable: false}}}}
  - {{id: two, uses: {TOOL}, if: steps.one.output.n == 3, with: {{do: echo, value: "got ${{{{ steps.one.output.n }}}}"}}}}
""")
    expect((await play.engine.get(run)).status, "succeeded", "the run")
    expect([steps[name].output for name in ("one", "never", "two")], [{"n": 3}, None, "got 3"], "the outputs")
    expect((steps["never"].skipped, steps["never"].attempt), (True, 0), "the step whose condition is false")


@situation("planning", "completes a plan step with the steps of the run, and runs those")
async def _planning(play: RunnerHarness) -> None:
    steps = [
        {"name": "one", "tool": TOOL, "needs": [], "input": {"do": "echo", "value": 1}},
        {"name": "two", "tool": TOOL, "needs": ["one"], "input": {"do": "echo", "value": 2}},
    ]
    planner = {"tool": TOOL, "input": {"do": "plan", "steps": steps}}
    run = await play.engine.create("planned", planner=planner, profile="agent-runs")
    await play.reach(run, CLOSED_RUN, "the end of the run")
    expect((await play.engine.get(run)).status, "succeeded", "the run")
    outputs = {step.name: step.output for step in await play.engine.runs.steps(run)}
    expect(outputs, {"one": 1, "two": 2}, "the outputs")


@situation("commands", "runs a command of a workflow file: argv, env, output", commands=True)
async def _command(play: RunnerHarness) -> None:
    _, steps = await play.run_declared("""name: commands
steps:
  - {id: say, run: [sh, -c, 'echo "$WORD"'], env: {WORD: "it's me"}}
  - {id: data, run: [echo, '{"n": 5}'], output: json}
  - {id: bad, run: [sh, -c, "exit 3"], required: false, retry: {max: 0}}
""")
    printed, data = steps["say"].output or {}, steps["data"].output or {}
    expect((printed.get("exit_code"), printed.get("stdout")), (0, "it's me"), "what the command printed")
    expect(data.get("json"), {"n": 5}, "the output in JSON")
    expect((steps["bad"].state, steps["bad"].reason), ("failed", "COMMAND_FAILED"), "the command that fails")


@situation(
    "batches", "puts at most one message of a lease into a batch, besides checkpoints, logs and heartbeats"
)
async def _batches(play: RunnerHarness) -> None:
    for asked in play.relay.requests:
        if not asked.path.startswith("/runner/messages") or not isinstance(asked.body, dict):
            continue
        whose = [
            one.get("lease")
            for one in asked.body.get("messages", ())
            if one.get("type") not in ("checkpoint", "log", "heartbeat")
        ]
        if len(whose) != len(set(whose)):
            raise ExpectationFailed("a batch has two messages of one lease")


@situation("wording", "sends nothing that the server has to refuse as malformed or unauthenticated")
async def _wording(play: RunnerHarness) -> None:
    for asked in play.relay.requests:
        if asked.status in _MALFORMED:
            raise ExpectationFailed(f"{asked.method} {asked.path} was answered {asked.status} {asked.code}")


@situation("doctor", "leaves a database in which every invariant holds")
async def _doctor(play: RunnerHarness) -> None:
    report = await examine_database(play.engine.store)
    if not report.clean:
        raise ExpectationFailed("; ".join(map(str, report.violations))[:400])


# --------------------------------------------------------------------------------------------------- the suite


async def run_suite(
    command: Sequence[str],
    *,
    only: Sequence[str] = (),
    commands: bool = False,
    patience: float = PATIENCE_SECONDS,
) -> AsyncIterator[SituationResult]:
    """Run the situations one after the other, and yield the result of each. Raises RunnerNotStarted."""
    async with _open_harness(command, patience, commands) as play:
        for one in SITUATIONS:
            if (only and one.name not in only) or (one.commands and not commands):
                continue
            try:
                await play.start_runner()
                await one.play(play)
            except ExpectationFailed as unmet:
                yield SituationResult(name=one.name, expected=one.expected, passed=False, seen=str(unmet))
            else:
                yield SituationResult(name=one.name, expected=one.expected, passed=True)
            play.relay.forget_plans()


@asynccontextmanager
async def _open_harness(
    command: Sequence[str], patience: float, commands: bool
) -> AsyncIterator[RunnerHarness]:
    with TemporaryDirectory(prefix="tenure-conformance-", ignore_cleanup_errors=True) as folder:
        play = RunnerHarness(Path(folder), command, patience, commands)
        async with play.engine:
            await play.prepare()
            await play.relay.start()
            try:
                await play.serve()
                yield play
            finally:
                await play.end_runner()
                await play.relay.stop()
                await play.end_server()
