"""Every kind of tampering with a ledger is detected and named (I51, rule 30)."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tenure import ids
from tenure.artifacts import ArtifactStore
from tenure.doctor.examination import examine_database
from tenure.engine import Engine
from tenure.errors import TenureError
from tenure.govern.evidence.sealer import RunSealer
from tenure.govern.ledger.audit import NOT_IN_LEDGER, LedgerAudit, audit_ledger
from tenure.govern.ledger.keeper import LedgerKeeper
from tenure.govern.ledger.signing_keys import SigningKeys
from tenure.govern.ledger.tenant_ledger import TenantLedger
from tenure.govern.signing import Signer, make_key
from tenure.kernel.commands import Context, CreateRun, MarkReported
from tenure.proof import ledger_leaves, merkle, signed_notes
from tenure.proof.signatures import TrustedKeys
from tenure.proof.signed_notes import LedgerCheckpoint
from tenure.services.plans import make_plan
from tenure.store.identity import AdminChange, Identity
from tests.govern.ledger_databases import LedgerPlace, all_leaves, append

TENANT = "acme"
RUNS = 5


class Scene:
    """A tenant with sealed runs and a signed ledger, and a checkpoint outside the database."""

    def __init__(self, engine: Engine, place: LedgerPlace, signer: Signer) -> None:
        self.engine = engine
        self.place = place
        self.signer = signer
        self.keeper = LedgerKeeper(engine.store, signer=lambda: signer)
        self.sealing = RunSealer(engine.store, ArtifactStore(str(place.folder / "artifacts")), None)

    async def run(self, *, seal: bool = True) -> int:
        """Create a run, cancel it and seal it."""
        run = await self.engine.create("build", [{"name": "compile", "tool": "make"}], input={"n": 1})
        await self.engine.cancel(run)
        if seal:
            await self.sealing.seal(self.engine.orchestrator, ids.run_int(run))
        return ids.run_int(run)

    async def change(self, kind: str = "person.added") -> None:
        """Add an entry to the admin chain of the tenant."""
        await Identity(self.engine.store).put_all([], AdminChange(tenant=TENANT, kind=kind, actor="p_ada"))

    async def kept(self) -> LedgerCheckpoint:
        """Sign the ledger and return the checkpoint."""
        await self.keeper.append_new_runs()
        await self.keeper.seal_admin_chains()
        await self.keeper.sign_due(now=True)
        newest = await TenantLedger(self.engine.store, TENANT).newest()
        assert newest is not None
        return signed_notes.parse_checkpoint(newest.note)

    async def check(
        self, checkpoint: LedgerCheckpoint | None = None, trust: TrustedKeys | None = None
    ) -> LedgerAudit:
        believed = trust or TrustedKeys.from_public_keys(self.signer.public)
        return await audit_ledger(self.engine.store, TENANT, checkpoint, believed)


@asynccontextmanager
async def scene(place: LedgerPlace, runs: int = RUNS) -> AsyncIterator[Scene]:
    key = place.folder / "seal.key"
    signer = Signer.open(f"file:{key}") if key.exists() else make_key(key)
    async with Engine(place.url, tenant=TENANT, sweep=False) as engine:
        made = Scene(engine, place, signer)
        for _ in range(runs):
            await made.run()
        if runs:
            await made.change()
        yield made


def codes(found: LedgerAudit) -> set[str]:
    return {flaw.code for flaw in found.flaws}


async def test_an_untouched_ledger_passes_the_audit(ledger_place: LedgerPlace) -> None:
    async with scene(ledger_place) as acme:
        open_run = await acme.engine.create("build", [{"name": "compile", "tool": "make"}])
        checkpoint = await acme.kept()
        found = await acme.check(checkpoint)
        assert found.flaws == []
        assert found.unchecked == [NOT_IN_LEDGER], "rows without a history cannot be compared"
        assert found.erased == 0
        assert found.payloads
        assert any("payloads" in line for line in found.checked)
        # Two leaves (created, sealed) for each ended run, one for the open run, one for the admin chain.
        assert (found.size, found.runs, found.deleted) == (2 * RUNS + 2, RUNS + 1, 0)
        kinds = [leaf.kind for leaf in await all_leaves(acme.engine.store, TENANT)]
        assert sorted(kinds) == sorted([*["created", "sealed"] * RUNS, "created", "admin"])
        await acme.engine.cancel(open_run)
        await acme.run()
        await acme.change("person.closed")
        later = await acme.kept()
        assert later.size > checkpoint.size
        for kept in (checkpoint, later):
            assert (await acme.check(kept)).flaws == []
        proof = await TenantLedger(acme.engine.store, TENANT).consistency(checkpoint.size, later.size)
        assert merkle.is_consistent(checkpoint.size, checkpoint.root, later.size, later.root, proof)


async def test_a_seal_covers_events_up_to_the_last_one_sealed(
    ledger_place: LedgerPlace,
) -> None:
    """Rule 30: a seal has the length and head of the chain when the run ended. A later seal covers later events."""
    async with scene(ledger_place, runs=1) as acme:
        store = acme.engine.store
        (run,) = await acme.engine.runs.list()
        number = ids.run_int(run.id)
        ended = [event for event in await store.read("events_of", number) if event.kind != "sealed"]
        reported = MarkReported(
            run_id=number, tenant=TENANT, context=Context("system:reporter", "system", "published")
        )
        await acme.engine.orchestrator.send(reported)
        await acme.sealing.seal(acme.engine.orchestrator, number)
        first, second = (
            leaf for leaf in await all_leaves(store, TENANT) if leaf.kind in ("sealed", "supplement")
        )
        assert (first.kind, second.kind, second.part) == ("sealed", "supplement", 1)
        earlier, later = ledger_leaves.leaf_facts(first), ledger_leaves.leaf_facts(second)
        assert (earlier["events"], earlier["head"]) == (ended[-1].seq, ended[-1].hash.hex())
        events = await store.read("events_of", number)
        assert later["head"] == events[later["events"] - 1].hash.hex()
        assert earlier["events"] < later["events"]
        assert "reported" in {event.kind for event in events[earlier["events"] : later["events"]]}
        checkpoint = await acme.kept()
        assert (await acme.check(checkpoint)).flaws == []


async def test_retention_deletes_only_sealed_runs_and_keeps_their_leaves(ledger_place: LedgerPlace) -> None:
    async with scene(ledger_place) as acme:
        checkpoint = await acme.kept()
        gone = await acme.engine.runs.delete_finished(datetime(2100, 1, 1, tzinfo=UTC))
        assert gone == RUNS
        found = await acme.check(checkpoint)
        assert found.flaws == []
        assert found.deleted == RUNS


async def test_replaced_payloads_are_found_and_erased_ones_counted(
    ledger_place: LedgerPlace,
) -> None:
    """The root and all histories are consistent. Only the salted digests in the histories reveal the change."""
    async with scene(ledger_place) as acme:
        checkpoint = await acme.kept()
        before = await acme.check(checkpoint)
        assert before.payloads is not None
        assert before.payloads >= RUNS
        body = {"sqlite": "x'7b7d'", "postgres": "'{}'::bytea"}[ledger_place.kind]
        await ledger_place.execute_sql(f"update payload set body = {body}")
        replaced = await acme.check(checkpoint)
        assert codes(replaced) == {"PAYLOAD_CHANGED"}
        assert {flaw.place for flaw in replaced.flaws} == {run.id for run in await acme.engine.runs.list()}
        assert replaced.checked == [], "an audit with flaws lists no passed checks"
        await ledger_place.execute_sql("delete from payload")
        erased = await acme.check(checkpoint)
        assert erased.flaws == []
        assert erased.erased == before.payloads
        assert any(f"{erased.erased} erased payloads" in line for line in erased.unchecked)
        report = await examine_database(acme.engine.store)
        assert report.erased == erased.erased
        assert any("erased" in line for line in report.unchecked)
        assert any("--checkpoint" in line for line in report.unchecked)


async def test_payloads_in_artifacts_are_compared_if_they_are_reachable(
    ledger_place: LedgerPlace,
) -> None:
    async with scene(ledger_place, runs=0) as acme:
        artifacts = ArtifactStore(str(ledger_place.folder / "artifacts"))
        reference = await artifacts.put(b"x" * 100_000, "run_1")
        plan = make_plan([{"name": "compile", "tool": "make"}])
        number = acme.engine.orchestrator.new_id("acme")
        await acme.engine.orchestrator.create(
            CreateRun(
                run_id=number,
                tenant=TENANT,
                workflow="build",
                code_version="1",
                profile="agent-runs",
                plan=plan,
                input=reference,
                context=acme.engine.scope.context(None),
            )
        )
        run = ids.run_text(number)
        await acme.engine.cancel(run)
        await acme.sealing.seal(acme.engine.orchestrator, ids.run_int(run))
        checkpoint = await acme.kept()

        async def look(there: ArtifactStore | None) -> LedgerAudit:
            return await audit_ledger(
                acme.engine.store, TENANT, checkpoint, TrustedKeys.from_public_keys(acme.signer.public), there
            )

        assert (await look(artifacts)).unchecked == [NOT_IN_LEDGER]
        assert any("1 payloads among the artifacts" in line for line in (await look(None)).unchecked)
        (large,) = [
            file
            for file in (ledger_place.folder / "artifacts").rglob("*")
            if file.is_file() and file.stat().st_size == 100_000
        ]
        large.write_bytes(large.read_bytes().replace(b"xx", b"yy", 1))
        assert codes(await look(artifacts)) == {"PAYLOAD_CHANGED"}


async def test_rows_that_differ_from_their_history_are_found(ledger_place: LedgerPlace) -> None:
    async with scene(ledger_place) as acme:
        checkpoint = await acme.kept()
        await ledger_place.execute_sql("update step set tool = 'other'")
        assert codes(await acme.check(checkpoint)) == {"ROWS_CHANGED"}


SEAL_REWRITTEN = {
    "sqlite": "cast(replace(cast(body as text), 'canceled', 'succeeded') as blob)",
    "postgres": "convert_to(replace(convert_from(body, 'UTF8'), 'canceled', 'succeeded'), 'UTF8')",
}
NO_HASH = {"sqlite": "x'00'", "postgres": "'00'"}

EDITS: dict[str, tuple[list[str], set[str]]] = {
    "a leaf's body is edited": (
        ["update ledger_leaf set body = {body} where tenant = 'acme' and pos < 4 and kind = 'sealed'"],
        {"NODE_CHANGED", "RUN_CHANGED", "REWRITTEN"},
    ),
    "a leaf's columns are edited": (
        ["update ledger_leaf set run_id = run_id + 1000 where tenant = 'acme' and pos = 3"],
        {"LEAF_CHANGED"},
    ),
    "a leaf is deleted": (
        ["delete from ledger_leaf where tenant = 'acme' and pos = 3"],
        {"LEAF_MISSING", "TRUNCATED"},
    ),
    "a leaf is put in": (
        [
            "update ledger_leaf set pos = pos + 1000 where tenant = 'acme' and pos >= 3",
            "insert into ledger_leaf select tenant, 3, 'key', null, 0, body, at from ledger_leaf where tenant = 'acme' and pos = 2",
            "update ledger_leaf set pos = pos - 999 where tenant = 'acme' and pos >= 1000",
        ],
        {"NODE_CHANGED", "LEAF_CHANGED", "REWRITTEN"},
    ),
    "leaves are reordered": (
        [
            "update ledger_leaf set pos = -1 where tenant = 'acme' and pos = 2",
            "update ledger_leaf set pos = 2 where tenant = 'acme' and pos = 5",
            "update ledger_leaf set pos = 5 where tenant = 'acme' and pos = -1",
        ],
        {"NODE_CHANGED", "REWRITTEN"},
    ),
    "the end is cut off": (["delete from ledger_leaf where tenant = 'acme' and pos > 6"], {"TRUNCATED"}),
    "the end is cut off, with all that is over it": (
        [
            "delete from ledger_leaf where tenant = 'acme' and pos > 3",
            "delete from ledger_node where tenant = 'acme' and (level > 2 or pos > 0 and level = 2 or pos > 1)",
            "delete from ledger_checkpoint where tenant = 'acme'",
        ],
        {"RESTORED"},
    ),
    "all leaves are deleted": (
        ["delete from ledger_leaf where tenant = 'acme'", "delete from ledger_node where tenant = 'acme'"],
        {"TRUNCATED"},
    ),
    "a subtree is edited": (
        ["update ledger_node set hash = {none} where tenant = 'acme' and level = 2 and pos = 0"],
        {"NODE_CHANGED"},
    ),
    "a run's event is edited": (["update event set actor = 'p_mallory' where seq = 2"], {"RUN_CHANGED"}),
    "a run's history is cut off": (
        [
            "delete from event where seq > 1",
            "update run set version = 1, head = (select hash from event where run_id = run.id)",
        ],
        {"RUN_TRUNCATED"},
    ),
    "a run's outcome is edited": (["update run set status = 'succeeded'"], {"RUN_CHANGED"}),
    "a line of the admin chain is edited": (
        ["update admin_event set actor = 'p_mallory' where tenant = 'acme'"],
        {"ADMIN_CHANGED"},
    ),
    "the admin chain is cut off": (
        ["delete from admin_event where tenant = 'acme'"],
        {"ADMIN_TRUNCATED"},
    ),
    "a checkpoint is edited": (
        ["update ledger_checkpoint set note = replace(note, 'time 1', 'time 2') where tenant = 'acme'"],
        {"SIGNATURE_WRONG"},
    ),
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[LedgerPlace, LedgerCheckpoint]:
    """A database file with a ledger, and its checkpoint."""

    async def make() -> LedgerCheckpoint:
        async with scene(made) as acme:
            checkpoint = await acme.kept()
            assert (await acme.check(checkpoint)).flaws == []
            return checkpoint

    made = LedgerPlace("sqlite", tmp_path_factory.mktemp("honest"), "")
    return made, asyncio.run(make())


@pytest.mark.parametrize("way", EDITS)
async def test_changes_made_by_hand_are_found_and_named(
    honest: tuple[LedgerPlace, LedgerCheckpoint], tmp_path: Path, way: str
) -> None:
    before, checkpoint = honest
    for name in ("tenure.db", "seal.key"):
        shutil.copy(before.folder / name, tmp_path / name)
    await assert_found(LedgerPlace("sqlite", tmp_path, ""), checkpoint, way)


@pytest.mark.parametrize(
    "way", ["a leaf's body is edited", "the end is cut off", "a run's history is cut off"]
)
async def test_both_databases_find_the_same_tampering(ledger_place: LedgerPlace, way: str) -> None:
    async with scene(ledger_place) as acme:
        checkpoint = await acme.kept()
    await assert_found(ledger_place, checkpoint, way)


async def assert_found(place: LedgerPlace, checkpoint: LedgerCheckpoint, way: str) -> None:
    statements, expected = EDITS[way]
    for statement in statements:
        await place.execute_sql(statement.format(body=SEAL_REWRITTEN[place.kind], none=NO_HASH[place.kind]))
    async with scene(place, runs=0) as acme:
        found = await acme.check(checkpoint)
        assert expected <= codes(found), found.flaws


async def test_a_run_deleted_before_its_seal_is_named(ledger_place: LedgerPlace) -> None:
    async with scene(ledger_place) as acme:
        dropped = await acme.run(seal=False)
        checkpoint = await acme.kept()
    for table in ("event", "step", "payload", "run_spec"):
        await ledger_place.execute_sql(f"delete from {table} where run_id = {dropped}")
    await ledger_place.execute_sql(f"delete from run where id = {dropped}")
    async with scene(ledger_place, runs=0) as acme:
        (flaw,) = (await acme.check(checkpoint)).flaws
        assert (flaw.code, flaw.place) == ("RUN_DROPPED", ids.run_text(dropped))


async def test_a_run_deleted_with_its_leaves_contradicts_the_checkpoint(
    ledger_place: LedgerPlace,
) -> None:
    """An attacker rebuilds the whole ledger without one run. Everything is consistent except with the signed checkpoint."""
    async with scene(ledger_place) as acme:
        dropped = await acme.run()
        await acme.run()
        checkpoint = await acme.kept()
        left = [leaf for leaf in await all_leaves(acme.engine.store, TENANT) if leaf.run_id != dropped]
        for table in ("ledger_leaf", "ledger_node", "ledger_checkpoint"):
            await ledger_place.execute_sql(f"delete from {table} where tenant = '{TENANT}'")
        entries = [
            ledger_leaves.LedgerEntry(kind=x.kind, run_id=x.run_id, part=x.part, body=x.body) for x in left
        ]
        await append(acme.engine.store, TENANT, entries)
        assert (await acme.check()).flaws == [], "without a checkpoint the ledger looks complete"
        assert codes(await acme.check(checkpoint)) == {"RESTORED"}
        # The ledger grows to its earlier size.
        for _ in range(2):
            await acme.run()
        await acme.keeper.sign_due(now=True)
        assert codes(await acme.check(checkpoint)) == {"REWRITTEN"}


async def test_a_restored_old_backup_is_named(tmp_path: Path) -> None:
    place = LedgerPlace("sqlite", tmp_path, "")
    async with scene(place):
        pass
    async with scene(place, runs=0) as acme:
        await acme.kept()
    place.back_up()
    async with scene(place) as acme:
        checkpoint = await acme.kept()
        assert (await acme.check(checkpoint)).flaws == []
    place.put_back()
    async with scene(place, runs=0) as acme:
        assert (await acme.check()).flaws == [], "without a checkpoint the ledger looks complete"
        found = await acme.check(checkpoint)
        assert codes(found) == {"RESTORED"}
        assert "an older backup was restored" in found.flaws[0].text
    async with scene(place, runs=RUNS + 1) as acme:  # the ledger grows past its earlier size
        await acme.kept()
        assert codes(await acme.check(checkpoint)) == {"REWRITTEN"}


async def test_a_ledger_signed_again_with_another_key_is_not_trusted(ledger_place: LedgerPlace) -> None:
    mallory = make_key(ledger_place.folder / "mallory.key")
    async with scene(ledger_place) as acme:
        await acme.kept()
        await ledger_place.execute_sql("delete from ledger_checkpoint")
        await ledger_place.execute_sql("delete from signing_key")
        keeper = LedgerKeeper(acme.engine.store, signer=lambda: mallory)
        assert await keeper.sign_due(now=True) >= 1
        newest = await TenantLedger(acme.engine.store, TENANT).newest()
        assert newest is not None
        forged = signed_notes.parse_checkpoint(newest.note)
        found = await acme.check(forged)
        assert codes(found) == {"SIGNATURE_WRONG"}
        assert all("no trusted key has signed it" in flaw.text for flaw in found.flaws)
        installation = await audit_ledger(
            acme.engine.store, "", None, TrustedKeys.from_public_keys(acme.signer.public)
        )
        assert "KEYS_CHANGED" in codes(installation)


async def test_signatures_after_a_revocation_are_not_trusted(ledger_place: LedgerPlace) -> None:
    async with scene(ledger_place) as acme:
        checkpoint = await acme.kept()
        keys = SigningKeys(acme.engine.store)
        assert checkpoint.at is not None
        await keys.revoke(acme.signer.id, checkpoint.at, "p_ada")
        found = await acme.check(checkpoint, await keys.trust())
        assert codes(found) == {"SIGNATURE_WRONG"}
        assert "is revoked from" in found.flaws[-1].text
        await acme.run()
        with pytest.raises(TenureError, match="is revoked and can no longer sign"):
            await acme.kept()
        assert (await audit_ledger(acme.engine.store, "")).flaws[0].code == "SIGNATURE_WRONG"


async def test_a_checkpoint_of_another_ledger_is_named(ledger_place: LedgerPlace) -> None:
    async with scene(ledger_place) as acme:
        await acme.kept()
        installation = await TenantLedger(acme.engine.store, "").newest()
        assert installation is not None
        found = await acme.check(signed_notes.parse_checkpoint(installation.note))
        assert codes(found) == {"OTHER_LEDGER"}


async def test_the_doctor_checks_ledgers(ledger_place: LedgerPlace) -> None:
    """I51: the data match their seals."""
    async with scene(ledger_place) as acme:
        await acme.kept()
        assert (await examine_database(acme.engine.store)).clean
        await ledger_place.execute_sql("delete from ledger_leaf where tenant = 'acme' and pos > 6")
        report = await examine_database(acme.engine.store)
        assert set(report.found) == {"I51"}
        assert {violation.row for violation in report.violations} == {"tenant acme"}
        await ledger_place.execute_sql(
            "delete from ledger_leaf where tenant = 'acme'; delete from ledger_node where tenant = 'acme'"
        )
        assert set((await examine_database(acme.engine.store)).found) == {"I51"}


async def test_a_changed_ledger_is_not_signed(ledger_place: LedgerPlace) -> None:
    async with scene(ledger_place) as acme:
        await acme.kept()
        await ledger_place.execute_sql(
            f"update ledger_node set hash = {NO_HASH[ledger_place.kind]} where tenant = 'acme' and level = 3"
        )
        await acme.run()
        assert await acme.keeper.sign_due(now=True) == 0
        with pytest.raises(TenureError, match="differ from those of a signed checkpoint") as reported:
            await TenantLedger(acme.engine.store, TENANT).sign(acme.signer)
        assert reported.value.code == "LEDGER_BROKEN"
