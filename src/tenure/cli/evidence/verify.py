"""`tenure verify`: verify evidence with nothing but its files.

Law: it needs no database and no server. Its exit code is 0 if everything that was asked is proven; 1 if something is wrong, and the
first problem is named; 3 if nothing is wrong but the signature was not checked; and 2 for wrong usage.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.common.arguments import read_bytes
from tenure.cli.common.console import print_json, say
from tenure.cli.common.options import AsJson

if TYPE_CHECKING:
    from tenure.govern.evidence.verification import EvidenceFiles, EvidenceReport

NOTE_BYTES_MAX = 1024 * 1024
_EPILOG = """
Examples:

tenure verify RUN.evidence.zip -- is it complete and unchanged? Ends with 3, because no trusted key is given

tenure verify RUN.evidence.zip --key seal.pub -- and was it signed with this key?

tenure verify RUN.evidence.zip RUN.evidence.1.zip --trust keys.json --checkpoint kept.checkpoint -- and is it in the ledger?

Next to a zip, `tenure evidence export` writes NAME.dsse.json (its signed statement) and NAME.tlog-proof. docs/evidence.md lists
the possible problems, and explains how to verify a bundle without Tenure.
"""


app = typer.Typer()


@app.command(epilog=_EPILOG)
def verify(
    bundles: Annotated[
        list[Path], typer.Argument(metavar="BUNDLE...", help="The zip file, then its supplements in order.")
    ],
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="FILE", help="The public key to trust: PEM or base64.", show_default=False
        ),
    ] = None,
    trust: Annotated[
        Path | None,
        typer.Option(
            "--trust",
            metavar="FILE",
            help="A trust file with the keys to trust; with --key, only keys that this key endorses.",
            show_default=False,
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="FILE",
            help="A checkpoint of the ledger that was kept elsewhere.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify evidence offline: that nothing in it was changed, who signed it, and that it is in the ledger.

    Ends with 0 if all that was asked is proven, 1 if something is wrong, and 3 if nothing is wrong but no key was given.
    """
    from tenure.govern.evidence.verification import exit_code, verify_parts
    from tenure.proof.signatures import TrustedKeys

    trusted = TrustedKeys.given(key, trust)
    note = None if checkpoint is None else read_bytes(checkpoint, NOTE_BYTES_MAX)
    reports = verify_parts([_read_part(file) for file in bundles], trusted, note)
    code = exit_code(reports, trusted)
    if as_json:
        print_json({"verified": code == 0, "exit_code": code, "bundles": reports})
    else:
        for report in reports:
            _show(report)
    raise typer.Exit(code)


def _show(report: EvidenceReport) -> None:
    part = f" supplement {report.part}" if report.part else ""
    ended = f", {report.outcome}" if report.outcome else ""
    say(f"{report.run}{part} of tenant {report.tenant}{ended}" if report.run is not None else report.bundle)
    wrong = report.wrong
    problems = [] if wrong is None else [f"{wrong.code} at {wrong.place}: {wrong.message}"]
    show_checks(report.checked, report.not_checked, problems)


def show_checks(checked: Iterable[str], unchecked: Iterable[str], wrong: Iterable[str]) -> None:
    """Print what was checked, what could not be, and what is wrong."""
    for lines, mark, style in (
        (checked, "ok", "green"),
        (unchecked, "not checked", "yellow"),
        (wrong, "WRONG", "bold red"),
    ):
        for line in lines:
            say(f"  {mark:<11}  {line}", style)


def _read_part(file: Path) -> EvidenceFiles:
    from tenure.govern.evidence.archive import ZIP_BYTES_MAX
    from tenure.govern.evidence.statement import ENVELOPE_BYTES_MAX, ENVELOPE_SUFFIX
    from tenure.govern.evidence.verification import EvidenceFiles
    from tenure.proof.signed_notes import PROOF_SUFFIX

    envelope, proof = (file.with_name(file.name + suffix) for suffix in (ENVELOPE_SUFFIX, PROOF_SUFFIX))
    return EvidenceFiles(
        name=str(file),
        zip=read_bytes(file, ZIP_BYTES_MAX),
        envelope=read_bytes(envelope, ENVELOPE_BYTES_MAX) if envelope.exists() else None,
        proof=read_bytes(proof, NOTE_BYTES_MAX) if proof.exists() else None,
    )
