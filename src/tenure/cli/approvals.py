"""`tenure approvals`: what people are asked, and their answers."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from tenure.cli.console import out, print_json, shown
from tenure.cli.options import AsJson, Db
from tenure.cli.runs_show import table, value_text, when
from tenure.cli.session import Approver, RunArg, Tenant, change, session, wait_for, who
from tenure.embedded import ApprovalView

_app = typer.Typer(name="approvals", help="What people are asked, and their answers.", no_args_is_help=True)

_No = Annotated[int | None, typer.Option("--no", help="Which question, where the run asks several.")]
_Digest = Annotated[
    str, typer.Option("--digest", help="The digest of what was shown, where it is bound to one.")
]
_Revision = Annotated[int | None, typer.Option("--revision", help="The revision that was shown.")]
_Reason = Annotated[str | None, typer.Option("--reason", help="Why.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(_app)


@_app.command("list")
def list_approvals(
    run: Annotated[
        str | None, typer.Option("--run", help="All questions of this run, answered ones too.")
    ] = None,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """List what people are asked now, oldest first."""

    async def call() -> list[ApprovalView]:
        async with session(db, tenant) as engine:
            return await engine.approvals(run)

    asked = wait_for(call())
    if as_json:
        print_json(asked)
        return
    console = out()
    if not asked:
        console.print("nobody is asked anything")
        return
    made = table("run", "no", "step", "action", "tier", "said yes", "status", "asked", "expires", "question")
    for a in asked:
        made.add_row(
            a.run_id,
            str(a.no),
            shown(a.step),
            shown(a.action),
            a.tier,
            f"{len(a.votes)} of {a.people}",
            a.status,
            when(a.requested_at),
            when(a.expires_at),
            shown("" if a.question is None else value_text(a.question)),
        )
    console.print(made)


@_app.command()
def approve(
    run: RunArg,
    no: _No = None,
    digest: _Digest = "",
    revision: _Revision = None,
    reason: _Reason = None,
    db: Db = None,
    tenant: Tenant = "default",
    by: Approver = None,
    as_json: AsJson = False,
) -> None:
    """Say yes. Whoever started the run does not count, and nobody counts twice."""

    async def call() -> str:
        async with change(db, tenant) as engine:
            return await engine.approve(
                run, approver=who(by), no=no, digest=digest, revision=revision, reason=reason
            )

    _answer(as_json, run, wait_for(call()))


@_app.command()
def reject(
    run: RunArg,
    no: _No = None,
    digest: _Digest = "",
    revision: _Revision = None,
    reason: _Reason = None,
    db: Db = None,
    tenant: Tenant = "default",
    by: Approver = None,
    as_json: AsJson = False,
) -> None:
    """Say no: one refusal decides."""

    async def call() -> str:
        async with change(db, tenant) as engine:
            return await engine.reject(
                run, approver=who(by), no=no, digest=digest, revision=revision, reason=reason
            )

    _answer(as_json, run, wait_for(call()))


def _answer(as_json: bool, run: str, status: str) -> None:
    if as_json:
        print_json({"run": run, "status": status})
    else:
        more = ": more people are needed" if status == "requested" else ""
        out().print(Text(f"{status}{more}"))
