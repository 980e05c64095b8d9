"""Stories about artifacts of ended leases, confined commands, reported runs and file modes, for the bugs of `story_bugs.py`."""

from __future__ import annotations

import asyncio
import os
import stat
from hashlib import sha256
from pathlib import Path
from typing import Any

import tenure
from tenure import ids
from tenure.commands.confinement import Confinement
from tenure.declared import load_workflow
from tenure.engine import Engine, StepSpec
from tenure.govern.evidence.sealer import RunSealer
from tenure.govern.signing import make_key
from tenure.kernel.decide import facts
from tenure.kernel.lease_types import Lease
from tenure.kernel.server_rows import ArtifactRow
from tenure.private_files import hide, make_folder
from tenure.sdk.definitions import Registry
from tenure.store.artifacts import put_artifact, write_artifact
from tenure.store.sqlite import connection
from tests.engine.stage import Stage, stage
from tests.simulation.planted_bugs import Change


async def a_reported_statement_does_not_change_the_status(folder: Path) -> None:
    """A person states that a run was reported. The statement is in the view of the run, and the status is unchanged."""
    async with stage(f"sqlite:{folder / 'story.db'}") as engine:
        run = await engine.create("w", [StepSpec(name="build")], profile="delta-ci")
        await engine.complete(await engine.claim())
        statement = await engine.runs.mark_reported(run, actor="ada")
        seen = await engine.get(run)
        assert seen.reported_statement == statement
        assert seen.shown == "SUCCESS", f"the statement made the run {seen.shown}"


async def _upload(engine: Stage, lease: Lease, body: bytes) -> ArtifactRow:
    """Store the bytes, then the row, as a runner's upload does."""
    await engine.artifacts.put(body, ids.run_text(lease.run_id))
    row = ArtifactRow(
        run_id=lease.run_id,
        name="app.tar",
        idx=lease.idx,
        n=lease.n,
        late=False,
        tenant=engine.tenant,
        step=lease.name,
        worker="bob",
        size=len(body),
        digest=f"sha256:{sha256(body).hexdigest()}",
        content_type="application/x-tar",
        at=0,
        events=0,
    )
    return await put_artifact(engine.store, row, late_seconds=600)


async def a_late_upload_does_not_replace_the_accepted_file(folder: Path) -> None:
    """A worker uploads a file again after its lease has ended. The run keeps the accepted file."""
    async with stage(f"sqlite:{folder / 'story.db'}") as engine:
        run = await engine.create("w", [StepSpec(name="build")])
        lease = await engine.claim()
        await _upload(engine, lease, b"accepted")
        await engine.complete(lease)
        await _upload(engine, lease, b"late")
        kept = await engine.runs.read_artifact(run, "app.tar")
        assert kept == b"accepted", f"the run's file is {kept!r}"
        assert [one.state for one in await engine.runs.list_artifacts(run)] == ["accepted", "late"]


COMMANDS = """
name: curious
steps:
  - id: look
    run: [sh, -c, 'head -c 2000 "$SECRET_FILE" "$DATABASE" /proc/$PPID/environ /proc/[0-9]*/environ 2>&1 || true']
    env: {SECRET_FILE: "%s", DATABASE: "%s"}
"""


async def a_command_cannot_read_secrets(folder: Path) -> None:
    """A command of a workflow file tries to read a secret of its worker, environments and the database."""
    secret, database = folder / "secret", folder / "tenure.db"
    secret.write_text("marker-of-a-secret")
    hide(secret)
    async with Engine(str(database)) as engine, engine.worker(Registry(), commands=True):
        run = await engine.submit(load_workflow(COMMANDS % (secret, database), "curious.yaml"), {})
        await run.result()
        (step,) = await engine.runs.steps(run.id)
        assert "marker-of-a-secret" not in step.output["stdout"], "a command read its worker's secret"
        assert "SQLite format" not in step.output["stdout"], "a command read the database"


WAITS = """
name: patient
steps:
  - id: look
    run: [sh, -c, 'touch ready; while [ ! -e go ]; do sleep 0.01; done; cat "$SECRET_FILE" 2>/dev/null || true']
    env: {SECRET_FILE: "%s"}
    cwd: "%s"
"""


async def a_command_cannot_read_a_rotated_secret(folder: Path) -> None:
    """A key file is replaced while a command runs. The command cannot read the new key."""
    keys, work = folder / "keys", folder / "work"
    for each in (keys, work):
        each.mkdir()
    (keys / "key").write_text("old")
    hide(keys / "key")
    async with Engine(str(folder / "tenure.db")) as engine, engine.worker(Registry(), commands=True):
        run = await engine.submit(load_workflow(WAITS % (keys / "key", work), "patient.yaml"), {})
        result = asyncio.ensure_future(run.result())
        while not ((work / "ready").exists() or result.done()):  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(0.01)
        (keys / "new").write_text("marker-of-a-secret")
        (keys / "new").replace(keys / "key")
        (work / "go").touch()
        await result
        (step,) = await engine.runs.steps(run.id)
        assert "marker-of-a-secret" not in step.output["stdout"], "a command read its worker's new key"


CHANGES = """
name: meddling
steps:
  - id: look
    run: [sh, -c, 'if [ -w "$PACKAGE" ]; then echo can be written; fi']
    env: {PACKAGE: "%s"}
"""


async def a_command_cannot_write_to_its_workers_code(folder: Path) -> None:
    """The code of a worker is read-only for its commands, whoever owns the files."""
    async with Engine(str(folder / "tenure.db")) as engine, engine.worker(Registry(), commands=True):
        run = await engine.submit(load_workflow(CHANGES % Path(tenure.__file__).parent, "meddling.yaml"), {})
        await run.result()
        (step,) = await engine.runs.steps(run.id)
        assert step.output["stdout"] == "", "a command could change its worker's code"


async def files_are_private_under_any_umask(folder: Path) -> None:
    """With umask 0, a run with an artifact and a seal makes only files and folders that other users cannot read."""
    before = os.umask(0)
    try:
        place = make_folder(folder / "place")
        async with stage(f"sqlite:{place / 'tenure.db'}") as engine:
            engine.runtime.sealing = RunSealer(engine.store, engine.artifacts, make_key(place / "seal.key"))
            run = await engine.create("w", [StepSpec(name="build")])
            await engine.artifacts.put(b"x" * 1000, run)
            await engine.complete(await engine.claim())
            await engine.runtime.sealing.seal(engine.orchestrator, ids.run_int(run))
            found = sorted(each.relative_to(place).as_posix() for each in place.rglob("*"))
            assert {"tenure.db", "tenure.db-wal", "tenure.db-shm", "seal.key"} <= set(found), found
            assert sum("sha256" in each for each in found) >= 1, found
            assert any(each.endswith(".zip") for each in found), found
            for each in (place, *place.rglob("*")):
                mode = stat.S_IMODE(each.stat().st_mode)
                assert mode == (0o700 if each.is_dir() else 0o600), f"{each} is {mode:04o}"
    finally:
        os.umask(before)


BUGS: dict[str, Any] = {
    "artifact-not-fenced": (
        "an ended lease replaces the accepted file",
        (Change(write_artifact, "late=lease.late", "late=False"),),
        a_late_upload_does_not_replace_the_accepted_file,
        "the run's file is b'late'",
    ),
    "command-sees-secrets": (
        "secrets and the database are not hidden from commands",
        (Change(Confinement.command, "hidden()", "[]"),),
        a_command_cannot_read_secrets,
        "a command read its worker's secret",
    ),
    "command-sees-new-secrets": (
        "a command can read a secret that is replaced while it runs",
        (
            Change(
                Confinement.command, "shared_folders(user, cwd)", "[os.path.dirname(one) for one in hidden()]"
            ),
        ),
        a_command_cannot_read_a_rotated_secret,
        "a command read its worker's new key",
    ),
    "command-changes-its-worker": (
        "a command can write to the code of its worker",
        (Change(Confinement.command, "kept_paths(self.user)", "[]"),),
        a_command_cannot_write_to_its_workers_code,
        "a command could change its worker's code",
    ),
    "database-for-everybody": (
        "the umask decides who can read the database file",
        (Change(connection.open_connection, "make_database_file(path)", "pass"),),
        files_are_private_under_any_umask,
        r"tenure\.db is 0644",
    ),
    "statement-shown-as-reported": (
        "a person's statement that a run was reported makes it REPORTED",
        (
            Change(
                facts.attest_reported,
                "spec = d.edit(spec)",
                "spec = d.edit(spec)\n        d.edit_run().reported_at = d.now",
            ),
        ),
        a_reported_statement_does_not_change_the_status,
        "the statement made the run REPORTED",
    ),
}
"""Name -> the fields of a `PlantedBug`. Registered in `story_bugs.py`."""
