"""Being the worker of a plan, step by step: for tests of what the shell shows of it."""

import asyncio
from typing import Any

import msgspec

from tenure.embedded import Engine
from tenure.kernel.commands import Complete, Context, Fail
from tests.embedded.stage import head, queues


def work(
    output: Any = None, *, fail: str = "", message: str = "", final: bool | None = None, once: bool = False,
    db: str = "tenure.db",
) -> list[str]:  # fmt: skip
    """Take what is ready and complete it, or fail it, until nothing is ready any more; the steps that were taken."""

    async def taken() -> list[str]:
        done: list[str] = []
        async with Engine(db, sweep=False) as engine:
            while True:
                await engine.settle()
                leases = await engine.orchestrator.claim("me", queues=await queues(engine), limit=1)
                if not leases:
                    return done
                by = {**head(leases[0], 1), "context": Context("worker:me", "system", "test")}
                said = Complete(**by, output=None if output is None else msgspec.json.encode(output))
                retryable = None if final is None else not final
                failed = Fail(**by, code=fail, message=message.encode(), retryable=retryable)
                await engine.orchestrator.send(failed if fail else said)
                done.append(leases[0].name)
                if once:
                    return done

    return asyncio.run(taken())


def hold(db: str = "tenure.db") -> str:
    """Take the one step that is ready, and keep it; its name."""

    async def taken() -> str:
        async with Engine(db, sweep=False) as engine:
            [lease] = await engine.orchestrator.claim("me", queues=await queues(engine), limit=1)
            return lease.name

    return asyncio.run(taken())
