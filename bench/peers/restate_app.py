"""The service that Restate calls: one handler with five no-op durable steps. Served from Restate's environment."""

from __future__ import annotations

import restate  # type: ignore[import-not-found]  # lives in the peer's own environment

from bench.peers.protocol import STEPS

bench = restate.Service("Bench")


async def no_op() -> int:
    """A step."""
    return 1


async def five(context: restate.Context) -> int:
    """A run."""
    done = 0
    for number in range(STEPS):
        done += await context.run_typed(f"step-{number}", no_op)
    return done


bench.handler("five")(five)
app = restate.app(services=[bench])
