"""`tenure verify`: check evidence with nothing but its files.

Law: it asks no database and no server. It ends with 0: everything that was asked is proven; 1: something is wrong, and the
first thing is named; 3: nothing is wrong, but who sealed it was not checked. (2: a wrong use of the command line.)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.common.console import out, print_json, safe_text
from tenure.cli.common.options import AsJson
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.govern.evidence.verification import EvidenceFiles, EvidenceReport
    from tenure.proof.signatures import TrustedKeys

_EPILOG = """
Examples:

tenure verify RUN.evidence.zip -- whether it is whole; ends with 3, as nobody said whose key to believe

tenure verify RUN.evidence.zip --key seal.pub -- and who sealed it

tenure verify RUN.evidence.zip RUN.evidence.1.zip --trust keys.json --checkpoint kept.checkpoint -- and that the ledger has it

Beside a zip lie NAME.dsse.json (its statement) and NAME.tlog-proof, as `tenure evidence export` writes them. docs/evidence.md
lists what may be wrong, and how to check a bundle without Tenure.
"""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(epilog=_EPILOG)(verify)


def verify(
    bundles: Annotated[
        list[Path], typer.Argument(metavar="BUNDLE...", help="The zip; supplements after it, in order.")
    ],
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="FILE", help="The public key to believe: PEM, or base64.", show_default=False
        ),
    ] = None,
    trust: Annotated[
        Path | None,
        typer.Option(
            "--trust",
            metavar="FILE",
            help="The keys to believe, and until when; with --key, as far as that key vouches for them.",
            show_default=False,
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="FILE",
            help="A checkpoint of the ledger, kept elsewhere.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check evidence offline: that nothing in it was changed, who sealed it, and that the ledger has it.

    Ends with 0 where all that was asked is proven, 1 where something is wrong, 3 where nothing is wrong but no key was given.
    """
    from tenure.govern.evidence.verification import exit_code
    from tenure.govern.evidence.verification import verify_parts as check

    believed = _trust(key, trust)
    note = None if checkpoint is None else _read(checkpoint, LARGEST_NOTE)
    reports = check([_given(file) for file in bundles], believed, note)
    code = exit_code(reports, believed)
    if as_json:
        print_json({"verified": code == 0, "exit_code": code, "bundles": reports})
    else:
        for report in reports:
            _show(report)
    raise typer.Exit(code)


LARGEST_NOTE = 1024 * 1024


def _show(report: EvidenceReport) -> None:
    console = out()
    wrong = report.wrong
    if report.run is not None:
        part = f" supplement {report.part}" if report.part else ""
        ended = f", {report.outcome}" if report.outcome else ""
        console.print(safe_text(f"{report.run}{part} of tenant {report.tenant}{ended}"), soft_wrap=True)
    else:
        console.print(safe_text(report.bundle), soft_wrap=True)
    for line in report.checked:
        console.print(safe_text(f"  ok           {line}", "green"), soft_wrap=True)
    for line in report.not_checked:
        console.print(safe_text(f"  not checked  {line}", "yellow"), soft_wrap=True)
    if wrong is not None:
        text = f"  WRONG        {wrong.code} at {wrong.place}: {wrong.message}"
        console.print(safe_text(text, "bold red"), soft_wrap=True)


def _trust(key: str | None, file: Path | None) -> TrustedKeys | None:
    from tenure.proof.signatures import TrustedKeys, read_public

    if key is None and file is None:
        return None
    roots = None if key is None else [read_public(key)]
    if file is not None:
        return TrustedKeys.load(file, roots)
    assert roots is not None
    return TrustedKeys.from_public_keys(*roots)


def _given(file: Path) -> EvidenceFiles:
    from tenure.govern.evidence.archive import ZIP_BYTES_MAX
    from tenure.govern.evidence.statement import ENVELOPE_BYTES_MAX, ENVELOPE_SUFFIX
    from tenure.govern.evidence.verification import EvidenceFiles
    from tenure.proof.signed_notes import PROOF_SUFFIX

    envelope, proof = (file.with_name(file.name + suffix) for suffix in (ENVELOPE_SUFFIX, PROOF_SUFFIX))
    return EvidenceFiles(
        name=str(file),
        zip=_read(file, ZIP_BYTES_MAX),
        envelope=_read(envelope, ENVELOPE_BYTES_MAX) if envelope.exists() else None,
        proof=_read(proof, LARGEST_NOTE) if proof.exists() else None,
    )


def _read(file: Path, most: int) -> bytes:
    """At most one byte more than is taken: what is larger is refused by whoever reads it."""
    try:
        with file.open("rb") as opened:
            return opened.read(most + 1)
    except OSError as fault:
        raise TenureError("INVALID_INPUT", f"{file} cannot be read: {fault.strerror}") from fault
