"""Evidence over HTTP: lists, exports, and the separation of tenants."""

from __future__ import annotations

import base64
from hashlib import sha256
from pathlib import Path

import pytest

from tenure.artifacts import ArtifactStore
from tenure.client import Client
from tenure.govern.evidence.sealer import RunSealer
from tenure.govern.evidence.verification import NO_PAYLOADS, EvidenceFiles, verify_parts
from tenure.govern.ledger.keeper import LedgerKeeper
from tenure.govern.ledger.signing_keys import SigningKeys
from tenure.govern.signing import Signer, make_key
from tenure.proof.signatures import TrustedKeys
from tests.govern.evidence_samples import short
from tests.server.stage import Site, problem, site


async def sealed_run(s: Site, folder: Path, *, signed: bool = True) -> tuple[str, Signer]:
    """A sealed run of acme, in a ledger with a signed checkpoint."""
    s.engine.runtime.artifacts = ArtifactStore(str(folder / "artifacts"))
    s.engine.runtime.sealing = RunSealer(s.engine.store, s.engine.artifacts, make_key(folder / "seal.key"))
    signer = s.engine.runtime.sealing.signer
    assert signer is not None
    await SigningKeys(s.engine.store).ready(signer)
    engine = s.engine.scoped(tenant="acme")
    async with engine.worker(short):
        run = await engine.start(short, "words")
        await run.result(wait=20)
    await engine.evidence.seal(run.id)
    if signed:
        await LedgerKeeper(s.engine.store, signer=lambda: signer, sign_seconds=0.0).once()
    return run.id, signer


@pytest.mark.clause("GOV-21")
async def test_evidence_is_listed_exported_and_verified(url: str, tmp_path: Path) -> None:
    async with site(url) as s:
        run, signer = await sealed_run(s, tmp_path)
        viewer = await s.as_("viewer")
        (part,) = (await viewer.get(f"/runs/{run}/evidence")).json()["items"]
        assert (part["run_id"], part["part"], part["key_id"]) == (run, 0, signer.id)
        assert (await viewer.get("/evidence")).json()["items"] == [part]
        at = f"/runs/{run}/evidence/0"
        bundle, statement, proof = [
            await viewer.get(f"{at}/{what}") for what in ("bundle", "statement", "proof")
        ]
        assert bundle.headers["content-type"] == "application/zip"
        assert part["name"] in bundle.headers["content-disposition"]
        assert sha256(bundle.content).hexdigest() == part["sha256"]
        checkpoint = proof.text.partition("\n\n")[2].encode()
        given = EvidenceFiles(
            name=part["name"], zip=bundle.content, envelope=statement.content, proof=proof.content
        )
        (report,) = verify_parts([given], TrustedKeys.from_public_keys(signer.public), checkpoint)
        assert (report.wrong, report.not_checked) == (None, [NO_PAYLOADS])
        asked = base64.urlsafe_b64encode(checkpoint).decode()
        assert (await viewer.get(f"{at}/proof", params={"checkpoint": asked})).content == proof.content
        lines = (await (await s.as_("admin")).get("/audit")).json()["items"]
        assert [line["kind"] for line in lines].count("evidence.exported") == 1, "the export is audited once"


async def test_another_tenants_evidence_looks_missing(url: str, tmp_path: Path) -> None:
    """I50."""
    async with site(url) as s:
        run, _ = await sealed_run(s, tmp_path, signed=False)
        stranger, nobody = await s.as_("viewer", tenant="beta"), "run_2026-01-01_000000_aaaaaa"
        for path in ("evidence", "evidence/0/bundle", "evidence/0/statement", "evidence/0/proof"):
            theirs = await stranger.get(f"/runs/{run}/{path}")
            none = await stranger.get(f"/runs/{nobody}/{path}")
            assert problem(theirs) == problem(none) == "RUN_NOT_FOUND"
        assert (await stranger.get("/evidence")).json()["items"] == []


async def test_missing_evidence_is_reported(url: str, tmp_path: Path) -> None:
    async with site(url) as s:
        run, _ = await sealed_run(s, tmp_path, signed=False)
        viewer = await s.as_("viewer")
        assert problem(await viewer.get(f"/runs/{run}/evidence/7/bundle")) == "EVIDENCE_NOT_FOUND"
        assert (await viewer.get(f"/runs/{run}/evidence/{10**30}/bundle")).status_code == 404
        assert problem(await viewer.get(f"/runs/{run}/evidence/0/proof")) == "NOT_READY"
        for wrong in ("!", base64.urlsafe_b64encode(b"no checkpoint").decode()):
            answer = await viewer.get(f"/runs/{run}/evidence/0/proof", params={"checkpoint": wrong})
            assert answer.status_code == 422


async def test_a_client_exports_evidence(url: str, tmp_path: Path) -> None:
    async with site(url) as s:
        run, _ = await sealed_run(s, tmp_path)
        async with Client(s.address, await s.key("viewer")) as client:
            (part,) = await client.evidence.list(run)
            assert [one.run_id for one in await client.evidence.newest()] == [run]
            (exported,) = await client.evidence.export(run)
        assert exported.proof is not None
        assert sha256(exported.zip).hexdigest() == part.sha256
