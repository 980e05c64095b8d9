"""The commands `tenure evidence` and `tenure verify`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tenure.engine import Engine
from tenure.govern.evidence.verification import NO_PAYLOADS
from tenure.govern.ledger.keeper import LedgerKeeper
from tenure.govern.signing import Signer, make_key
from tenure.proof.ed25519 import public_pem
from tests.cli.shell import Done, Tenure, in_folder
from tests.govern.evidence_samples import PLANTED, short


class Place:
    """A folder with a database that has a sealed run and an ended run without a seal."""

    def __init__(self, folder: Path, tenure: Tenure) -> None:
        self.folder = folder
        self.tenure = tenure
        self.signer = make_key(folder / "seal.key")
        (folder / "seal.pub").write_text(public_pem(self.signer.public))
        self.run, self.other = asyncio.run(self._make())

    async def _make(self) -> tuple[str, str]:
        key = f"file:{self.folder / 'seal.key'}"
        async with (
            Engine(f"sqlite:{self.folder / 'tenure.db'}", sweep=False, signing_key=key) as engine,
            engine.worker(short),
        ):
            ids = []
            for _ in range(2):
                run = await engine.start(short, PLANTED)
                await run.result()
                ids.append(run.id)
            await engine.evidence.seal(ids[0])
            await sign_ledger(engine, self.signer)
        return ids[0], ids[1]


def first_problem(done: Done) -> str:
    """Return the code of the first problem."""
    assert done.code == 1
    return str(json.loads(done.out)["bundles"][0]["wrong"]["code"])


async def sign_ledger(engine: Engine, signer: Signer) -> None:
    await LedgerKeeper(engine.store, signer=lambda: signer, sign_seconds=0.0).once()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, in_folder(tmp_path, monkeypatch, capsys))


def test_a_sealed_run_is_exported_and_verified(place: Place) -> None:
    tenure, run = place.tenure, place.run
    listed = tenure("evidence", "list", run, "--json").json()["evidence"]
    assert [(one["part"], one["key_id"]) for one in listed] == [(0, place.signer.id)]
    assert [one["run_id"] for one in tenure("evidence", "list", "--json").json()["evidence"]] == [run]
    files = tenure("evidence", "export", run, "--to", "audit", "--json").json()["files"]
    name = f"audit/{run}.evidence.zip"
    assert files == [name, f"{name}.dsse.json", f"{name}.tlog-proof"]
    tenure("ledger", "export", "--to", "kept.checkpoint")
    done = tenure("verify", name, "--key", "seal.pub", "--checkpoint", "kept.checkpoint", "--json")
    assert done.code == 0
    report = done.json()["bundles"][0]
    assert (report["run"], report["wrong"], report["not_checked"]) == (run, None, [NO_PAYLOADS])
    assert any("of the ledger" in line for line in report["checked"])


def test_verify_without_a_key_exits_with_3(place: Place) -> None:
    place.tenure("evidence", "export", place.run)
    name = f"{place.run}.evidence.zip"
    done = place.tenure("verify", name)
    assert done.code == 3
    assert "who sealed it" in done.out
    for word in ("dropped", "truncated", "backup"):
        assert word in done.out
    assert place.tenure("verify", name, "--key", "seal.pub").code == 0


def test_verify_names_defects_and_exits_with_1(place: Place) -> None:
    place.tenure("evidence", "export", place.run)
    file = place.folder / f"{place.run}.evidence.zip"
    file.write_bytes(file.read_bytes()[:-30])
    done = place.tenure("verify", file.name, "--key", "seal.pub")
    assert done.code == 1
    assert "BUNDLE_UNREADABLE" in done.out
    assert first_problem(place.tenure("verify", file.name, "--json")) == "BUNDLE_UNREADABLE"


def test_the_proof_of_another_run_is_refused(place: Place) -> None:
    """The bundle is not in the ledger: its leaf was dropped, or the run was never sealed."""
    tenure = place.tenure
    tenure("ledger", "export", "--to", "kept.checkpoint")
    how = ("--key", "seal.pub", "--checkpoint", "kept.checkpoint", "--json")
    tenure("evidence", "export", place.run)
    tenure("evidence", "export", place.other, "--signing-key", "file:seal.key")
    other = f"{place.other}.evidence.zip"
    done = tenure("verify", other, *how)
    assert first_problem(done) == "PROOF_MISSING"
    proof = place.folder / f"{place.run}.evidence.zip.tlog-proof"
    (place.folder / f"{other}.tlog-proof").write_bytes(proof.read_bytes())
    done = tenure("verify", other, *how)
    assert first_problem(done) == "NOT_IN_LEDGER"


def test_a_checkpoint_signed_by_an_unknown_key_is_not_trusted(place: Place) -> None:
    tenure = place.tenure
    tenure("evidence", "export", place.run)
    tenure("ledger", "export", "--to", "kept.checkpoint")
    note = place.folder / "kept.checkpoint"
    lines = note.read_text().splitlines()
    lines[1] = str(int(lines[1]) + 1)
    note.write_text("\n".join(lines) + "\n")
    done = tenure(
        "verify", f"{place.run}.evidence.zip", "--key", "seal.pub", "--checkpoint", str(note), "--json"
    )
    assert first_problem(done) == "CHECKPOINT_INVALID"


def test_evidence_of_an_unsealed_run_is_built_on_export_and_audited(place: Place) -> None:
    done = place.tenure("evidence", "export", place.other, "--by", "ada")
    assert done.code == 0
    assert place.tenure("evidence", "list", place.other, "--json").json()["evidence"] == []
    envelope = json.loads((place.folder / f"{place.other}.evidence.zip.dsse.json").read_bytes())
    assert envelope["signatures"] == []
    done = place.tenure("verify", f"{place.other}.evidence.zip", "--key", "seal.pub", "--json")
    assert first_problem(done) == "UNSIGNED"


def test_missing_files_are_reported(place: Place) -> None:
    assert place.tenure("verify", "nothing.zip").code == 1
    assert place.tenure("evidence", "export", "run_2026-01-01_000000_aaaaaa").code == 1


def test_the_doctor_finds_a_changed_bundle(place: Place) -> None:
    """I52."""
    assert place.tenure("doctor").code == 0
    (file,) = (place.folder / "tenure.db.artifacts" / "evidence").rglob("*.zip")
    file.write_bytes(file.read_bytes() + b"!")
    done = place.tenure("doctor")
    assert done.code == 1
    assert "I52" in done.out
