"""`tenure approvals`: list and answer the approvals that people are asked for.

Law: on a database, the approver is always the local account, so that one person alone never satisfies a gate for two. On a server it is
the owner of the key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.common.backend import call_backend, caller_id
from tenure.cli.common.console import count_noun, full_text, say, show_result
from tenure.cli.common.options import AsJson, Db, RunArg, Tenant
from tenure.cli.common.tables import format_time, show_table
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.cli.common.backend import Backend
    from tenure.shapes.approvals import Approval
    from tenure.shapes.receipts import Receipt

app = typer.Typer(
    name="approvals",
    help="List the approvals that people are asked for, and answer them.",
    epilog="""
    Examples:

    tenure approvals list -- all open approvals

    tenure approvals approve run_2026-02-14_080000_abc123 --reason "looked at it"

    tenure approvals reject run_2026-02-14_080000_abc123 --no 2 -- the second of several approvals

    People who are involved in a run cannot approve it, and nobody counts twice. On a database you are one person, uid:N of this
    account. A second person answers on a server, with their own key.
    """,
    no_args_is_help=True,
)

DIGEST_DIGITS = 12
"""How many digits of a digest are shown, and are enough to name it."""

_No = Annotated[
    int | None, typer.Option("--no", help="The number of the approval, if the run asks for several.")
]
_Digest = Annotated[
    str,
    typer.Option("--digest", help="The digest that the answer is bound to, or its first 12 digits."),
]
_Revision = Annotated[int | None, typer.Option("--revision", help="The revision that you have reviewed.")]
_Reason = Annotated[str | None, typer.Option("--reason", help="Why, for the history.")]


@app.command("list")
def list_approvals(
    run: Annotated[
        str | None, typer.Option("--run", help="All approvals of this run, including answered ones.")
    ] = None,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """List open approvals, oldest first."""

    async def call(backend: Backend) -> tuple[list[Approval], list[Receipt]]:
        return await backend.approvals.list(run), await backend.receipts.list(run)

    asked, receipts = call_backend(db, tenant, call)
    unknown = sum(one.state == "unknown" for one in receipts)
    if unknown and not as_json:
        say(f"{count_noun(unknown, 'action')} with an unknown outcome: tenure receipts list")
    show_table(
        asked,
        as_json,
        "no open approvals" if run is None else f"{run} has no approvals",
        ("run", "no", "step", "question", "approved", "until" if run is None else "status"),
        lambda a: (
            a.run_id,
            a.no,
            a.step,
            _question(a),
            f"{len(a.votes)} of {a.people}",
            format_time(a.expires_at) if run is None else a.status,
        ),
        whole_ids=True,
    )


def _question(a: Approval) -> str:
    """The title and everything that is shown with it, in full: people decide by what they see here."""
    shows = a.question
    if a.governed:
        from tenure.govern.proposals import read_proposal

        if (asked := read_proposal(shows)) is not None:  # keep the connector's and the agent's words apart
            own = [f"the agent's own words: {asked.why}"] if asked.why else []
            bound = f"digest {a.digest[:DIGEST_DIGITS]}, revision {a.revision}"
            return "\n".join([a.title, *asked.writes, *asked.rationale, *own, bound])
    if isinstance(shows, dict):
        shows = {key: value for key, value in shows.items() if key != "title"} or None
    return a.title if shows is None else f"{a.title}\n{full_text(shows)}"


@app.command()
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
    """Approve. People who are involved in the run cannot approve it, and nobody counts twice."""
    fields = {"no": no, "digest": digest, "revision": revision, "reason": reason}
    _answer("approve", run, fields, db, tenant, as_json)


@app.command()
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
    """Reject. A single rejection decides."""
    fields = {"no": no, "digest": digest, "revision": revision, "reason": reason}
    _answer("reject", run, fields, db, tenant, as_json)


def _refuse_second_vote(asked: list[Approval], no: int | None) -> None:
    """Refuse a second yes of the local account: it is not a second person's."""
    for one in asked:
        if one.status == "requested" and no in (None, one.no) and caller_id() in one.votes:
            raise TenureError(
                "APPROVER_COUNTED",
                f"{caller_id()} has already approved; {one.people} people have to, and you are one of them",
            )


def _complete_digest(asked: list[Approval], run: str, fields: dict[str, Any]) -> None:
    """Replace the first digits of a digest by the whole, and require one if the approval is bound to a digest."""
    given = str(fields["digest"]).lower()
    for one in asked:
        if one.status != "requested" or fields["no"] not in (None, one.no) or not one.digest:
            continue
        if not given:
            raise TenureError(
                "APPROVAL_DIGEST_MISSING",
                f"this answer is bound to what was shown: review it with `tenure approvals list --run {run}`, then add "
                f"--digest {one.digest[:DIGEST_DIGITS]} if it is the same",
            )
        if len(given) >= DIGEST_DIGITS and one.digest.startswith(given):
            fields["digest"] = one.digest


def _answer(verb: str, run: str, fields: dict[str, Any], db: str | None, tenant: str, as_json: bool) -> None:
    async def call(backend: Backend) -> str:
        asked = await backend.approvals.list(run)
        if verb == "approve":
            _refuse_second_vote(asked, fields["no"])
        _complete_digest(asked, run, fields)
        status: str = await getattr(backend, verb)(run, approver=caller_id(), **fields)
        return status

    status = call_backend(db, tenant, call, changes=True)
    more = ": more people are needed" if status == "requested" else ""
    show_result({"run": run, "status": status}, as_json, f"{status}{more}")
