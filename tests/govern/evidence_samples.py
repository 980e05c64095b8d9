"""Runs with evidence, and tampered evidence."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import tenure
from tenure import ids
from tenure.govern.evidence.archive import pack_zip, unpack_zip
from tenure.govern.evidence.bundle import EVENTS, file_name
from tenure.govern.evidence.sealer import RunSealer
from tenure.govern.evidence.statement import build_envelope
from tenure.govern.evidence.verification import EvidenceFiles, EvidenceReport, verify_parts
from tenure.govern.signing import Signer, make_key
from tenure.kernel.commands import UpdateMetadata
from tenure.kernel.governance_rows import EvidenceRow
from tenure.proof.signatures import TrustedKeys
from tenure.sdk.definitions import StepFunction, Workflow
from tenure.testing import Lab, LabRun

PLANTED = "Planted-Text-7731"
"""A text in all user data of a run. The evidence must not contain it."""


@StepFunction
async def fetch(page: int, words: str) -> str:
    tenure.report_cost("openai", "large", tokens_in=10, tokens_out=5, money="0.25", currency="USD")
    return f"{words} {page}"


@Workflow
async def story(words: str) -> str:
    for page in range(3):
        await fetch(page, words)
    await tenure.now()
    await tenure.approve("publish", show={"text": words})
    return words


@Workflow
async def short(words: str) -> str:
    return await fetch(1, words)


app = (story, short)


async def ended(lab: Lab, words: str = PLANTED) -> LabRun[str]:
    """Start a run of `story` and wait for its end."""
    run = await lab.start(story, words)
    await run.reaches("waiting_approval")
    await lab.engine.approve(run.id, approver="ada", reason=words)
    await run.result()
    return run


async def labeled(lab: Lab, run: LabRun[Any], words: str = PLANTED) -> None:
    """Add a label to a run, which is a later event."""
    labels = json.dumps({"about": words})
    await lab.engine.orchestrator.send(UpdateMetadata(run_id=ids.run_int(run.id), labels=labels))


def sealing(lab: Lab, signer: Signer | None = None) -> RunSealer:
    """Return the sealer of a lab."""
    return RunSealer(lab.engine.store, lab.engine.artifacts, signer)


async def sealed(lab: Lab, run: LabRun[Any], signer: Signer | None = None) -> list[EvidenceRow]:
    """Seal a run. Return the new parts."""
    return await sealing(lab, signer).seal(lab.engine.orchestrator, ids.run_int(run.id))


async def given(lab: Lab, row: EvidenceRow) -> EvidenceFiles:
    """Return the files of an exported part."""
    body = await lab.engine.artifacts.kept(row.reference.decode())
    return EvidenceFiles(name=file_name(ids.run_text(row.run_id), row.no), zip=body, envelope=row.envelope)


class Sealed:
    """A bundle of a run, its supplement, and the key that sealed both."""

    def __init__(self, folder: Path) -> None:
        self.signer = make_key(folder / "seal.key")
        self.other = make_key(folder / "other.key")
        self.trust = TrustedKeys.from_public_keys(self.signer.public)
        self.bundle, self.supplement, self.foreign = asyncio.run(self._make())
        self.files = unpack_zip(self.bundle.zip)

    async def _make(self) -> tuple[EvidenceFiles, EvidenceFiles, EvidenceFiles]:
        async with Lab(*app) as lab:
            run, other = await ended(lab), await ended(lab)
            (first,) = await sealed(lab, run, self.signer)
            (foreign,) = await sealed(lab, other, self.signer)
            await labeled(lab, run)
            (later,) = await sealed(lab, run, self.signer)
            return await given(lab, first), await given(lab, later), await given(lab, foreign)

    def check(
        self, body: bytes | None = None, envelope: bytes | None = None, trust: TrustedKeys | None = None
    ) -> EvidenceReport:
        """Verify the bundle with another zip, envelope or trust."""
        part = EvidenceFiles(
            name=self.bundle.name,
            zip=self.bundle.zip if body is None else body,
            envelope=self.bundle.envelope if envelope is None else envelope,
        )
        (report,) = verify_parts([part], trust or self.trust)
        return report

    def with_files(self, change: Callable[[dict[str, bytes]], None]) -> bytes:
        """Return the zip with changed files."""
        files = dict(self.files)
        change(files)
        return pack_zip(files)

    def with_events(self, change: Callable[[list[dict[str, Any]]], None]) -> bytes:
        """Return the zip with changed events and a manifest that matches them."""

        def edit(files: dict[str, bytes]) -> None:
            lines = [json.loads(line) for line in files[EVENTS].splitlines()]
            change(lines)
            files[EVENTS] = b"".join(
                json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines
            )
            relist(files)

        return self.with_files(edit)

    def envelope_with(self, change: Callable[[dict[str, Any]], None]) -> bytes:
        """Return the envelope with a change."""
        assert self.bundle.envelope is not None
        envelope = json.loads(self.bundle.envelope)
        change(envelope)
        return json.dumps(envelope, separators=(",", ":")).encode() + b"\n"

    def signed_by(self, signer: Signer, statement: bytes | None = None) -> bytes:
        """Return an envelope with the statement, signed by another signer."""
        assert self.bundle.envelope is not None
        payload = base64.b64decode(json.loads(self.bundle.envelope)["payload"])
        return asyncio.run(build_envelope(payload if statement is None else statement, signer))


def relist(files: dict[str, bytes]) -> None:
    """Update the file list in the manifest."""
    manifest = json.loads(files["manifest.json"])
    manifest["files"] = {
        name: {"sha256": sha256(body).hexdigest(), "size": len(body)}
        for name, body in sorted(files.items())
        if name != "manifest.json"
    }
    files["manifest.json"] = json.dumps(manifest, indent=1).encode()
