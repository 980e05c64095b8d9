"""A server that reports to a double of GitHub, for tests of reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tenure.kernel import commands as c
from tenure.kernel.lease_types import Lease
from tenure.publish.vcs_settings import parse_vcs_settings
from tenure.shapes.reports import VcsReport, VcsTarget
from tenure.shapes.runs import Run
from tenure.testing.doubles import CheckWrite, GitHubDouble
from tests.engine.stage import head, queues
from tests.server.stage import Site, site

T = TypeVar("T")
REPO = "acme/app"
SHA = "0123456789abcdef0123456789abcdef01234567"
TARGET = VcsTarget(repository=REPO, head_sha=SHA)
PATIENCE_SECONDS = 50.0
PHASES = {"queued": 0, "in_progress": 1, "completed": 2}


def settings_text(github: GitHubDouble, key: Path, more: str = "") -> str:
    return f"""
github:
  app_id: 1
  private_key: file:{key}
  base_url: {github.url}
  allow_private: ["127.0.0.1"]
  targets:
    - tenant: acme
      installation: 77
      repositories: [{REPO}]
      {more}
"""


def start_github(folder: Path) -> Iterator[tuple[GitHubDouble, Path]]:
    with GitHubDouble() as github:
        key = folder / "app.pem"
        key.write_bytes(github.install_app(REPO))
        github.commits[REPO] = {SHA}
        yield github, key


async def wait_until(
    look: Callable[[], Awaitable[T | None]], what: str, seconds: float = PATIENCE_SECONDS
) -> T:
    """Poll until something is there."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        found = await look()
        if found:
            return found
        if asyncio.get_running_loop().time() > deadline:
            pytest.fail(f"waited {seconds:g} s for {what}")
        await asyncio.sleep(0.05)


class VcsSite:
    """A site of tenant acme whose runs are reported."""

    def __init__(self, s: Site, github: GitHubDouble) -> None:
        self.s = s
        self.github = github
        self.engine = s.engine.scoped(tenant="acme", actor="ci")

    async def start(self, *plan: Any, target: VcsTarget | None = TARGET, **options: Any) -> str:
        steps = [{"name": one} if isinstance(one, str) else one for one in plan or ("build", "test")]
        return await self.engine.create("ci", steps, profile="delta-ci", vcs_target=target, **options)

    async def claim(self) -> Lease:
        (lease,) = await self.engine.orchestrator.claim("bob", queues=await queues(self.engine), limit=1)
        return lease

    async def complete(self, lease: Lease, output: bytes | None = None) -> None:
        await self.engine.orchestrator.send(c.Complete(**head(lease, 9), output=output))

    async def fail(self, lease: Lease, code: str = "COMPILE_ERROR", message: bytes = b"it broke") -> None:
        await self.engine.orchestrator.send(c.Fail(**head(lease, 9), code=code, message=message))

    async def work_off(self, *outputs: bytes | None) -> None:
        for output in outputs:
            await self.complete(await self.claim(), output)

    async def run(self, run: str) -> Run:
        return await self.engine.get(run)

    async def reported(self, run: str) -> Run:
        async def look() -> Run | None:
            found = await self.run(run)
            return found if found.reported_at is not None else None

        return await wait_until(look, f"{run} to be reported")

    async def report(self, run: str, state: str) -> VcsReport:
        async def look() -> VcsReport | None:
            found = [one for one in await self.engine.reports.list() if one.run_id == run]
            return found[0] if found and found[0].state == state else None

        return await wait_until(look, f"the report of {run} to be {state}")

    async def check(self, run: str, part: str, status: str) -> dict[str, Any]:
        """The only check run of a part, when it has this status."""

        async def look() -> dict[str, Any] | None:
            found = self.github.find_checks(f"{run}:{part}")
            assert len(found) <= 1
            return found[0] if found and found[0]["status"] == status else None

        return await wait_until(look, f"{part} of {run} to be {status}")


@asynccontextmanager
async def vcs_site(
    url: str, github: tuple[GitHubDouble, Path], *, more: str = "", **settings: Any
) -> AsyncIterator[VcsSite]:
    vcs = parse_vcs_settings(settings_text(*github, more))
    async with site(url, vcs=vcs, public_url="https://ci.example.com", **settings) as s:
        yield VcsSite(s, github[0])


def check_order(writes: list[CheckWrite]) -> None:
    """No check run was created twice, went backwards, or changed after it was completed."""
    created = [write.external_id for write in writes if write.created]
    assert len(created) == len(set(created)), created
    for name in set(created):
        phases = [PHASES[write.status] for write in writes if write.external_id == name]
        assert phases == sorted(phases), (name, phases)
        assert phases.count(2) <= 1, (name, phases)
