"""The service that Restate calls: one handler with five no-op durable steps. It runs in Restate's environment."""

from __future__ import annotations

import restate  # type: ignore[import-not-found]  # lives in the peer's own environment

from bench.peers.protocol import STEPS

bench = restate.Service("Bench")


async def no_op() -> int:
    return 1


async def five(context: restate.Context) -> int:
    return sum([await context.run_typed(f"step-{number}", no_op) for number in range(STEPS)])


bench.handler("five")(five)
app = restate.app(services=[bench])
