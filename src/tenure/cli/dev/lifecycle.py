"""`tenure lifecycle`: show, draw and prove profiles.

Law: everything that is printed is read from the tables that the kernel runs on.
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
from tenure.cli.common.console import count_noun, print_json, say, warn
from tenure.cli.common.options import AsJson
from tenure.cli.dev import lifecycle_page
from tenure.cli.dev.mermaid import profile_diagram
from tenure.kernel import profiles, refinement
from tenure.kernel.profile import ENTITIES, DocumentEdge, Entity, IndirectEdge, Profile, parse_profile
from tenure.kernel.refinement import ProfileProof

DOCUMENT = Path("docs/lifecycle.md")

app = typer.Typer(
    name="lifecycle",
    help="Lifecycles (profiles), and the proof that each is a view of the one kernel.",
    no_args_is_help=True,
)


@app.command("list")
def list_profiles(as_json: AsJson = False) -> None:
    """List the profiles: the document that each follows, its recovery, and where it comes from."""
    custom_profiles.load_custom_profiles()
    if as_json:
        print_json([_line(profiles.get(name)) for name in profiles.names()])
        return
    rows = []
    for name in profiles.names():
        p = profiles.get(name)
        figures = (str(p.timing.attempts_max), f"{p.timing.lease_seconds:g} s")
        rows.append((name, p.title, p.document, p.recovery, *figures, _origin(name)))
    say(_table(("profile", "title", "document", "recovery", "tries", "lease", "from"), rows))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A profile's name, see `tenure lifecycle list`.")],
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid state diagram.")] = False,
    entity: Annotated[Entity | None, typer.Option(help="Only run, step, attempt or lease.")] = None,
    as_toml: Annotated[
        bool, typer.Option("--toml", help="Print the profile's file, as a start for your own profile.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a profile: its words, tables, owners, timing, failure rules and the extra edges."""
    own = custom_profiles.load_custom_profiles()
    profile = profiles.get(name)
    if as_toml:
        print(own[name].text if name in own else profiles.built_in_text(name), end="")
    elif mermaid:
        print(profile_diagram(profile, entity))
    elif as_json:
        print_json(
            {"profile": msgspec.to_builtins(profile), "proof": _proof_json(refinement.prove_profile(profile))}
        )
    else:
        _show(profile, entity)


@app.command()
def prove(as_json: AsJson = False) -> None:
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
        warn(problem, "red")
    if problems:
        raise typer.Exit(1)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="Your own profile, as TOML.", exists=True, dir_okay=False)],
    as_json: AsJson = False,
) -> None:
    """Check your own profile file: first its form, then the same proof as `prove`."""
    proof = refinement.prove_profile(parse_profile(custom_profiles.read_profile_text(file)))
    if as_json:
        print_json(_proof_json(proof))
    else:
        _show_proofs([proof])
    custom_profiles.check_proof(file, proof)
    if not as_json:
        _show_sum([proof])


@app.command()
def docs(
    check_only: Annotated[
        bool, typer.Option("--check", help="Only check whether the page is up to date.")
    ] = False,
) -> None:
    """Generate docs/lifecycle.md from the tables (run it in the project's folder)."""
    if not DOCUMENT.parent.is_dir():
        raise typer.BadParameter(
            f"there is no folder {DOCUMENT.parent}/ here; run this in the project's folder"
        )
    text = lifecycle_page.render_page()
    if not check_only:
        DOCUMENT.write_text(text, encoding="utf-8")
        say(f"wrote {DOCUMENT}")
    elif not DOCUMENT.is_file() or DOCUMENT.read_text(encoding="utf-8") != text:
        warn(f"{DOCUMENT} is not up to date; run `tenure lifecycle docs`", "")
        raise typer.Exit(1)
    else:
        say(f"{DOCUMENT} is up to date")


# --------------------------------------------------------------------------------------------- printing


def _origin(name: str) -> str:
    own = custom_profiles.load_custom_profiles().get(name)
    return "tenure" if own is None else str(own.file)


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]], title: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _show(profile: Profile, only: Entity | None) -> None:
    say(f"{profile.title} ({profile.name})", "bold")
    say(f"follows: {profile.document}")
    if profile.name in profiles.custom_names():
        say(f"your own profile: {_origin(profile.name)}")
    for line in lifecycle_page.profile_traits(profile):
        say(line)
    say(_table(("timing", "default"), lifecycle_page.timing_rows(profile)))
    say(_table(("failure code", "then", "note"), lifecycle_page.rule_rows(profile)))
    for entity in [only] if only else ENTITIES:
        say("")
        vocabulary = profile.vocabulary(entity)
        if vocabulary.kernel:
            # The kernel's own table is no choice of this profile, so it is shown only on request.
            hint = "" if only else f" (see --entity {entity})."
            say(f"{entity}: the kernel's own words and table{hint}", "bold")
            say(vocabulary.kernel)
            if not only:
                continue
        else:
            words = lifecycle_page.word_rows(profile, entity)
            say(_table(("kernel", "word"), words, f"{entity}: words ({vocabulary.source})"))
        lines: list[DocumentEdge | IndirectEdge] = [*vocabulary.edges, *vocabulary.indirect]
        edges = (
            (*pair, line.owner, lifecycle_page.trigger_text(line)) for line in lines for pair in line.pairs()
        )
        say(_table(("from", "to", "owner", "trigger"), edges, f"{entity}: transitions"))
        extra = [(*pair, line.reason) for line in vocabulary.extra for pair in line.pairs()]
        if extra:
            say(_table(("from", "to", "reason"), extra, f"{entity}: extra edges, not in the document"))


def _show_proofs(proofs: list[ProfileProof]) -> None:
    table = _table(("profile", "object", "edges realised", "indirect", "extra", "result"), ())
    for proof in proofs:
        own = " (own)" if proof.profile in profiles.custom_names() else ""
        for e in proof.entities:
            whose = " (the kernel's table)" if e.kernel_table else ""
            table.add_row(
                proof.profile + own,
                e.entity,
                f"{e.edges_realised} of {e.edges_total}{whose}",
                str(e.indirect or "-"),
                str(len(e.extra) or "-"),
                Text(count_noun(len(e.problems), "problem"), "red")
                if e.problems
                else Text("proven", "green"),
            )
    say(table)


def _show_sum(proofs: list[ProfileProof]) -> None:
    of_documents = [e for proof in proofs for e in proof.entities if not e.kernel_table]
    realised = sum(e.edges_realised for e in of_documents)
    total = sum(e.edges_total for e in of_documents)
    extra = sum(len(e.extra) for e in of_documents)
    say(
        f"{count_noun(len(proofs), 'profile')}: {realised} of {total} edges of the documents realised, {extra} extra edges;"
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
