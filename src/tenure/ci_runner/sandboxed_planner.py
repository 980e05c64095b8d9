"""The planner in a sandbox: it parses what a commit contains, and sees nothing but this Tenure.

Law: the planner has no network, no file of a job, of a mirror or of the runner, and nothing that it could write to but a small /tmp. What it
needs comes on stdin, and its answer, its memory and its time are bounded.
"""

from __future__ import annotations

import asyncio

from tenure.ci.plan_step import PLANNER_ARGUMENTS, PlannerLauncher
from tenure.ci_runner.job_host import JobHost
from tenure.errors import TenureError
from tenure.sandbox.bubblewrap import Mount, own_packages, own_python
from tenure.sandbox.sandbox import SandboxSpec, run_sandboxed

ANSWER_BYTES_MAX = 256 << 20
PLANNER_PROCESSES = 32
START_SECONDS = 60.0
"""How much longer than its planner a thread waits, at most."""
PLANNER_MEMORY_BYTES = 4 << 30
MESSAGE_CHARS_MAX = 500
_BOOTSTRAP = "import sys; sys.path[:0] = sys.argv[1].split(':'); import runpy; runpy.run_module(sys.argv[2], run_name='__main__')"
"""The interpreter without its virtual environment: it finds the packages where they are mounted."""


def make_planner_launcher(host: JobHost, loop: asyncio.AbstractEventLoop, slot: int = 0) -> PlannerLauncher:
    """A launcher for `execute_plan_step`, which is called in a thread. Its sandbox is started in the event loop."""

    def launch(request: bytes, seconds: float) -> bytes:
        if host.closing.is_set():  # nobody would run the coroutine
            raise TenureError("PLAN_FAILED", "the runner stops")
        return asyncio.run_coroutine_threadsafe(run_planner(host, slot, request, seconds), loop).result(
            seconds + START_SECONDS
        )

    return launch


async def run_planner(host: JobHost, slot: int, request: bytes, seconds: float) -> bytes:
    """Run `tenure.ci.planner_process` with a request, and return its answer. PLAN_FAILED if it crashed or took too long."""
    packages = own_packages()
    spec = SandboxSpec(
        isolation=host.isolation.kind,
        files=host.files,
        mounts=tuple(Mount(path, path) for path in packages),
        uid=host.isolation.uid(slot),
        processes=PLANNER_PROCESSES,
        memory_bytes=PLANNER_MEMORY_BYTES,
    )
    argv = [own_python()[0], "-I", "-c", _BOOTSTRAP, ":".join(packages), PLANNER_ARGUMENTS[-1]]
    try:
        done = await run_sandboxed(
            argv, spec, stdin=request, timeout=seconds, output_bytes_max=ANSWER_BYTES_MAX
        )
    except TenureError as refused:
        if refused.code == "SANDBOX_TIMED_OUT":
            raise TenureError("PLAN_FAILED", f"the planner took longer than {seconds:g} seconds") from refused
        raise
    if done.exit_code:
        said = done.stderr.decode(errors="replace").strip()[-MESSAGE_CHARS_MAX:]
        raise TenureError("PLAN_FAILED", f"the planner ended with {done.exit_code}: {said}")
    return done.stdout
