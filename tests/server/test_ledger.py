"""A tenant's ledger over HTTP: checkpoints, proofs and signing keys."""

import base64
from pathlib import Path

import pytest

from tenure import ids
from tenure.artifacts import ArtifactStore
from tenure.govern.evidence.sealer import RunSealer
from tenure.govern.ledger.keeper import LedgerKeeper
from tenure.govern.signing import Signer, make_key
from tenure.proof import merkle, signed_notes
from tenure.proof.signatures import TrustedKeys
from tests.server.stage import ACME, Site, problem, site


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return make_key(tmp_path / "seal.key")


async def a_sealed_run(s: Site, folder: Path, tenant: str = ACME) -> str:
    engine = s.engine.scoped(tenant=tenant)
    run = await engine.create("build", [{"name": "compile", "tool": "make"}])
    await engine.cancel(run)
    await RunSealer(engine.store, ArtifactStore(str(folder / "artifacts")), None).seal(
        engine.orchestrator, ids.run_int(run)
    )
    return run


async def test_checkpoints_and_proofs_show_that_a_ledger_only_grew(
    url: str, tmp_path: Path, signer: Signer
) -> None:
    async with site(url) as s:
        keeper, viewer = LedgerKeeper(s.engine.store, signer=lambda: signer), await s.as_("viewer")
        assert (await viewer.get("/ledger/checkpoints")).json() == {"items": [], "next_cursor": None}
        for _ in range(3):
            await a_sealed_run(s, tmp_path)
            await keeper.sign_due(now=True)
        listed = (await viewer.get("/ledger/checkpoints", params={"limit": 2})).json()
        rest = (await viewer.get("/ledger/checkpoints", params={"cursor": listed["next_cursor"]})).json()
        items = [*listed["items"], *rest["items"]]
        assert rest["next_cursor"] is None
        trust = TrustedKeys.parse((await viewer.get("/ledger/trust")).content, [signer.public])
        newest, *older = [signed_notes.parse_checkpoint(item["note"]) for item in items]
        for checkpoint in (newest, *older):
            assert signed_notes.find_signer(checkpoint, trust) == signer.id
        for checkpoint in older:
            asked = {"from": checkpoint.size, "to": newest.size}
            answer = (await viewer.get("/ledger/consistency", params=asked)).json()
            assert (answer["from"], answer["to"]) == (checkpoint.size, newest.size)
            proof = [base64.b64decode(one) for one in answer["hashes"]]
            assert merkle.is_consistent(checkpoint.size, checkpoint.root, newest.size, newest.root, proof)
        for index in range(older[0].size):
            for kept, asked in (
                (newest, {"index": index}),
                (older[0], {"index": index, "size": older[0].size}),
            ):
                proven = signed_notes.parse_proof((await viewer.get("/ledger/proof", params=asked)).content)
                assert proven.body is not None
                assert signed_notes.find_inclusion_problem(proven.body, proven, kept) is None


async def test_another_tenants_ledger_looks_missing(url: str, tmp_path: Path, signer: Signer) -> None:
    async with site(url) as s:
        await a_sealed_run(s, tmp_path)
        await LedgerKeeper(s.engine.store, signer=lambda: signer).sign_due(now=True)
        other, stranger = await s.as_("admin", tenant="globex"), await s.caller()
        assert (await other.get("/ledger/checkpoints")).json()["items"] == []
        assert problem(await other.get("/ledger/proof", params={"index": 0})) == "NOT_FOUND"
        assert problem(await other.get("/ledger/consistency", params={"from": 0, "to": 1})) == "INVALID_INPUT"
        for path in ("checkpoints", "proof?index=0", "consistency?from=0&to=1", "trust"):
            assert problem(await stranger.get(f"/ledger/{path}")) == "UNAUTHENTICATED"


async def test_requests_beyond_the_ledger_are_refused(url: str, tmp_path: Path, signer: Signer) -> None:
    async with site(url) as s:
        viewer = await s.as_("viewer")
        await a_sealed_run(s, tmp_path)
        assert problem(await viewer.get("/ledger/proof", params={"index": 0})) == "NOT_READY"
        await LedgerKeeper(s.engine.store, signer=lambda: signer).sign_due(now=True)
        for asked in ({"index": 99}, {"index": 0, "size": 99}):
            assert problem(await viewer.get("/ledger/proof", params=asked)) == "NOT_FOUND"
        for wrong in ({"index": -1}, {"index": "x"}, {}, {"index": 2**70}):
            assert problem(await viewer.get("/ledger/proof", params=wrong)) in (
                "INVALID_INPUT",
                "REQUEST_MALFORMED",
            )
        assert (
            problem(await viewer.get("/ledger/consistency", params={"from": 2, "to": 1})) == "INVALID_INPUT"
        )
        assert problem(await viewer.get("/ledger/checkpoints", params={"cursor": "x"})) == "CURSOR_INVALID"
