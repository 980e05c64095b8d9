"""`tenure approvals`: what people are asked, and their answers.

Law: beside a database whoever answers is one local person, the account's, and cannot choose to be another: alone it never
satisfies a gate for two. Over a server it is the person whose key it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from tenure.cli.common.console import full_text, out, print_json, safe_text
from tenure.cli.common.options import AsJson, Db
from tenure.cli.common.session import RunArg, Tenant, call_backend, caller_id
from tenure.cli.runs.run_tables import format_time, keep_ids_whole, make_table
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.cli.common.backend import Backend
    from tenure.shapes.approvals import Approval

_app = typer.Typer(
    name="approvals",
    help="What people are asked, and their answers.",
    epilog="""
    Examples:

    tenure approvals list -- every open question

    tenure approvals approve run_2026-02-14_080000_abc123 --reason "looked at it"

    tenure approvals reject run_2026-02-14_080000_abc123 --no 2 -- of several questions, the second

    Whoever stands behind a run does not count, and nobody counts twice. Beside a database you are one person, uid:N of this
    account; a second one answers over a server, with a key of their own.
    """,
    no_args_is_help=True,
)

DIGEST_DIGITS = 12
"""How many digits of a digest are shown, and suffice to name it."""

_No = Annotated[int | None, typer.Option("--no", help="Which question, where the run asks several.")]
_Digest = Annotated[
    str,
    typer.Option(
        "--digest", help="The digest of what was shown, or its first 12 digits, where it is bound to one."
    ),
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
    asked, unknown = call_backend(db, tenant, lambda backend: _inbox(backend, run))
    if as_json:
        print_json(asked)
        return
    console = out()
    if unknown:
        console.print(safe_text(f"{unknown} actions have no known end: tenure receipts list"))
    if not asked:
        console.print("nobody is asked anything")
        return
    made = make_table("run", "no", "step", "question", "said yes", "until" if run is None else "status")
    keep_ids_whole(made, [a.run_id for a in asked])
    for a in asked:
        made.add_row(
            a.run_id,
            str(a.no),
            safe_text(a.step),
            safe_text(_question(a)),
            f"{len(a.votes)} of {a.people}",
            format_time(a.expires_at) if run is None else a.status,
        )
    console.print(made)


async def _inbox(backend: Backend, run: str | None) -> tuple[list[Approval], int]:
    """The questions, and how many actions wait for somebody to say how they ended."""
    receipts = await backend.receipts.list(run)
    return await backend.approvals.list(run), sum(one.state == "unknown" for one in receipts)


def _question(a: Approval) -> str:
    """Its title, and what is shown with it, in full: people decide by what they see here."""
    shows = a.question
    if a.governed:
        from tenure.govern.proposals import read_proposal

        if (asked := read_proposal(shows)) is not None:  # the connector's words, then the agent's apart
            own = [f"the agent's own words: {asked.why}"] if asked.why else []
            bound = f"digest {a.digest[:DIGEST_DIGITS]}, revision {a.revision}"
            return "\n".join([a.title, *asked.writes, *asked.rationale, *own, bound])
    if isinstance(shows, dict):
        shows = {key: value for key, value in shows.items() if key != "title"} or None
    return a.title if shows is None else f"{a.title}\n{full_text(shows)}"


@_app.command()
def approve(
    run: RunArg,
    no: _No = None,
    digest: _Digest = "",
    revision: _Revision = None,
    reason: _Reason = None,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Say yes. Whoever stands behind the run does not count, and nobody counts twice."""
    said = {"no": no, "digest": digest, "revision": revision, "reason": reason}
    _answer("approve", run, said, db, tenant, as_json)


@_app.command()
def reject(
    run: RunArg,
    no: _No = None,
    digest: _Digest = "",
    revision: _Revision = None,
    reason: _Reason = None,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Say no: one refusal decides."""
    said = {"no": no, "digest": digest, "revision": revision, "reason": reason}
    _answer("reject", run, said, db, tenant, as_json)


def _must_be_first(asked: list[Approval], no: int | None) -> None:
    """Refuse a second yes of the local person where more people are needed: it is no second person's."""
    for one in asked:
        if one.status == "requested" and no in (None, one.no) and caller_id(None) in one.votes:
            raise TenureError(
                "APPROVER_COUNTED",
                f"{caller_id(None)} has said yes; {one.people} people have to, and you are one",
            )


def _bound(asked: list[Approval], run: str, said: dict[str, Any]) -> None:
    """What a question is bound to is said in full: by its first digits, or not at all where nothing is bound."""
    given = str(said["digest"]).lower()
    for one in asked:
        if one.status != "requested" or said["no"] not in (None, one.no) or not one.digest:
            continue
        if not given:
            raise TenureError(
                "APPROVAL_DIGEST_MISSING",
                f"this answer is bound to what was shown: look at it with `tenure approvals list --run {run}`, and say "
                f"--digest {one.digest[:DIGEST_DIGITS]} if that is it",
            )
        if len(given) >= DIGEST_DIGITS and one.digest.startswith(given):
            said["digest"] = one.digest


def _answer(verb: str, run: str, said: dict[str, Any], db: str | None, tenant: str, as_json: bool) -> None:
    async def call(backend: Backend) -> str:
        asked = await backend.approvals.list(run)
        if verb == "approve":
            _must_be_first(asked, said["no"])
        _bound(asked, run, said)
        status: str = await getattr(backend, verb)(run, approver=caller_id(None), **said)
        return status

    status = call_backend(db, tenant, call, changes=True)
    if as_json:
        print_json({"run": run, "status": status})
    else:
        more = ": more people are needed" if status == "requested" else ""
        out().print(Text(f"{status}{more}"))
