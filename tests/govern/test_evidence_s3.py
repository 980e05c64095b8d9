"""Evidence in a bucket is stored, read back and verified."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import obstore
import pytest
from obstore.store import from_url

from tenure import ids
from tenure.artifacts import ArtifactStore
from tenure.errors import TenureError
from tenure.govern.evidence.verification import EvidenceFiles, verify_parts
from tenure.govern.signing import make_key
from tenure.proof.signatures import TrustedKeys
from tenure.testing import Lab
from tests.govern.evidence_samples import app, ended, sealing
from tools.s3_server import PrivateS3


@pytest.fixture
def place(s3_server: PrivateS3, monkeypatch: pytest.MonkeyPatch) -> str:
    """The artifact location of this test."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return s3_server.place(f"runs/{uuid4().hex}")


async def test_a_bundle_is_sealed_in_a_bucket_and_verified_from_there(place: str, tmp_path: Path) -> None:
    signer = make_key(tmp_path / "seal.key")
    async with Lab(*app) as lab:
        lab.engine.runtime.artifacts = ArtifactStore(place)
        run = await ended(lab)
        (row,) = await sealing(lab, signer).seal(lab.engine.orchestrator, ids.run_int(run.id))
        reader = ArtifactStore(place)
        path = row.reference.decode()
        beside = EvidenceFiles(
            name=path, zip=await reader.kept(path), envelope=await reader.kept(f"{path}.dsse.json")
        )
        assert beside.envelope == row.envelope
        (report,) = verify_parts([beside], TrustedKeys.from_public_keys(signer.public))
        assert report.wrong is None
        await lab.engine.runs.delete(run.id)
        assert await reader.kept(path) == beside.zip, "retention deleted the evidence"


async def test_objects_in_the_bucket_are_not_replaced_and_losses_are_reported(place: str) -> None:
    kept = ArtifactStore(place)
    assert await kept.keep("run/0.zip", b"first")
    assert not await kept.keep("run/0.zip", b"second")
    assert await kept.kept("run/0.zip") == b"first"
    await obstore.delete_async(from_url(place), "evidence/run/0.zip")
    with pytest.raises(TenureError, match="ARTIFACT_LOST"):
        await kept.kept("run/0.zip")
