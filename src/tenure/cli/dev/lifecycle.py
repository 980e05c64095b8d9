"""`tenure lifecycle`: the profiles, shown, drawn and proven.

Law: everything printed here is read from the tables the kernel runs on; nothing is written twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from tenure import custom_profiles
from tenure.cli.common.console import count_noun, err, out, print_json
from tenure.cli.dev import lifecycle_page
from tenure.cli.dev.mermaid import profile_diagram
from tenure.kernel import profiles, refinement
from tenure.kernel.profile import (
    ENTITIES,
    DocumentEdge,
    Entity,
    ExtraEdge,
    IndirectEdge,
    Profile,
    parse_profile,
)
from tenure.kernel.refinement import ProfileProof
from tenure.kernel.retry import KERNEL_RULES

DOCUMENT = Path("docs/lifecycle.md")

_app = typer.Typer(
    name="lifecycle",
    help="The lifecycles there are (profiles), and the proof that each is a view of the one kernel.",
    no_args_is_help=True,
)

_Json = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(_app)


@_app.command("list")
def list_profiles(as_json: _Json = False) -> None:
    """List the profiles: which document each follows, how it recovers, and whose it is."""
    custom_profiles.load_custom_profiles()
    if as_json:
        print_json([_line(profiles.get(name)) for name in profiles.names()])
        return
    table = _table("profile", "title", "document", "recovery", "tries", "lease", "from")
    for name in profiles.names():
        p = profiles.get(name)
        figures = (str(p.timing.attempts_max), f"{p.timing.lease_seconds:g} s")
        _fill(table, [(name, p.title, p.document, p.recovery, *figures, _origin(name))])
    out().print(table)


@_app.command()
def show(
    name: Annotated[str, typer.Argument(help="A profile's name, see `tenure lifecycle list`.")],
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid state diagram.")] = False,
    entity: Annotated[str, typer.Option(help="Only run, step, attempt or lease.")] = "",
    as_toml: Annotated[
        bool, typer.Option("--toml", help="Print the profile's file, as a start for one of your own.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Show a profile: its words, tables, owners, timing, failure rules and edges beyond its document."""
    own = custom_profiles.load_custom_profiles()
    profile = profiles.get(name)
    only = _entity(entity)
    if as_toml:
        print(own[name].text if name in own else profiles.built_in_text(name), end="")
    elif mermaid:
        print(profile_diagram(profile, only))
    elif as_json:
        print_json(
            {"profile": msgspec.to_builtins(profile), "proof": _proof_json(refinement.prove_profile(profile))}
        )
    else:
        _show(profile, only)


@_app.command()
def prove(as_json: _Json = False) -> None:
    """Prove that the kernel is sound and that every profile stays within its own tables."""
    custom_profiles.load_custom_profiles()
    kernel = refinement.kernel_problems()
    proofs = [refinement.prove_profile(profiles.get(name)) for name in profiles.names()]
    if as_json:
        print_json(
            {
                "kernel": {"joint_states": len(refinement.joint_states()), "problems": kernel},
                "profiles": [_proof_json(proof) for proof in proofs],
            }
        )
    else:
        _show_proofs(proofs)
        _show_sum(proofs)
    problems = [f"kernel: {p}" for p in kernel] + [
        f"{proof.profile} {p}" for proof in proofs for p in proof.problems
    ]
    for problem in problems:
        err().print(Text(problem, style="red"), soft_wrap=True)
    if problems:
        raise typer.Exit(1)


@_app.command()
def check(
    file: Annotated[
        Path, typer.Argument(help="A profile of your own, as TOML.", exists=True, dir_okay=False)
    ],
    as_json: _Json = False,
) -> None:
    """Check a profile file of your own: its form first, then the same proof as `prove`."""
    proof = refinement.prove_profile(parse_profile(custom_profiles.read_profile_text(file)))
    if as_json:
        print_json(_proof_json(proof))
    else:
        _show_proofs([proof])
    custom_profiles.check_proof(file, proof)
    if not as_json:
        _show_sum([proof])


@_app.command()
def docs(
    check_only: Annotated[
        bool, typer.Option("--check", help="Only say whether the page is up to date.")
    ] = False,
) -> None:
    """Write docs/lifecycle.md anew from the tables (run it in the project's folder)."""
    if not DOCUMENT.parent.is_dir():
        raise typer.BadParameter(
            f"there is no folder {DOCUMENT.parent}/ here; run this in the project's folder"
        )
    text = lifecycle_page.render_page()
    if not check_only:
        DOCUMENT.write_text(text, encoding="utf-8")
        out().print(f"wrote {DOCUMENT}")
    elif not DOCUMENT.is_file() or DOCUMENT.read_text(encoding="utf-8") != text:
        err().print(f"{DOCUMENT} is not up to date; run `tenure lifecycle docs`")
        raise typer.Exit(1)
    else:
        out().print(f"{DOCUMENT} is up to date")


# --------------------------------------------------------------------------------------------- printing


def _entity(name: str) -> Entity | None:
    for entity in ENTITIES:
        if name == entity:
            return entity
    if name:
        raise typer.BadParameter(f"'{name}' is not one of {', '.join(ENTITIES)}")
    return None


def _origin(name: str) -> str:
    own = custom_profiles.load_custom_profiles().get(name)
    return "tenure" if own is None else str(own.file)


def _table(*columns: str, title: str = "") -> Table:
    table = Table(title=title or None, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _fill(table: Table, rows: Iterable[Iterable[str]]) -> Table:
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _show(profile: Profile, only: Entity | None) -> None:
    console = out()
    console.print(Text(f"{profile.title} ({profile.name})", style="bold"))
    console.print(Text(f"follows: {profile.document}"))
    if profile.name in profiles.custom_names():
        console.print(Text(f"a profile of your own: {_origin(profile.name)}"))
    for line in lifecycle_page.profile_traits(profile):
        console.print(Text(line))
    console.print(_fill(_table("timing", "default"), lifecycle_page.timing_rows(profile)))
    rules = [
        *((r.pattern, "retry" if r.retryable else "final", f"always: {r.note}") for r in KERNEL_RULES),
        *((r.pattern, "retry" if r.retryable else "final", r.note) for r in profile.rules),
        ("anything else", "retry" if profile.default_retryable else "final", ""),
    ]
    console.print(_fill(_table("failure code", "then", "note"), rules))
    for entity in [only] if only else ENTITIES:
        # The kernel's own table says nothing about this profile: it is shown to whoever asks for it.
        if profile.vocabulary(entity).kernel and not only:
            console.print()
            console.print(
                Text(f"{entity}: the kernel's own words and table (see --entity {entity}).", style="bold")
            )
            console.print(Text(profile.vocabulary(entity).kernel))
        else:
            _show_entity(profile, entity)


def _show_entity(profile: Profile, entity: Entity) -> None:
    console, vocabulary = out(), profile.vocabulary(entity)
    console.print()
    if vocabulary.kernel:
        console.print(Text(f"{entity}: the kernel's own words and table", style="bold"))
        console.print(Text(vocabulary.kernel))
    else:
        words = lifecycle_page.word_rows(profile, entity)
        console.print(_fill(_table("kernel", "word", title=f"{entity}: words ({vocabulary.source})"), words))
    lines: list[DocumentEdge | IndirectEdge] = [*vocabulary.edges, *vocabulary.beside]
    edges = (
        (*pair, line.owner, lifecycle_page.trigger_text(line)) for line in lines for pair in line.pairs()
    )
    console.print(_fill(_table("from", "to", "owner", "trigger", title=f"{entity}: transitions"), edges))
    _show_beyond(entity, vocabulary.beyond)


def _show_beyond(entity: Entity, beyond: Iterable[ExtraEdge]) -> None:
    rows = [(*pair, line.reason) for line in beyond for pair in line.pairs()]
    if rows:
        out().print(_fill(_table("from", "to", "reason", title=f"{entity}: beyond the document"), rows))


def _show_proofs(proofs: list[ProfileProof]) -> None:
    table = _table("profile", "object", "edges realised", "beside", "beyond", "result")
    for proof in proofs:
        for e in proof.entities:
            whose = " (the kernel's table)" if e.kernel_table else ""
            own = " (own)" if proof.profile in profiles.custom_names() else ""
            table.add_row(
                proof.profile + own,
                e.entity,
                f"{e.edges_realised} of {e.edges_total}{whose}",
                str(e.beside or "-"),
                str(len(e.beyond) or "-"),
                Text("proven", style="green")
                if not e.problems
                else Text(count_noun(len(e.problems), "problem"), style="red"),
            )
    out().print(table)


def _show_sum(proofs: list[ProfileProof]) -> None:
    of_documents = [e for proof in proofs for e in proof.entities if not e.kernel_table]
    realised = sum(e.edges_realised for e in of_documents)
    total = sum(e.edges_total for e in of_documents)
    beyond = sum(len(e.beyond) for e in of_documents)
    out().print(
        f"{count_noun(len(proofs), 'profile')}: {realised} of {total} edges of the documents realised, {beyond} beyond them;"
        f" {len(refinement.joint_states())} joint states of step, attempt and lease walked"
    )


def _line(profile: Profile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "title": profile.title,
        "document": profile.document,
        "recovery": profile.recovery,
        "attempts_max": profile.timing.attempts_max,
        "lease_seconds": profile.timing.lease_seconds,
        "own": profile.name in profiles.custom_names(),
    }


def _proof_json(proof: ProfileProof) -> dict[str, Any]:
    return {**msgspec.to_builtins(proof), "problems": list(proof.problems)}
