"""Testing workflows: a whole engine in a test, on a clock that jumps.

    from tenure.testing import Lab

    async def test_release() -> None:
        async with Lab(release) as lab:
            run = await lab.start(release, "main")
            await lab.settle()
            assert await run.status() == "waiting_approval"
            await lab.approve(run, by="ada")
            await lab.jump("2d")
            assert await run.result() == "v7"

See docs/testing.md.
"""

from __future__ import annotations

from tenure.testing.lab import Lab, LabRun, LabStuck, crash_everywhere

__all__ = ["Lab", "LabRun", "LabStuck", "crash_everywhere"]
