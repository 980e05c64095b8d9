"""Stories about fences: who may change what a run has, and what its commands may see."""

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
from tenure.store.artifacts import put_artifact
from tenure.store.sqlite import connection
from tests.engine.stage import Stage, stage
from tests.simulation.planted_bugs import Change


async def statement_changes_no_status(folder: Path) -> None:
    """Somebody's word that a run was reported is in its view and its history, and its status is what it was."""
    async with stage(f"sqlite:{folder / 'story.db'}") as engine:
        run = await engine.create("w", [StepSpec(name="build")], profile="delta-ci")
        await engine.complete(await engine.claim())
        said = await engine.runs.mark_reported(run, actor="ada")
        seen = await engine.get(run)
        assert seen.reported_statement == said
        assert seen.shown == "SUCCESS", f"a word made the run {seen.shown}"


async def _upload(engine: Stage, lease: Lease, body: bytes) -> ArtifactRow:
    """As a runner's upload does: the bytes first, then the row."""
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


async def late_file_lies_beside_the_accepted_one(folder: Path) -> None:
    """A lease that has ended changes no file of a run that succeeded."""
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


async def command_sees_no_secret(folder: Path) -> None:
    """A command of a workflow file sees neither its worker's secrets nor its database."""
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


async def command_sees_no_secret_that_is_rotated(folder: Path) -> None:
    """A key is replaced while a command runs, and the command does not see the new one either."""
    keys, work = folder / "keys", folder / "work"
    for each in (keys, work):
        each.mkdir()
    (keys / "key").write_text("old")
    hide(keys / "key")
    async with Engine(str(folder / "tenure.db")) as engine, engine.worker(Registry(), commands=True):
        run = await engine.submit(load_workflow(WAITS % (keys / "key", work), "patient.yaml"), {})
        result = asyncio.ensure_future(run.result())
        while not ((work / "ready").exists() or result.done()):  # noqa: ASYNC110 - there is nobody to tell
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


async def command_cannot_change_its_worker(folder: Path) -> None:
    """The program of a worker is read-only for its commands, whoever owns it."""
    async with Engine(str(folder / "tenure.db")) as engine, engine.worker(Registry(), commands=True):
        run = await engine.submit(load_workflow(CHANGES % Path(tenure.__file__).parent, "meddling.yaml"), {})
        await run.result()
        (step,) = await engine.runs.steps(run.id)
        assert step.output["stdout"] == "", "a command could change its worker's program"


async def files_are_private(folder: Path) -> None:
    """Whatever the umask says, a story leaves no file and no folder that others may look into."""
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
        "a lease that has ended replaces the file that was accepted",
        (Change(put_artifact, "late=ended is not None", "late=False"),),
        late_file_lies_beside_the_accepted_one,
        "the run's file is b'late'",
    ),
    "command-sees-secrets": (
        "what a command must not see is not hidden from it",
        (Change(Confinement.command, "hidden()", "[]"),),
        command_sees_no_secret,
        "a command read its worker's secret",
    ),
    "command-sees-new-secrets": (
        "a secret that is replaced while a command runs can be seen by it",
        (
            Change(
                Confinement.command, "shared_folders(user, cwd)", "[os.path.dirname(one) for one in hidden()]"
            ),
        ),
        command_sees_no_secret_that_is_rotated,
        "a command read its worker's new key",
    ),
    "command-changes-its-worker": (
        "the program of a worker can be written by its commands",
        (Change(Confinement.command, "kept_paths(self.user)", "[]"),),
        command_cannot_change_its_worker,
        "a command could change its worker's program",
    ),
    "database-for-everybody": (
        "the umask decides who can read a database",
        (Change(connection.open_connection, "make_database_file(path)", "pass"),),
        files_are_private,
        r"tenure\.db is 0644",
    ),
    "statement-shown-as-reported": (
        "somebody's word that a run was reported makes it REPORTED",
        (
            Change(
                facts.attest_reported,
                "spec = d.edit(spec)",
                "spec = d.edit(spec)\n        d.edit_run().reported_at = d.now",
            ),
        ),
        statement_changes_no_status,
        "a word made the run REPORTED",
    ),
}
"""What is wrong, how, the story that notices it, and what that then says: see `planted_bugs.PLANTED_BUGS`."""
