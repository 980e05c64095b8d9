"""Checkpoints in a bucket: exported by hand, copied by themselves, and never replaced by older ones."""

from pathlib import Path
from uuid import uuid4

import pytest

from tenure.devtools.s3 import PrivateS3
from tenure.errors import TenureError
from tenure.govern.ledger import notes
from tenure.govern.ledger.exporting import NEWEST_NAME, Shelf, export
from tenure.govern.ledger.keeper import Keeper
from tenure.govern.signing import make_key
from tests.govern.ledgers import LedgerPlace, append, created


async def test_checkpoints_are_taken_to_a_bucket_and_stay_there(
    s3_server: PrivateS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    bucket = s3_server.place(uuid4().hex)
    signer = make_key(tmp_path / "seal.key")
    place = LedgerPlace("sqlite", tmp_path, "")
    async with place.opened() as store:
        await append(store, "acme", created(2))
        await Keeper(store, signer=lambda: signer).sign_due(now=True)
    place.back_up()
    async with place.opened() as store:
        await append(store, "acme", created(2, 2))
        keeper = Keeper(store, signer=lambda: signer, place=f"{bucket}/kept")
        await keeper.sign_due(now=True)
        await keeper.copy_owed()
        made = await export(store, "acme", f"{bucket}/acme.checkpoint", "p_ada")
    kept = await Shelf(bucket).read("acme.checkpoint")
    assert kept is not None
    origin = notes.parse(kept).origin
    for name in (NEWEST_NAME, "000000000004.checkpoint"):
        assert await Shelf(f"{bucket}/kept").read(f"{origin}/{name}") == kept == made.note.encode()
    place.put_back()
    async with place.opened() as store:
        with pytest.raises(TenureError, match="an older backup was put back"):
            await export(store, "acme", f"{bucket}/acme.checkpoint", "p_ada")
        await Keeper(store, signer=lambda: signer, place=f"{bucket}/kept").once()
    assert await Shelf(f"{bucket}/kept").read(f"{origin}/{NEWEST_NAME}") == kept
    with pytest.raises(TenureError, match="is named like s3://"):
        async with place.opened() as store:
            await export(store, "acme", "s3://bucket", "p_ada")
