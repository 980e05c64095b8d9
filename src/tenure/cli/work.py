"""`tenure runs work`: be the worker. Takes ready steps, and completes or fails them with what was given."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tenure import ids
from tenure.cli.console import out, print_json, shown
from tenure.cli.options import AsJson, Db
from tenure.cli.runs_show import value_text
from tenure.cli.session import change, code_of, json_value, wait_for
from tenure.errors import TenureError
from tenure.limits import PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from tenure.embedded import Engine
    from tenure.kernel.commands import Complete, Fail
    from tenure.kernel.decide.leases import Lease


class Worked(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was taken, and how it ended."""

    run: str
    step: str
    tool: str
    attempt: int
    input: Any
    said: str
    run_status: str


def work(
    worker: Annotated[str, typer.Option("--worker", help="Under which name.")] = "",
    queue: Annotated[list[str] | None, typer.Option("--queue", help="Which queues; may be repeated.")] = None,
    output: Annotated[str | None, typer.Option("--output", help="The steps' output: JSON, or @FILE.")] = None,
    fail: Annotated[
        str | None, typer.Option("--fail", metavar="CODE", help="Fail the steps with this code.")
    ] = None,
    message: Annotated[str | None, typer.Option("--message", help="With --fail: what went wrong.")] = None,
    retryable: Annotated[
        bool | None,
        typer.Option(
            "--retryable/--final",
            help="With --fail: whether to try again.  \\[default: as the profile's rules say]",
            show_default=False,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Take one step only.")] = False,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Take what is ready and complete it (or fail it), step by step, until nothing is ready any more."""
    if fail is None and (message is not None or retryable is not None):
        raise typer.BadParameter("--message, --retryable and --final need --fail")
    if fail is not None and output is not None:
        raise typer.BadParameter("a step that fails has no output: use --output or --fail")
    from tenure.embedded.plan import payload
    from tenure.kernel.commands import Complete, Context, Fail
    from tenure.orchestrator.views import decoded

    # Everything that can be refused is refused before a step is taken: a claim is a try that counts.
    result, said_why = payload(json_value(output, "--output")), (message or "").encode()
    _check_size(result, "--output")
    _check_size(said_why, "--message")
    if fail is not None:
        code_of(fail)
    by = worker or f"cli-{os.getpid()}"

    def last_word(lease: Lease) -> Complete | Fail:
        head: dict[str, Any] = {
            "run_id": lease.run_id,
            "idx": lease.idx,
            "n": lease.n,
            "seq": 1,
            "context": Context(f"worker:{by}", "system", lease.idempotency_key),
        }
        if fail is None:
            return Complete(**head, output=result)
        return Fail(**head, code=fail, message=said_why, retryable=retryable)

    async def take(engine: Engine) -> Worked | None:
        await engine.settle()
        leases = await engine.orchestrator.claim(by, queues=queue or ("default",))
        if not leases:
            return None
        lease = leases[0]
        said = last_word(lease)
        await engine.orchestrator.send(said)
        (row,) = await engine.store.read("get_run", lease.run_id)
        return Worked(
            run=ids.run_text(lease.run_id),
            step=lease.name,
            tool=lease.tool,
            attempt=lease.n,
            input=decoded(lease.input),
            said="complete" if isinstance(said, Complete) else f"fail {said.code}",
            run_status=row.status,
        )

    async def call() -> list[Worked]:
        done: list[Worked] = []
        async with change(db, "default") as engine:
            while (found := await take(engine)) is not None:
                done.append(found)
                if not as_json:
                    _show(found)
                if once:
                    break
        return done

    done = wait_for(call())
    if as_json:
        print_json(done)
    elif not done:
        out().print("nothing is ready")


def _check_size(body: bytes | None, what: str) -> None:
    if body is not None and len(body) > PAYLOAD_BYTES_MAX:
        raise TenureError(
            "PAYLOAD_TOO_LARGE", f"{what} has {len(body)} bytes; at most {PAYLOAD_BYTES_MAX} are kept"
        )


def _show(found: Worked) -> None:
    given = "" if found.input is None else f" with {value_text(found.input)}"
    line = (
        f"{found.run} {found.step} (try {found.attempt}){given}: {found.said}; the run is {found.run_status}"
    )
    out().print(shown(line), soft_wrap=True)
