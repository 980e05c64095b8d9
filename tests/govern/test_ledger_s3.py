"""Checkpoints in a bucket: exported by command, copied automatically, and never replaced by older ones."""

from pathlib import Path
from uuid import uuid4

import pytest

from tenure.errors import TenureError
from tenure.govern.ledger.checkpoint_export import NEWEST_NAME, CheckpointStorage, export_checkpoint
from tenure.govern.ledger.keeper import LedgerKeeper
from tenure.govern.signing import make_key
from tenure.proof import signed_notes
from tests.govern.ledger_databases import LedgerPlace, append, created
from tools.s3_server import PrivateS3


async def test_checkpoints_are_exported_to_a_bucket(
    s3_server: PrivateS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    bucket = s3_server.place(uuid4().hex)
    signer = make_key(tmp_path / "seal.key")
    place = LedgerPlace("sqlite", tmp_path, "")
    async with place.opened() as store:
        await append(store, "acme", created(2))
        await LedgerKeeper(store, signer=lambda: signer).sign_due(now=True)
    place.back_up()
    async with place.opened() as store:
        await append(store, "acme", created(2, 2))
        keeper = LedgerKeeper(store, signer=lambda: signer, place=f"{bucket}/kept")
        await keeper.sign_due(now=True)
        await keeper.copy_pending_checkpoints()
        made = await export_checkpoint(store, "acme", f"{bucket}/acme.checkpoint", "p_ada")
    kept = await CheckpointStorage(bucket).read("acme.checkpoint")
    assert kept is not None
    origin = signed_notes.parse_checkpoint(kept).origin
    for name in (NEWEST_NAME, "000000000004.checkpoint"):
        assert (
            await CheckpointStorage(f"{bucket}/kept").read(f"{origin}/{name}") == kept == made.note.encode()
        )
    place.put_back()
    async with place.opened() as store:
        with pytest.raises(TenureError, match="an older backup was restored"):
            await export_checkpoint(store, "acme", f"{bucket}/acme.checkpoint", "p_ada")
        await LedgerKeeper(store, signer=lambda: signer, place=f"{bucket}/kept").once()
    assert await CheckpointStorage(f"{bucket}/kept").read(f"{origin}/{NEWEST_NAME}") == kept
    with pytest.raises(TenureError, match="must have a URL such as s3://"):
        async with place.opened() as store:
            await export_checkpoint(store, "acme", "s3://bucket", "p_ada")
