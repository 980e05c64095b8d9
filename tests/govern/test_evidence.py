"""Evidence is built from the events of a run, sealed once, and kept after the run is deleted."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import pytest

from tenure import ids
from tenure.doctor import check_run
from tenure.doctor.examination import examine_database, load_run_dump
from tenure.engine import Engine
from tenure.errors import TenureError
from tenure.govern.evidence import sealer as sealer_module
from tenure.govern.evidence.archive import unpack_zip
from tenure.govern.evidence.bundle import build_bundle
from tenure.govern.evidence.sealer import SealerTask
from tenure.govern.evidence.verification import verify_parts
from tenure.govern.ledger.signing_keys import SigningKeys
from tenure.govern.signing import make_key
from tenure.kernel.commands import SealedBundle, SealRun
from tenure.kernel.governance_rows import EvidenceRow
from tenure.services.evidence import seal_run as seal_now
from tenure.testing import Lab
from tests.govern.evidence_samples import PLANTED, app, ended, given, labeled, sealed, sealing, short, story


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    """The database of a lab: its own SQLite file (None) or the URL of PostgreSQL."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("migrated_dsn"))


async def test_an_ended_run_is_sealed_once_and_its_bundle_is_recorded(url: str | None) -> None:
    """I52: a run has one bundle with the recorded SHA-256. The doctor checks it when the lab ends."""
    async with Lab(*app, url=url) as lab:
        run = await ended(lab)
        (row,) = await sealed(lab, run)
        assert await sealed(lab, run) == []
        part = await given(lab, row)
        events = await run.history()
        assert (row.no, row.size, row.sha256) == (0, len(part.zip), sha256(part.zip).digest())
        assert events[row.events - 1].kind == "complete"
        assert row.head.hex() == events[row.events - 1].hash
        assert [event.kind for event in events[row.events :]] == ["sealed"]
        assert (await lab.engine.get(run.id)).sealed
        (report,) = verify_parts([part])
        assert report.wrong is None
        assert report.outcome == "succeeded"


async def test_equal_events_give_equal_bytes(url: str | None) -> None:
    async with Lab(*app, url=url) as lab:
        run = await ended(lab)
        number = ids.run_int(run.id)
        events = await lab.engine.store.read("events_of", number)
        first = build_bundle(number, "default", events)
        await labeled(lab, run)
        (row,) = [part for part in await sealed(lab, run) if part.no == 0]
        later = await lab.engine.store.read("events_of", number)
        assert len(later) > len(events)
        assert build_bundle(number, "default", later).zip == first.zip
        assert (await given(lab, row)).zip == first.zip


async def test_a_bundle_describes_the_run(url: str | None) -> None:
    async with Lab(*app, url=url) as lab:
        run = await ended(lab)
        number = ids.run_int(run.id)
        built = build_bundle(number, "default", await lab.engine.store.read("events_of", number))
    documents: dict[str, Any] = {
        name: json.loads(body) for name, body in built.files.items() if name.endswith(".json")
    }
    assert documents["run.json"]["id"] == run.id
    assert (documents["run.json"]["workflow"], documents["run.json"]["status"]) == ("story", "succeeded")
    assert set(documents["run.json"]["input"]) == {"ref", "digest"}
    (approval,) = documents["approvals.json"]
    assert (approval["status"], approval["decided_by"], approval["revision"]) == ("approved", "ada", 1)
    assert [one["name"] for one in documents["checkpoints.json"]] == ["fetch", "fetch#2", "fetch#3", "now"]
    (cost,) = documents["costs.json"]
    assert (cost["provider"], cost["model"], cost["currency"]) == ("openai", "large", "USD")
    assert (cost["calls"], cost["tokens_in"], cost["micros"]) == (3, 30, 750_000)
    assert documents["run.json"]["spent"] == 750_000
    assert [one["state"] for one in documents["attempts.json"]] == ["suspended", "succeeded"]
    assert [one["outcome"] for one in documents["waits.json"]] == ["approved"]
    assert documents["ungoverned.json"] == [
        {
            "idx": 0,
            "step": "main",
            "kind": "body",
            "tool": "",
            "attempts": 2,
            "inside": [{"name": "fetch", "tries": 3}],
        }
    ]


async def test_a_bundle_contains_no_user_data(url: str | None) -> None:
    """Inputs, outputs, arguments, results, questions, reasons and labels are digests or are left out."""
    async with Lab(*app, url=url) as lab:
        run = await ended(lab)
        await labeled(lab, run)
        for row in await sealed(lab, run):
            part = await given(lab, row)
            whole = part.zip + base64.b64decode(json.loads(part.envelope or b"{}")["payload"])
            for text in (PLANTED, base64.b64encode(PLANTED.encode()).decode()[:-4], PLANTED.encode().hex()):
                assert text.lower().encode() not in whole.lower()


async def test_later_events_are_in_a_numbered_supplement(url: str | None) -> None:
    """I51, rule 30: the bundle covers events up to the terminal one, and later parts cover later events."""
    async with Lab(*app, url=url) as lab:
        run = await ended(lab)
        rows = await sealed(lab, run)
        for n in (1, 2):
            await labeled(lab, run, f"{PLANTED}-{n}")
            assert not (await lab.engine.get(run.id)).sealed, "the later event is not sealed yet"
            rows += await sealed(lab, run)
        assert [row.no for row in rows] == [0, 1, 2]
        parts = [await given(lab, row) for row in rows]
        reports = verify_parts(parts)
        assert [report.wrong for report in reports] == [None, None, None]
        assert [kind["kind"] for kind in _events(parts[1].zip)] == ["sealed", "metadata"]
        (alone,) = verify_parts(parts[2:])
        assert alone.wrong is None
        assert any("part 1" in line for line in alone.not_checked)
        gap = verify_parts([parts[0], parts[2]])[-1].wrong
        assert gap is not None
        assert gap.code == "PART_GAP"


def _events(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in unpack_zip(body)["events.jsonl"].splitlines()]


async def test_outdated_evidence_does_not_seal_a_run(url: str | None) -> None:
    async with Lab(*app, url=url) as lab:
        run = await ended(lab)
        number = ids.run_int(run.id)
        old = await lab.engine.scope.reader.row(number)
        await labeled(lab, run)
        part = SealedBundle(0, old.version, old.head.hex(), "00")
        with pytest.raises(TenureError, match="RUN_MOVED_ON"):
            await lab.engine.orchestrator.send(SealRun(run_id=number, parts=(part,)))
        assert not (await lab.engine.get(run.id)).sealed
        assert [row.no for row in await sealed(lab, run)] == [0, 1]


async def test_one_of_many_concurrent_sealers_seals(url: str | None) -> None:
    """I52."""
    async with Lab(*app, url=url) as lab:
        run = await ended(lab)
        made = await asyncio.gather(*(sealed(lab, run) for _ in range(5)))
        assert sorted(len(rows) for rows in made) == [0, 0, 0, 0, 1]
        rows: list[EvidenceRow] = await lab.engine.store.read("evidence_of", ids.run_int(run.id))
        assert len(rows) == 1
        leaves = await lab.engine.store.read("leaves_of_run", "default", ids.run_int(run.id))
        assert [leaf.kind for leaf in leaves] == ["created", "sealed"]


async def test_evidence_outlives_its_run(url: str | None) -> None:
    async with Lab(*app, url=url) as lab:
        run = await ended(lab)
        lab.engine.runtime.seals = True
        await lab.jump("1d")
        assert await lab.engine.runs.delete_finished(datetime(2026, 1, 6, 9, tzinfo=UTC)) == 1
        with pytest.raises(TenureError, match="RUN_NOT_FOUND"):
            await lab.engine.get(run.id)
        (part,) = await lab.engine.evidence.list(run.id)
        (exported,) = await lab.engine.evidence.export(run.id)
        assert sha256(exported.zip).hexdigest() == part.sha256


async def test_the_sealer_seals_ended_runs(url: str | None) -> None:
    async with Lab(*app, url=url) as lab:
        runs = [await lab.start(short, PLANTED) for _ in range(3)]
        waiting = await lab.start(story, PLANTED)
        for run in runs:
            await run.result()
        await waiting.reaches("waiting_approval")
        sealer = SealerTask(lab.engine.orchestrator, sealing(lab))
        assert await sealer.once() == 0, "the runs have only just ended"
        await lab.jump("2s")
        assert await sealer.once() == 3
        for run in runs:
            assert [one.part for one in await lab.engine.evidence.list(run.id)] == [0]
        assert await lab.engine.evidence.list(waiting.id) == []
        await labeled(lab, runs[0])
        await lab.jump("2s")
        assert await sealer.once() == 0, "a supplement waits one minute for more events"
        await lab.jump("1m")
        assert await sealer.once() == 1
        assert [one.part for one in await lab.engine.evidence.list(runs[0].id)] == [0, 1]


async def test_an_engine_with_evidence_seals_automatically(tmp_path: Path) -> None:
    place = f"sqlite:{tmp_path / 'runs.db'}"
    async with Engine(place, evidence=True) as engine, engine.worker(short):
        run = await engine.start(short, PLANTED)
        await run.result()
        while not (parts := await engine.evidence.list(run.id)):  # noqa: ASYNC110 - the sealer runs in the background
            await asyncio.sleep(0.05)
    assert [(part.part, part.key_id) for part in parts] == [(0, None)]
    async with Engine(place) as engine, engine.worker(short):
        run = await engine.start(short, PLANTED)
        await run.result()
        assert not engine.runtime.seals


async def test_a_tampered_history_is_not_sealed(url: str | None) -> None:
    """I51: a run whose hashes do not match gets no evidence and is not deleted."""
    async with Lab(*app, url=url, check=False) as lab:
        run = await ended(lab)
        number = ids.run_int(run.id)
        events = await lab.engine.store.read("events_of", number)
        forged = [*events]
        forged[2].actor = "mallory"
        with pytest.raises(TenureError, match="EVIDENCE_BROKEN") as refused:
            build_bundle(number, "default", forged)
        assert "event 3" in refused.value.message


async def test_a_run_that_cannot_be_sealed_blocks_no_other(tmp_path: Path) -> None:
    """I51: a tampered run is left as it is, and the next run is sealed."""
    place = tmp_path / "runs.db"
    async with Lab(*app, url=f"sqlite:{place}", check=False) as lab:
        broken, whole = [await lab.start(short, PLANTED) for _ in range(2)]
        for run in (broken, whole):
            await run.result()
        await lab.jump("2s")
        with closing(apsw.Connection(str(place))) as database, database:
            database.execute(
                "update event set actor = 'mallory' where run_id = ? and seq = 2", (ids.run_int(broken.id),)
            )
        sealer = SealerTask(lab.engine.orchestrator, sealing(lab))
        assert await sealer.once() == 2
        assert await lab.engine.evidence.list(broken.id) == []
        assert len(await lab.engine.evidence.list(whole.id)) == 1
        with pytest.raises(TenureError, match="EVIDENCE_BROKEN"):
            await lab.engine.evidence.seal(broken.id)


def _remove_key(key: Path) -> None:
    key.rename(key.with_suffix(".away"))


def _make_key_readable(key: Path) -> None:
    key.chmod(0o644)


def _replace_key(key: Path) -> None:
    _remove_key(key)
    make_key(key)


def _write_invalid_key(key: Path) -> None:
    _remove_key(key)
    key.write_text("hunter2")
    key.chmod(0o600)


def _key_error(sealer: SealerTask) -> str | None:
    return None if sealer.key_trouble is None else sealer.key_trouble.code


def _restore_key(key: Path) -> None:
    away = key.with_suffix(".away")
    if away.exists():
        away.replace(key)
    key.chmod(0o600)


@pytest.mark.parametrize("lost", [_remove_key, _make_key_readable, _replace_key, _write_invalid_key])
async def test_sealing_stops_without_the_key_and_continues_when_it_is_back(
    url: str | None,
    tmp_path: Path,
    lost: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sealer_module, "RETRY_SECONDS", 0.0)
    key = tmp_path / "seal.key"
    signer = make_key(key)
    async with Lab(*app, url=url) as lab:
        sealer = SealerTask(lab.engine.orchestrator, sealing(lab, signer))
        runs = [await lab.start(short, PLANTED) for _ in range(2)]
        for run in runs:
            await run.result()
        await lab.jump("2s")
        lost(key)
        for _ in range(3):
            assert await sealer.once() == 0
        for run in runs:
            assert await lab.engine.evidence.list(run.id) == []
        assert (sealer.sealed, sealer.failed, _key_error(sealer)) == (0, 3, "SIGNING_KEY_UNAVAILABLE")
        log = "".join(capsys.readouterr())
        assert log.count("signing_key_lost") == 1, "the lost key must be logged once, not for every run"
        assert "seal_failed" not in log
        assert "hunter2" not in log
        _restore_key(key)
        assert await sealer.once() == 2
        for run in runs:
            assert [one.key_id for one in await lab.engine.evidence.list(run.id)] == [signer.id]
        assert (sealer.sealed, sealer.failed, _key_error(sealer)) == (2, 3, None)
        assert "signing_key_available" in "".join(capsys.readouterr())


async def test_a_revoked_key_seals_nothing(url: str | None, tmp_path: Path) -> None:
    signer = make_key(tmp_path / "seal.key")
    async with Lab(*app, url=url) as lab:
        how = sealing(lab, signer)
        sealer = SealerTask(lab.engine.orchestrator, how)
        run = await lab.start(short, PLANTED)
        await run.result()
        await lab.jump("2s")
        assert await sealer.once() == 1
        await SigningKeys(lab.engine.store).revoke(signer.id, None, "ada")
        run = await lab.start(short, PLANTED)
        await run.result()
        await lab.jump("2s")
        assert await sealer.once() == 0
        assert _key_error(sealer) == "SIGNING_KEY_UNKNOWN"
        lab.engine.runtime.sealing = how
        with pytest.raises(TenureError, match="SIGNING_KEY_UNKNOWN"):
            await seal_now(lab.engine.scope, ids.run_int(run.id))
        assert await lab.engine.evidence.list(run.id) == []


async def test_a_lost_key_is_retried_after_a_pause(tmp_path: Path) -> None:
    key = tmp_path / "seal.key"
    signer = make_key(key)
    async with Lab(*app) as lab:
        sealer = SealerTask(lab.engine.orchestrator, sealing(lab, signer))
        run = await lab.start(short, PLANTED)
        await run.result()
        await lab.jump("2s")
        _remove_key(key)
        assert await sealer.once() == 0
        assert await sealer.once() == 0
        assert sealer.failed == 1


async def test_evidence_without_storage_is_refused_immediately(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENURE_ARTIFACTS", raising=False)
    with pytest.raises(TenureError, match="TENURE_ARTIFACTS"):
        async with Engine(postgres_dsn, evidence=True):
            pass


async def test_the_doctor_compares_evidence_with_what_was_sealed(url: str | None) -> None:
    """I52: the doctor compares records with the seals of the run, and zips in the artifact store with their records."""
    async with Lab(*app, url=url) as lab:
        run = await ended(lab)
        await sealed(lab, run)
        await labeled(lab, run)
        (later,) = await sealed(lab, run)
        store, artifacts = lab.engine.store, lab.engine.artifacts
        assert (await examine_database(store, artifacts=artifacts)).clean
        bundle = await load_run_dump(store, later.run_id)
        assert bundle is not None
        for damage in (
            lambda rows: rows.pop(),
            lambda rows: rows.pop(0),
            lambda rows: setattr(rows[0], "sha256", b"0" * 32),
            lambda rows: setattr(rows[1], "events", 1),
            lambda rows: setattr(rows[0], "tenant", "beta"),
        ):
            damaged = bundle.copied()
            damage(damaged.evidence)
            assert {found.number for found in check_run(damaged)} == {"I52"}
        file = lab.folder / "artifacts" / "evidence" / later.reference.decode()
        whole = file.read_bytes()
        file.write_bytes(whole[:-1])
        assert (await examine_database(store, artifacts=artifacts)).found == {"I52": 1}
        file.unlink()
        assert (await examine_database(store, artifacts=artifacts)).found == {"I52": 1}
        file.write_bytes(whole)


async def test_another_tenants_evidence_looks_missing(url: str | None) -> None:
    """I50."""
    async with Lab(*app, url=url) as lab:
        run = await ended(lab)
        await sealed(lab, run)
        other = lab.engine.scoped(tenant="beta")
        for call in (other.evidence.list, other.evidence.seal, other.evidence.export):
            with pytest.raises(TenureError, match="RUN_NOT_FOUND"):
                await call(run.id)


async def test_an_open_run_has_no_evidence(url: str | None) -> None:
    async with Lab(*app, url=url) as lab:
        run = await lab.start(story, PLANTED)
        await run.reaches("waiting_approval")
        for call in (lab.engine.evidence.seal, lab.engine.evidence.export):
            with pytest.raises(TenureError, match="RUN_INVALID_TRANSITION"):
                await call(run.id)


async def test_an_export_is_recorded_in_the_admin_chain(url: str | None) -> None:
    async with Lab(*app, url=url) as lab:
        run = await ended(lab)
        built = await lab.engine.evidence.export(run.id, actor="ada")
        assert [part.sealed for part in built] == [False], (
            "an export before the seal is built on request and not recorded"
        )
        assert await lab.engine.evidence.list(run.id) == []
        (row,) = await sealed(lab, run)
        (part,) = await lab.engine.evidence.export(run.id, actor="ada")
        assert part.sealed
        assert part.zip == built[0].zip
        assert part.envelope == row.envelope
        lines = await lab.engine.store.read("admin_events_after", "default", 0, 10)
        assert [(line.kind, line.actor) for line in lines] == [("evidence.exported", "ada")] * 2
        assert json.loads(lines[1].body)["run"] == run.id


async def test_a_lost_or_changed_bundle_is_reported(url: str | None) -> None:
    async with Lab(*app, url=url) as lab:
        run = await ended(lab)
        (row,) = await sealed(lab, run)
        file = lab.folder / "artifacts" / "evidence" / row.reference.decode()
        file.write_bytes(file.read_bytes() + b"\0")
        with pytest.raises(TenureError, match="ARTIFACT_LOST"):
            await lab.engine.evidence.export(run.id)
        file.unlink()
        with pytest.raises(TenureError, match="ARTIFACT_LOST"):
            await lab.engine.evidence.export(run.id)
