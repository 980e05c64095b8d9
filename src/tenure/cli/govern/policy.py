"""`tenure policy`: what actions are allowed, checked, tested, published and made active."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.common.console import count_noun, error_fields, out, print_json, safe_text, show_error
from tenure.cli.common.options import AsJson, ConnectorsFile, Db
from tenure.cli.common.session import By, parse_seconds
from tenure.cli.identity.shared import OfTenant
from tenure.cli.runs.run_tables import format_time, make_table, value_text
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.govern.policy.cases import CaseResult
    from tenure.govern.policy.shadow import ShadowReport
    from tenure.shapes.policies import PolicyDecision, PolicyVersion

_app = typer.Typer(
    name="policy",
    help="What runs may do to the world: rules, checked, tested, published, made active by two people.",
    epilog="""
    From a file to an active policy:

    tenure policy check policy.yaml -- every problem with its line; fields against the connectors' schemas

    tenure policy test policy.yaml -- the tests in the file

    tenure policy publish policy.yaml -- kept as the next version; nothing changes yet

    tenure policy shadow policy.yaml --since 7d -- what it would have decided for last week's actions

    tenure policy activate 3 -- propose it; at a server a second person says the same

    docs/policy.md explains the whole.
    """,
    no_args_is_help=True,
)

_Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Policies.")]
_File = Annotated[Path, typer.Argument(metavar="FILE", help="A policy.")]
_Version = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="See `tenure policy list`.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(_app)


def _checked(path: Path, connectors: str | None) -> Any:
    """A policy, checked against a file of connectors or against all that come with Tenure."""
    from tenure.govern.connectors.registry import choose_connectors
    from tenure.govern.connectors.settings import builtin_connectors
    from tenure.govern.policy.connector_check import check_policy
    from tenure.govern.policy.loader import read_policy_text

    return check_policy(
        read_policy_text(path), str(path), choose_connectors(connectors) or builtin_connectors()
    )


@_app.command()
def check(files: _Files, connectors: ConnectorsFile = None, as_json: AsJson = False) -> None:
    """Check policies: every problem with its line and column. Fields are looked for in the schemas of the operations: those of
    --connectors, else of all connectors that come with Tenure."""
    told: list[dict[str, Any]] = []
    for path in files:
        try:
            policy = _checked(path, connectors)
        except TenureError as error:
            told.append({"file": str(path), "error": error_fields(error)})
            if not as_json:
                show_error(error)
        else:
            told.append({"file": str(path), "rules": len(policy.rules), "tests": len(policy.cases)})
            if not as_json:
                words = f"{count_noun(len(policy.rules), 'rule')}, {count_noun(len(policy.cases), 'test')}"
                out().print(safe_text(f"{path}: good ({words})"), soft_wrap=True)
    if as_json:
        print_json(told)
    if any("error" in one for one in told):
        raise typer.Exit(1)


@_app.command("test")
def run_tests(files: _Files, as_json: AsJson = False) -> None:
    """Run the tests in policies: what each must say of an action."""
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
        whole = sum(map(len, found.values()))
        out().print(safe_text(f"{count_noun(whole, 'test')}, {failed or 'none'} failed"))
    if failed:
        raise typer.Exit(1)


def _show_test(file: str, one: CaseResult) -> None:
    line = f"{'pass' if one.passed else 'FAIL'}  {one.name}"
    if one.passed:
        out().print(safe_text(line), soft_wrap=True)
        return
    out().print(safe_text(f"{line}  ({file}:{one.line})", "red"), soft_wrap=True)
    for wrong in (*one.wrong, *(f"{name}: {said}" for name, said in one.rules), *one.why.splitlines()):
        out().print(safe_text(f"      {wrong}"), soft_wrap=True)


@_app.command()
def publish(
    file: _File,
    connectors: ConnectorsFile = None,
    tenant: OfTenant = "default",
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Keep a policy as the next version, after it was checked. The same text again is the same version."""
    from tenure.cli.common.server_option import server_address
    from tenure.cli.govern.policy_access import call_policies
    from tenure.govern.policy.loader import read_policy_text

    # A server checks it against its own connectors; beside a database this is the place.
    text = read_policy_text(file) if server_address(db) is not None else _checked(file, connectors).text
    made = call_policies(db, tenant, by, lambda d: d.publish(text), make=True)
    if as_json:
        print_json(made)
    else:
        out().print(
            safe_text(f"version {made.version} is published; `tenure policy activate {made.version}`")
        )


@_app.command("list")
def list_versions(tenant: OfTenant = "default", db: Db = None, as_json: AsJson = False) -> None:
    """List the versions of a tenant's policy, newest first."""
    from tenure.cli.govern.policy_access import call_policies

    found = call_policies(db, tenant, None, lambda d: d.versions())
    if as_json:
        print_json(found)
        return
    if not found:
        out().print("no policy is published, so everything is denied")
        return
    made = make_table("version", "state", "author", "published (UTC)", "sha256")
    for one in found:
        made.add_row(
            str(one.version),
            safe_text(_state(one)),
            safe_text(one.author),
            format_time(one.published_at),
            one.sha256[:12],
        )
    out().print(made)


def _state(one: PolicyVersion) -> str:
    if one.active:
        return "active"
    return f"proposed by {one.proposed_by}" if one.proposed_by else "-"


@_app.command()
def show(
    version: Annotated[
        int | None, typer.Argument(metavar="[VERSION]", min=1, help="Without it the active one.")
    ] = None,
    tenant: OfTenant = "default",
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Print the text of a version, byte for byte."""
    from tenure.cli.govern.policy_access import call_policies

    found = call_policies(db, tenant, None, lambda d: d.version(version))
    if as_json:
        print_json(found)
    else:
        print(found.text, end="")


@_app.command()
def activate(
    version: _Version, tenant: OfTenant = "default", db: Db = None, by: By = None, as_json: AsJson = False
) -> None:
    """Make a version active: at a server the first person proposes it, the second one makes it so by the same command. Beside a
    database it is active at once, where the tenant has no people."""
    from tenure.cli.govern.policy_access import call_policies

    state, made = call_policies(db, tenant, by, lambda d: d.activate(version))
    if as_json:
        print_json({"state": state, "policy": made})
    elif state == "active":
        out().print(safe_text(f"version {version} is active"))
    else:
        out().print(
            safe_text(f"version {version} is proposed; another person says the same to make it active")
        )


@_app.command()
def withdraw(
    version: _Version, tenant: OfTenant = "default", db: Db = None, by: By = None, as_json: AsJson = False
) -> None:
    """Take back that a version was proposed."""
    from tenure.cli.govern.policy_access import call_policies

    made = call_policies(db, tenant, by, lambda d: d.withdraw(version))
    if as_json:
        print_json(made)
    else:
        out().print(safe_text(f"version {version} is no longer proposed"))


@_app.command()
def explain(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Its id.")],
    tenant: OfTenant = "default",
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Say what policies decided about a run's actions: version, rules and outcome of each."""
    from tenure.cli.govern.policy_access import call_policies

    found = call_policies(db, tenant, None, lambda d: d.decisions(run))
    if as_json:
        print_json(found)
        return
    if not found:
        out().print(safe_text(f"{run} has proposed no action"))
    for one in found:
        for line in _decision(one):
            out().print(safe_text(line), soft_wrap=True)


def _decision(one: PolicyDecision) -> list[str]:
    said = {"not": "does not apply", "error": "could not be evaluated", "needs_approval": "needs approval"}
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
        lines.append(f"  rule {name}: {said.get(what, what)}{reason}")
    return lines


@_app.command()
def shadow(
    file: _File,
    since: Annotated[str, typer.Option("--since", help="How far to look back: 7d, 12h.")] = "7d",
    tenant: OfTenant = "default",
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Say what a policy would have decided for actions that were decided already. Nothing is changed."""
    from tenure.cli.govern.policy_access import call_policies
    from tenure.govern.policy import load_policy_file

    text = load_policy_file(file).text
    length = parse_seconds(since)
    found = call_policies(db, tenant, None, lambda d: d.shadow(text, length))
    if as_json:
        print_json(found)
    else:
        _show_shadow(found)


def _show_shadow(found: ShadowReport) -> None:
    if found.differs:
        made = make_table("run", "at (UTC)", "action", "was", "would be", "why")
        for one in found.differs:
            was = f"{one.was} (version {one.was_version})"
            made.add_row(
                safe_text(one.run),
                format_time(one.at),
                safe_text(one.action),
                safe_text(was),
                safe_text(one.would),
                safe_text(one.why),
            )
        out().print(made)
    left = sum(found.not_judged.values())
    out().print(
        f"{count_noun(found.looked_at, 'decision')}: {found.same} the same, {len(found.differs)} different, {left} not judged"
    )
    for why, count in found.not_judged.items():
        out().print(safe_text(f"  not judged: {count}, because {why}"), soft_wrap=True)
    if found.looked_at:
        for fact in found.not_as_then:
            out().print(safe_text(f"  not as it was then: {fact}"), soft_wrap=True)


@_app.command()
def schema() -> None:
    """Print the JSON Schema of policy files, for your editor."""
    from tenure.govern.policy.grammar import policy_json_schema as made

    print_json(made())
