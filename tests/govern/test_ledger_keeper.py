"""The ledger keeper, the signing keys, and the export of checkpoints."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tenure import ids
from tenure.clock import us
from tenure.engine import Engine
from tenure.errors import TenureError
from tenure.govern.ledger import keeper as keeper_module
from tenure.govern.ledger.audit import audit_ledger
from tenure.govern.ledger.checkpoint_export import NEWEST_NAME, CheckpointStorage, export_checkpoint
from tenure.govern.ledger.keeper import LedgerKeeper
from tenure.govern.ledger.signing_keys import SigningKeys
from tenure.govern.ledger.tenant_ledger import TenantLedger
from tenure.govern.signing import Signer, make_key
from tenure.proof import ledger_leaves, signed_notes
from tenure.proof.signatures import TrustedKeys
from tenure.store.identity import AdminChange, Identity
from tenure.store.port import Store
from tests.govern.ledger_databases import LedgerPlace, all_leaves, append, created

PLAN = [{"name": "compile", "tool": "make"}]


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return make_key(tmp_path / "seal.key")


def keeper_of(store: Store, signer: Signer | None, **more: Any) -> LedgerKeeper:
    return LedgerKeeper(store, signer=lambda: signer, **more)


async def kinds(store: Store, tenant: str) -> list[str]:
    return [leaf.kind for leaf in await all_leaves(store, tenant)]


# ------------------------------------------------------------------------------------------------ entering


async def test_new_runs_and_admin_entries_are_added_once_by_any_process(ledger_place: LedgerPlace) -> None:
    async with Engine(ledger_place.url, tenant="acme", sweep=False) as engine:
        first = [await engine.create("build", PLAN) for _ in range(3)]
        one, two = (keeper_of(engine.store, None) for _ in range(2))
        await asyncio.gather(one.once(), two.once(), one.append_new_runs())
        run = await engine.create("build", PLAN)
        await Identity(engine.store).put_all(
            [], AdminChange(tenant="acme", kind="client.added", actor="p_ada")
        )
        for _ in range(2):
            for keeper in (one, two, keeper_of(engine.store, None)):
                await keeper.once()
        kept = await all_leaves(engine.store, "acme")
        assert sorted((leaf.kind, leaf.run_id) for leaf in kept if leaf.run_id) == sorted(
            ("created", ids.run_int(each)) for each in (*first, run)
        )
        assert [leaf.part for leaf in kept if leaf.kind == "admin"] == [1]
        assert await TenantLedger(engine.store, "acme").newest() is None, (
            "a keeper without a key signed the ledger"
        )


async def test_many_new_runs_are_added_in_small_batches(
    ledger_place: LedgerPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "LEAVES_AT_ONCE", 3)
    monkeypatch.setattr(keeper_module, "RUNS_AT_ONCE", 7)
    async with Engine(ledger_place.url, tenant="acme", sweep=False) as engine:
        other = engine.scoped(tenant="beta")
        runs = [await engine.create("build", PLAN) for _ in range(8)]
        runs += [await other.create("build", PLAN) for _ in range(8)]
        keeper = keeper_of(engine.store, None)
        while await keeper.once() == 7:
            pass
        kept = [*await all_leaves(engine.store, "acme"), *await all_leaves(engine.store, "beta")]
        assert sorted(leaf.run_id or 0 for leaf in kept) == sorted(map(ids.run_int, runs))
        assert (
            (await audit_ledger(engine.store, "acme")).flaws
            == (await audit_ledger(engine.store, "beta")).flaws
            == []
        )


async def test_a_run_committed_after_a_newer_one_is_found(ledger_place: LedgerPlace) -> None:
    async with Engine(ledger_place.url, tenant="acme", sweep=False) as engine:
        slow = engine.orchestrator.new_id("acme")  # an id whose run is not committed yet
        engine.store.shift_clock(us(5.0))
        await engine.create("build", PLAN)
        keeper = keeper_of(engine.store, None)
        await keeper.once()
        run = await engine.create("build", PLAN)
        assert ids.run_int(run) > slow
        await ledger_place.execute_sql(
            f"update run set id = {slow} where id = {ids.run_int(run)}; update event set run_id = {slow}"
            f" where run_id = {ids.run_int(run)}"
        )
        await keeper.once()
        assert slow in {leaf.run_id for leaf in await all_leaves(engine.store, "acme")}


# ------------------------------------------------------------------------------------------------ signing


async def test_new_leaves_are_signed_periodically(ledger_place: LedgerPlace, signer: Signer) -> None:
    async with Engine(ledger_place.url, tenant="acme", sweep=False) as engine:
        keeper, book = keeper_of(engine.store, signer), TenantLedger(engine.store, "acme")
        await engine.create("build", PLAN)
        await keeper.once()
        first = await book.newest()
        assert first is not None
        assert (first.size, first.key_id) == (1, signer.id)
        assert (
            signed_notes.find_signer(
                signed_notes.parse_checkpoint(first.note), TrustedKeys.from_public_keys(signer.public)
            )
            == signer.id
        )
        await engine.create("build", PLAN)
        await keeper.once()
        assert await book.newest() == first, "the last signature is less than a minute old"
        engine.store.shift_clock(us(61.0))
        await keeper.once()
        second = await book.newest()
        assert second is not None
        assert second.size == 2
        engine.store.shift_clock(us(122.0))
        await keeper.once()
        assert await book.newest() == second, "there are no new leaves to sign"
        assert (
            await audit_ledger(engine.store, "", None, TrustedKeys.from_public_keys(signer.public))
        ).flaws == []
        assert (
            await audit_ledger(engine.store, "acme", signed_notes.parse_checkpoint(first.note))
        ).flaws == []


async def test_a_truncated_ledger_is_logged_once(
    ledger_place: LedgerPlace, signer: Signer, capsys: pytest.CaptureFixture[str]
) -> None:
    async with ledger_place.opened() as store:
        await append(store, "acme", created(4))
        keeper = keeper_of(store, signer)
        await keeper.once()
        await ledger_place.execute_sql("delete from ledger_leaf where tenant = 'acme' and pos > 1")
        store.shift_clock(us(61.0))
        for _ in range(3):
            await keeper.once()
        logged = capsys.readouterr()  # the stream depends on which test configured logging first
        assert (logged.out + logged.err).count("LEDGER_BROKEN") == 1


async def test_a_key_that_is_lost_twice_is_logged_twice(
    ledger_place: LedgerPlace, signer: Signer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, away = tmp_path / "seal.key", tmp_path / "away.key"
    async with ledger_place.opened() as store:
        keeper, book = keeper_of(store, signer, sign_seconds=0.0), TenantLedger(store, "acme")
        await append(store, "acme", created(2))
        await keeper.once()
        for times, size in enumerate((3, 4), 1):
            await append(store, "acme", created(size))
            key.rename(away)
            for _ in range(3):
                await keeper.once()
            newest = await book.newest()
            assert newest is not None
            assert newest.size < await book.size()
            logged = capsys.readouterr()
            assert (logged.out + logged.err).count("tenant=acme") == 1, times
            away.rename(key)
            await keeper.once()
            newest = await book.newest()
            assert newest is not None
            assert newest.size == await book.size()


async def test_an_engine_with_a_key_seals_and_signs_automatically(tmp_path: Path, signer: Signer) -> None:
    place = LedgerPlace("sqlite", tmp_path, "")
    async with Engine(place.url, tenant="acme", signing_key=f"file:{tmp_path / 'seal.key'}") as engine:
        run = await engine.create("build", PLAN)
        await engine.cancel(run)
        book = TenantLedger(engine.store, "acme")
        while len(await book.leaves_of(ids.run_int(run))) < 2:  # noqa: ASYNC110 - another task does this
            await asyncio.sleep(0.05)
        while (newest := await book.newest()) is None:  # noqa: ASYNC110 - another task does this
            await asyncio.sleep(0.05)
        assert newest.key_id == signer.id


async def test_the_first_key_is_recorded_and_an_unrecorded_key_signs_nothing(
    ledger_place: LedgerPlace, signer: Signer, tmp_path: Path
) -> None:
    stranger = make_key(tmp_path / "stranger.key")
    async with ledger_place.opened() as store:
        await append(store, "acme", created(1))
        await asyncio.gather(*(SigningKeys(store).ready(signer) for _ in range(3)))
        assert [key.id for key in await SigningKeys(store).all()] == [signer.id]
        assert await kinds(store, "") == ["key"]
        with pytest.raises(TenureError, match="no key has endorsed it") as refused:
            await keeper_of(store, stranger).sign_due()
        assert refused.value.code == "SIGNING_KEY_UNKNOWN"
        await keeper_of(store, stranger).once()  # logs the error and continues
        assert await TenantLedger(store, "acme").newest() is None


async def test_a_key_is_rotated_and_revoked_in_the_ledger_and_the_admin_chain(
    ledger_place: LedgerPlace, signer: Signer, tmp_path: Path
) -> None:
    newer = make_key(tmp_path / "newer.key")
    async with ledger_place.opened() as store:
        keys = SigningKeys(store)
        await append(store, "acme", created(2))
        await keeper_of(store, signer).sign_due()
        old = await TenantLedger(store, "acme").newest()
        await keys.rotate(signer, newer, "p_ada")
        await append(store, "acme", created(2, 2))
        await keeper_of(store, newer).sign_due(now=True)
        new = await TenantLedger(store, "acme").newest()
        assert old is not None
        assert new is not None
        # With the trust file, a verifier that knows only the first key accepts both checkpoints.
        pinned = TrustedKeys.parse((await keys.trust()).dump(), [signer.public])
        assert signed_notes.find_signer(signed_notes.parse_checkpoint(old.note), pinned) == signer.id
        assert signed_notes.find_signer(signed_notes.parse_checkpoint(new.note), pinned) == newer.id
        now = (await store.read("now"))[0].now_us
        await keys.revoke(signer.id[:10], now + us(5.0), "p_ada")
        assert (await keys.revoke(signer.id, now + us(9.0), "p_ada")).revoked_from == now + us(5.0)
        await keys.ready(signer)
        store.shift_clock(us(6.0))
        with pytest.raises(TenureError, match="is revoked"):
            await keys.ready(signer)
        with pytest.raises(TenureError, match="is revoked"):
            await keys.rotate(signer, make_key(tmp_path / "third.key"), "p_ada")
        assert (
            signed_notes.find_signer(signed_notes.parse_checkpoint(old.note), await keys.trust()) == signer.id
        )
        logged = [ledger_leaves.leaf_facts(leaf) for leaf in await all_leaves(store, "")]
        assert [(one["action"], one["key"]) for one in logged] == [
            ("added", signer.id),
            ("rotated", newer.id),
            ("revoked", signer.id),
        ]
        lines = await store.read("admin_events_after", "", 0, 10)
        assert [(line.kind, line.actor) for line in lines] == [
            ("signing_key.added", "system:ledger"),
            ("signing_key.rotated", "p_ada"),
            ("signing_key.revoked", "p_ada"),
        ]
        assert (await audit_ledger(store, "")).flaws == []


async def test_no_private_key_is_in_the_database(tmp_path: Path, signer: Signer) -> None:
    """I53."""
    place = LedgerPlace("sqlite", tmp_path, "")
    async with place.opened() as store:
        await append(store, "acme", created(1))
        await keeper_of(store, signer).sign_due()
        await SigningKeys(store).rotate(signer, make_key(tmp_path / "newer.key"), "p_ada")
    body = place.bytes()
    for name in ("seal.key", "newer.key"):
        pem = (tmp_path / name).read_text().splitlines()
        assert pem[1].encode() not in body


# ------------------------------------------------------------------------------------------------ taking out


async def test_exporting_a_checkpoint_is_recorded_in_the_admin_chain(
    ledger_place: LedgerPlace, signer: Signer, tmp_path: Path
) -> None:
    file = tmp_path / "safe" / "acme.checkpoint"
    async with ledger_place.opened() as store:
        with pytest.raises(TenureError, match="no checkpoint has been signed yet"):
            await export_checkpoint(store, "acme", str(file), "p_ada")
        await append(store, "acme", created(3))
        await keeper_of(store, signer).sign_due()
        made = await export_checkpoint(store, "acme", str(file), "p_ada")
        assert signed_notes.parse_checkpoint(file.read_bytes()).size == made.size == 3
        (line,) = await store.read("admin_events_after", "acme", 0, 10)
        assert (line.kind, line.actor) == ("ledger.exported", "p_ada")
        assert made.root.hex().encode() in line.body
        await keeper_of(store, signer).once()
        assert (await kinds(store, "acme"))[-1] == "admin"
        later = await export_checkpoint(store, "acme", str(file), "p_ada")
        assert later.size == 3, "the last signature is less than a minute old"
        await keeper_of(store, signer).sign_due(now=True)
        assert (await export_checkpoint(store, "acme", str(file), "p_ada")).size == 4


async def test_an_older_checkpoint_never_replaces_a_newer_one(signer: Signer, tmp_path: Path) -> None:
    place, file = LedgerPlace("sqlite", tmp_path, ""), tmp_path / "acme.checkpoint"
    async with place.opened() as store:
        await append(store, "acme", created(3))
        await keeper_of(store, signer).sign_due(now=True)
    place.back_up()
    async with place.opened() as store:
        await append(store, "acme", created(3, 3))
        await keeper_of(store, signer, place=str(tmp_path / "kept")).once()
        await keeper_of(store, signer).sign_due(now=True)
        await export_checkpoint(store, "acme", str(file), "p_ada")
        copier = LedgerKeeper(store, signer=lambda: signer, place=str(tmp_path / "kept"))
        await copier.copy_pending_checkpoints()
    newest = file.read_bytes()
    (copied,) = (tmp_path / "kept").glob(f"tenure/*/acme/{NEWEST_NAME}")
    assert copied.read_bytes() == newest
    assert {each.name for each in copied.parent.iterdir()} >= {"000000000006.checkpoint", NEWEST_NAME}
    place.put_back()
    async with place.opened() as store:
        with pytest.raises(TenureError, match="an older backup was restored") as refused:
            await export_checkpoint(store, "acme", str(file), "p_ada")
        assert refused.value.code == "LEDGER_BROKEN"
        await keeper_of(store, signer, place=str(tmp_path / "kept")).once()
        # The restored ledger grows to its earlier size.
        await append(store, "acme", created(6, 10))
        await keeper_of(store, signer).sign_due(now=True)
        with pytest.raises(TenureError, match="differ from those of a signed checkpoint"):
            await export_checkpoint(store, "acme", str(file), "p_ada")
    assert file.read_bytes() == copied.read_bytes() == newest


async def test_a_file_that_is_not_a_checkpoint_is_not_overwritten(
    ledger_place: LedgerPlace, signer: Signer, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    async with ledger_place.opened() as store:
        await append(store, "acme", created(1))
        await keeper_of(store, signer).sign_due()
        with pytest.raises(TenureError) as refused:
            await export_checkpoint(store, "acme", str(tmp_path / "notes.txt"), "p_ada")
        assert refused.value.code == "LEDGER_CHECKPOINT_INVALID"
    assert (tmp_path / "notes.txt").read_text() == "mine"


async def test_failed_copies_are_retried_later(signer: Signer, tmp_path: Path) -> None:
    place = LedgerPlace("sqlite", tmp_path, "")
    (tmp_path / "kept").write_text("in the way")
    async with place.opened() as store:
        await append(store, "acme", created(1))
        keeper = keeper_of(store, signer, place=str(tmp_path / "kept"))
        await keeper.once()
        (tmp_path / "kept").unlink()
        await keeper.once()
    assert len(list((tmp_path / "kept").glob(f"tenure/*/acme/{NEWEST_NAME}"))) == 1


async def test_an_unreachable_export_target_does_not_reveal_its_address() -> None:
    copier = CheckpointStorage("nonsense://user:hunter2@bucket/prefix")
    with pytest.raises(TenureError, match="cannot be read") as refused:
        await copier.read("x")
    assert "hunter2" not in str(refused.value)
