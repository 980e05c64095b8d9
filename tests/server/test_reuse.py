"""Earlier results over HTTP: a planner allows them, a runner's job is not run again, and the next job gets its files."""

from pathlib import Path
from typing import Any

import pytest

from tests.server.stage import Site, site
from tests.server.test_planning import claim
from tests.server.test_runner_leases import say

FILE = """name: ci
version: "1"
profile: delta-ci
inputs: {commit: {type: string}}
planner: {uses: ci.plan}
"""
PLAN: list[dict[str, Any]] = [
    {"name": "build", "tool": "ci.build", "needs": [], "reuse": {"scope": "site", "digest": "ab" * 32}},
    {"name": "pack", "tool": "ci.pack", "needs": ["build"]},
]


@pytest.fixture(autouse=True)
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for artifacts."""
    monkeypatch.setenv("TENURE_ARTIFACTS", str(tmp_path / "artifacts"))


async def start(s: Site, commit: str) -> str:
    """A run of a commit, with its plan."""
    operator = await s.as_("operator")
    await operator.put("/workflows/ci", content=FILE, headers={"Content-Type": "application/yaml"})
    run: str = (await operator.post("/runs", json={"workflow": "ci", "input": {"commit": commit}})).json()[
        "id"
    ]
    (lease,) = await claim(s, "ci.plan", f"plan {commit}")
    assert (await say(s, lease, "complete", 1, plan=PLAN, output={"why": "lib"})).status_code == 200
    await s.engine.settle()
    return run


async def test_a_job_with_the_same_inputs_is_shown_as_reused_and_gives_its_files(url: str) -> None:
    async with site(url) as s:
        viewer = await s.as_("operator")
        first = await start(s, "a")
        (build,) = await claim(s, "ci.build", "b1")
        runner = await s.as_("runner")
        token = {"Authorization": f"Bearer {build['token']}"}
        put = await runner.put(
            f"/runner/leases/{build['id']}/artifacts/app.bin", content=b"the app", headers=token
        )
        assert put.status_code == 200, put.text
        await say(s, build, "complete", 1, output={"ok": True})
        (pack,) = await claim(s, "ci.pack", "p1")
        await say(s, pack, "complete", 1)

        second = await start(s, "b")
        assert await claim(s, "ci.build", "b2") == []
        steps = (await viewer.get(f"/runs/{second}/steps")).json()["items"]
        assert [step["reused_from"] for step in steps] == [{"run": first, "step": "build"}, None]
        assert (steps[0]["state"], steps[0]["shown"], steps[0]["attempt"]) == ("succeeded", "SUCCEEDED", 0)
        assert (steps[0]["reason"], steps[0]["output"]) == ("REUSED", {"ok": True})
        (pack,) = await claim(s, "ci.pack", "p2")
        token = {"Authorization": f"Bearer {pack['token']}"}
        got = await runner.get(f"/runner/leases/{pack['id']}/artifacts/app.bin", headers=token)
        assert (got.status_code, got.content) == (200, b"the app")
        state = await runner.get(f"/runner/leases/{pack['id']}", params={"run": "true"}, headers=token)
        assert state.json()["run"]["outputs"] == {"build": {"ok": True}}, (
            "a planner's output is not among them"
        )
        await say(s, pack, "complete", 1)
        listed = (await viewer.get(f"/runs/{second}/artifacts")).json()["items"]
        assert [(one["name"], one["step"], one["state"]) for one in listed] == [
            ("app.bin", "build", "accepted")
        ]
        part = {"profile": "git-with-intent", "at": "steps/build"}
        document = (await viewer.get(f"/runs/{second}", params=part)).json()
        assert document["reusedFrom"] == f"{first}/build"
