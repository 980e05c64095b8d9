"""A worker that executes the steps of a plan on request, for tests of commands."""

import asyncio
from hashlib import sha256
from typing import Any

import msgspec

from tenure import ids
from tenure.engine import Engine
from tenure.kernel.commands import Complete, Context, Fail
from tenure.kernel.server_rows import ArtifactRow
from tenure.store.artifacts import put_artifact
from tests.engine.stage import head, queues


def work(
    output: Any = None, *, fail: str = "", message: str = "", final: bool | None = None, once: bool = False,
    db: str = "tenure.db",
) -> list[str]:  # fmt: skip
    """Claim and complete (or fail) steps until none is ready. Return the names of the steps."""

    async def taken() -> list[str]:
        done: list[str] = []
        async with Engine(db, sweep=False) as engine:
            while True:
                await engine.settle()
                leases = await engine.orchestrator.claim("me", queues=await queues(engine), limit=1)
                if not leases:
                    return done
                by = {**head(leases[0], 1), "context": Context("worker:me", "system", "test")}
                completed = Complete(**by, output=None if output is None else msgspec.json.encode(output))
                retryable = None if final is None else not final
                failed = Fail(**by, code=fail, message=message.encode(), retryable=retryable)
                await engine.orchestrator.send(failed if fail else completed)
                done.append(leases[0].name)
                if once:
                    return done

    return asyncio.run(taken())


def hold(db: str = "tenure.db") -> str:
    """Claim the one ready step and keep the lease. Return the name of the step."""

    async def taken() -> str:
        async with Engine(db, sweep=False) as engine:
            [lease] = await engine.orchestrator.claim("me", queues=await queues(engine), limit=1)
            return lease.name

    return asyncio.run(taken())


async def upload(db: str, run: str, name: str, body: bytes) -> list[bool]:
    """Record a file for each leased attempt, as a runner's upload does. Return whether each file is late."""
    async with Engine(db, sweep=False) as engine:
        number = ids.run_int(run)
        await engine.artifacts.put(body, run)
        digest, late = f"sha256:{sha256(body).hexdigest()}", []
        for held in await engine.store.read("attempts_of", number):
            step = next(
                one.name for one in await engine.store.read("steps_of", number) if one.idx == held.idx
            )
            row = ArtifactRow(
                number,
                name,
                held.idx,
                held.n,
                False,
                held.tenant,
                step,
                held.owner,
                len(body),
                digest,
                "text/plain",
                0,
                0,
            )
            late.append((await put_artifact(engine.store, row, late_seconds=600)).late)
        return late
