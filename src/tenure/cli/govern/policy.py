"""`tenure policy`: check, test, publish and activate the policies that allow actions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.common.arguments import parse_seconds
from tenure.cli.common.backend import call_backend
from tenure.cli.common.console import count_noun, error_fields, print_json, say, show_error, show_result
from tenure.cli.common.options import AsJson, By, ConnectorsFile, Db, RunArg, Tenant
from tenure.cli.common.tables import format_time, show_table
from tenure.cli.runs.run_tables import value_text
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.govern.connectors.registry import Connectors
    from tenure.govern.policy.cases import CaseResult
    from tenure.shapes.policies import PolicyDecision, PolicyVersion, ShadowReport

app = typer.Typer(
    name="policy",
    help="Policies: rules for the actions of runs. Check, test and publish them; two people activate one.",
    epilog="""
    From a file to an active policy:

    tenure policy check policy.yaml -- every problem with its line; fields against the connectors' schemas

    tenure policy test policy.yaml -- the tests in the file

    tenure policy publish policy.yaml -- stored as the next version; nothing changes yet

    tenure policy shadow policy.yaml --since 7d -- what it would have decided for last week's actions

    tenure policy activate 3 -- propose it; on a server, a second person runs the same command

    docs/policy.md explains policies.
    """,
    no_args_is_help=True,
)

_Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Policy files.")]
_File = Annotated[Path, typer.Argument(metavar="FILE", help="A policy file.")]
_Version = Annotated[
    int, typer.Argument(metavar="VERSION", min=1, help="A version, see `tenure policy list`.")
]


def _load_connectors(file: str | None) -> Connectors:
    """The connectors of a file, or all that come with Tenure."""
    from tenure.govern.connectors.registry import choose_connectors
    from tenure.govern.connectors.settings import builtin_connectors

    return choose_connectors(file) or builtin_connectors()


@app.command()
def check(files: _Files, connectors: ConnectorsFile = None, as_json: AsJson = False) -> None:
    """Check policies and print every problem with its line and column. Fields are checked against the schemas of the connectors
    that --connectors names, else of all connectors that come with Tenure."""
    from tenure.govern.policy.connector_check import check_policy
    from tenure.govern.policy.loader import read_policy_text

    checked: list[dict[str, Any]] = []
    for path in files:
        try:
            policy = check_policy(read_policy_text(path), str(path), _load_connectors(connectors))
        except TenureError as error:
            checked.append({"file": str(path), "error": error_fields(error)})
            if not as_json:
                show_error(error)
        else:
            checked.append({"file": str(path), "rules": len(policy.rules), "tests": len(policy.cases)})
            if not as_json:
                words = f"{count_noun(len(policy.rules), 'rule')}, {count_noun(len(policy.cases), 'test')}"
                say(f"{path}: good ({words})")
    if as_json:
        print_json(checked)
    if any("error" in one for one in checked):
        raise typer.Exit(1)


@app.command("test")
def run_tests(files: _Files, as_json: AsJson = False) -> None:
    """Run the tests in policies: the decisions that they expect for sample actions."""
    from tenure.govern.policy import load_policy_file
    from tenure.govern.policy.cases import run_cases

    found = {str(path): run_cases(load_policy_file(path)) for path in files}
    failed = sum(not one.passed for each in found.values() for one in each)
    if as_json:
        print_json(found)
    else:
        for name, each in found.items():
            for one in each:
                _show_test(name, one)
        say(f"{count_noun(sum(map(len, found.values())), 'test')}, {failed or 'none'} failed")
    if failed:
        raise typer.Exit(1)


def _show_test(file: str, one: CaseResult) -> None:
    line = f"{'pass' if one.passed else 'FAIL'}  {one.name}"
    if one.passed:
        say(line)
        return
    say(f"{line}  ({file}:{one.line})", "red")
    for wrong in (*one.wrong, *(f"{name}: {outcome}" for name, outcome in one.rules), *one.why.splitlines()):
        say(f"      {wrong}")


@app.command()
def publish(
    file: _File,
    connectors: ConnectorsFile = None,
    tenant: Tenant = "default",
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Check a policy and store it as the next version. The same text again is the same version."""
    from tenure.cli.common.server_option import server_address
    from tenure.govern.policy.connector_check import check_policy
    from tenure.govern.policy.loader import read_policy_text

    text, known = read_policy_text(file), None
    if server_address(db) is None:  # a server checks the text against its own connectors
        known = _load_connectors(connectors)
        check_policy(text, str(file), known)  # before a database is made
    made = call_backend(
        db,
        tenant,
        lambda b: b.policies.publish(text, connectors=known),
        by=by,
        changes=True,
        make=True,
    )
    show_result(
        made, as_json, f"version {made.version} is published; `tenure policy activate {made.version}`"
    )


@app.command("list")
def list_versions(tenant: Tenant = "default", db: Db = None, as_json: AsJson = False) -> None:
    """List the versions of a tenant's policy, newest first."""
    found = call_backend(db, tenant, lambda b: b.policies.list(), changes=True)
    show_table(
        found,
        as_json,
        "no policy is published, so everything is denied",
        ("version", "state", "author", "published (UTC)", "sha256"),
        lambda one: (one.version, _state(one), one.author, format_time(one.published_at), one.sha256[:12]),
    )


def _state(one: PolicyVersion) -> str:
    if one.active:
        return "active"
    return f"proposed by {one.proposed_by}" if one.proposed_by else "-"


@app.command()
def show(
    version: Annotated[
        int | None, typer.Argument(metavar="[VERSION]", min=1, help="A version.  \\[default: the active one]")
    ] = None,
    tenant: Tenant = "default",
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Print the text of a version, byte for byte."""
    found = call_backend(db, tenant, lambda b: b.policies.get(version), changes=True)
    if as_json:
        print_json(found)
    else:
        print(found.text, end="")


@app.command()
def activate(
    version: _Version, tenant: Tenant = "default", db: Db = None, by: By = None, as_json: AsJson = False
) -> None:
    """Make a version active. On a server the first person proposes it, and a second person runs the same command to activate it.
    On a database it is active at once, if the tenant has no people."""
    made = call_backend(db, tenant, lambda b: b.policies.activate(version), by=by, changes=True)
    proposed = "proposed; another person runs the same command to activate it"
    show_result(made, as_json, f"version {version} is {'active' if made.state == 'active' else proposed}")


@app.command()
def withdraw(
    version: _Version, tenant: Tenant = "default", db: Db = None, by: By = None, as_json: AsJson = False
) -> None:
    """Withdraw the proposal to activate a version."""
    made = call_backend(db, tenant, lambda b: b.policies.withdraw(version), by=by, changes=True)
    show_result(made, as_json, f"version {version} is no longer proposed")


@app.command()
def explain(
    run: RunArg,
    tenant: Tenant = "default",
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Explain what policies decided about a run's actions: the version, the rules and the outcome of each."""
    found = call_backend(db, tenant, lambda b: b.policies.decisions(run), changes=True)
    lines = [line for one in found for line in _decision(one)]
    show_result(found, as_json, *(lines or [f"{run} has proposed no action"]))


def _decision(one: PolicyDecision) -> list[str]:
    descriptions = {
        "not": "does not apply",
        "error": "could not be evaluated",
        "needs_approval": "needs approval",
    }
    lines = [
        f"{format_time(one.at)}  {one.step}  {one.action}  ({one.label})",
        f"  {one.outcome.replace('_', ' ')}, by version {one.version}" if one.version else f"  {one.outcome}",
    ]
    if one.error is not None:
        lines.append(f"  because of {one.error}: `tenure explain {one.error}`")
    if one.outcome == "needs_approval":
        within = "" if one.within_seconds is None else f" within {one.within_seconds:g} s"
        lines.append(f"  asked: {one.people} of {one.group or 'any group'}, tier {one.tier}{within}")
    if isinstance(one.request, dict):
        lines += [f"  {part}: {value_text(value)}" for part, value in one.request.items()]
    for name, what in one.rules:
        reason = f" ({one.reasons[name]})" if name in one.reasons else ""
        lines.append(f"  rule {name}: {descriptions.get(what, what)}{reason}")
    return lines


@app.command()
def shadow(
    file: _File,
    since: Annotated[str, typer.Option("--since", help="How far to look back: 7d, 12h.")] = "7d",
    tenant: Tenant = "default",
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Show what a policy would have decided for past actions. Nothing is changed."""
    from tenure.govern.policy import load_policy_file

    text, length = load_policy_file(file).text, parse_seconds(since)
    found = call_backend(db, tenant, lambda b: b.policies.shadow(text, length), changes=True)
    if as_json:
        print_json(found)
    else:
        _show_shadow(found)


def _show_shadow(found: ShadowReport) -> None:
    if found.differs:
        show_table(
            found.differs,
            False,
            "",
            ("run", "at (UTC)", "action", "was", "would be", "why"),
            lambda one: (
                one.run,
                format_time(one.at),
                one.action,
                f"{one.was} (version {one.was_version})",
                one.would,
                one.why,
            ),
        )
    left = sum(found.not_judged.values())
    say(
        f"{count_noun(found.looked_at, 'decision')}: {found.same} the same, {len(found.differs)} different, {left} not evaluated"
    )
    for why, count in found.not_judged.items():
        say(f"  not evaluated: {count}, because {why}")
    for fact in found.not_as_then if found.looked_at else ():
        say(f"  current value used, not the past one: {fact}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of policy files, for your editor."""
    from tenure.govern.policy.grammar import policy_json_schema

    print_json(policy_json_schema())
