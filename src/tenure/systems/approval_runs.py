"""The system of approval-runs.md, whole: templates of work and gates, workers that never pass a gate, and people who approve.

Laws:
1. Everything that is checked is read over HTTP, in the document's words, or from the file that the work writes.
2. Server and workers are processes of their own. One worker is killed in the middle of its step.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx

from tenure.engine import Engine
from tenure.private_files import make_folder
from tenure.systems.stage import Stage, answer_of

PROFILE = "approval-runs"
OTHER_TENANT = "globex"
REQUESTS = 20
WORKER = "tenure.systems.approval_runs_work"
TEMPLATE = """
name: article
version: "1"
profile: approval-runs
inputs:
  title: {type: string}
  folder: {type: string}
steps:
  - id: write
    uses: write_draft
    with: {title: "${{ inputs.title }}"}
    idempotency_key: "write:${{ run.id }}"
  - id: edit
    approval: {title: "Publish ${{ inputs.title }}?"}
  - id: publish
    uses: publish
    with: {draft: "${{ steps.write.output.draft }}", folder: "${{ inputs.folder }}"}
    idempotency_key: "publish:${{ run.id }}"
  - id: check
    approval: {title: "Is ${{ inputs.title }} online as it should be?"}
"""

ONE_RUN = f"{REQUESTS} requests at once with one key start one run"
WAITING = "the first step is done, and the run shows WAITING_APPROVAL at its gate"
FILTERED = "a list takes the words of the document"
NOT_PASSED = "no worker passes the gate"
HIDDEN = "another tenant gets 404 for it, as for a run that does not exist"
REQUESTER = "the requester may not approve"
APPROVED = "an editor approves without a body, and the next step runs"
RECLAIMED = "its worker is killed, and another one reclaims the step"
LAST = "approving the last gate ends the run SUCCEEDED"
IDEMPOTENT = "approving again, where no gate waits, advances nothing and says so"
OVER = "an ended run cannot be approved"
CANCELED = "a canceled run ends CANCELED with all of its open steps"
PARTS = (
    ONE_RUN, WAITING, FILTERED, NOT_PASSED, HIDDEN, REQUESTER, APPROVED, IDEMPOTENT, RECLAIMED, LAST, OVER, CANCELED,
)  # fmt: skip


async def play(stage: Stage) -> None:
    """Start the system, and play its story."""
    story = _ApprovalStory(stage)
    await story.start()
    await story.act()


class _ApprovalStory:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.work = stage.folder / "work"
        self.people: dict[str, httpx.AsyncClient] = {}

    async def start(self) -> None:
        """Start the server as a process, and let people in."""
        stage = self.stage
        make_folder(self.work)
        keys: dict[str, str] = {}
        async with Engine(stage.database) as engine:
            for tenant in ("acme", OTHER_TENANT):
                await stage.create_tenant(engine, tenant)
            keys["rita"] = await stage.create_person(engine, "rita", "operator", "approver", "viewer")
            keys["ada"] = await stage.create_person(engine, "ada", "approver", "viewer")
            keys["eve"] = await stage.create_person(
                engine, "eve", "operator", "approver", "viewer", tenant=OTHER_TENANT
            )
        server = await stage.start("server", "serve", "--port", str(stage.port))
        line = await stage.until_printed(server, "server_started")
        address = str(json.loads(line)["address"])
        stage.addresses["API"] = address
        for person, key in keys.items():
            self.people[person] = await stage.connect(address, key)
        yaml = {"Content-Type": "application/yaml"}
        await answer_of(self.people["rita"].put("/workflows/article", content=TEMPLATE, headers=yaml))

    async def act(self) -> None:
        stage, rita, ada = self.stage, self.people["rita"], self.people["ada"]
        body = {"workflow": "article", "input": {"title": "Gates", "folder": str(self.work)}}
        answers = await asyncio.gather(
            *(
                answer_of(rita.post("/runs", json=body, headers={"Idempotency-Key": "article-1"}))
                for _ in range(REQUESTS)
            )
        )
        run = str(answers[0].get("id") or answers[0].get("run_id"))
        listed = (await answer_of(rita.get("/runs")))["items"]
        stage.check(ONE_RUN, [one["id"] for one in listed] == [run], run)

        first = await stage.start("worker-1", "worker", WORKER)
        await self._until("the gate", lambda: self._shows(run, "WAITING_APPROVAL"))
        stage.check(
            WAITING, await self._steps(run) == ["SUCCEEDED", "WAITING_APPROVAL", "PENDING", "PENDING"]
        )
        asked = {"profile": PROFILE, "status": "WAITING_APPROVAL"}
        found = (await answer_of(ada.get("/runs", params=asked)))["items"]
        none = (await answer_of(ada.get("/runs", params={**asked, "status": "SUCCEEDED"})))["items"]
        stage.check(FILTERED, ([one["id"] for one in found], none) == ([run], []))
        attempts = (await answer_of(ada.get(f"/runs/{run}/steps/edit/attempts")))["items"]
        stage.check(NOT_PASSED, attempts == [] and await self._shows(run, "WAITING_APPROVAL"))
        eve = self.people["eve"]
        hidden = [
            await eve.get(f"/runs/{run}"),
            await eve.post(f"/runs/{run}/approve"),
            await eve.post(f"/runs/{run}/cancel"),
        ]
        absent = await eve.get("/runs/run_2026-01-01_000000_aaaaaa")
        codes = {(one.status_code, one.json()["error"]["code"]) for one in (*hidden, absent)}
        stage.check(HIDDEN, codes == {(404, "RUN_NOT_FOUND")}, str(sorted(codes)))
        own = await rita.post(f"/runs/{run}/approve")
        stage.check(REQUESTER, own.json()["error"]["code"] == "APPROVER_IS_REQUESTER")

        advanced = await answer_of(ada.post(f"/runs/{run}/approve"))
        begun = self.work / "publish.begun"
        await self._until("the step after the gate", begun.exists)
        stage.check(APPROVED, advanced["advanced"])
        idle = await answer_of(ada.post(f"/runs/{run}/approve"))
        stage.check(IDEMPOTENT, idle == {"advanced": False} and await self._shows(run, "RUNNING"))
        await first.kill()
        await stage.start("worker-2", "worker", WORKER)
        await self._until("the second gate", lambda: self._shows(run, "WAITING_APPROVAL"))
        attempts = (await answer_of(ada.get(f"/runs/{run}/steps/publish/attempts")))["items"]
        stage.check(
            RECLAIMED,
            len(attempts) == 2
            and len({one["worker"] for one in attempts}) == 2
            and (self.work / "article.txt").exists(),
        )
        await answer_of(ada.post(f"/runs/{run}/approve"))
        stage.check(LAST, await self._shows(run, "SUCCEEDED"), str(await self._steps(run)))
        again = await ada.post(f"/runs/{run}/approve")
        stage.check(OVER, again.json()["error"]["code"] == "RUN_TERMINAL_STATE")

        other = str((await answer_of(rita.post("/runs", json=body)))["id"])
        await answer_of(rita.post(f"/runs/{other}/cancel"))
        await self._until("the cancel", lambda: self._shows(other, "CANCELED"))
        left = set(await self._steps(other)) - {"CANCELED", "SUCCEEDED"}
        stage.check(CANCELED, not left, str(await self._steps(other)))

    async def _until(self, what: str, look: Callable[[], Any]) -> Any:
        return await self.stage.until(what, look)

    async def _shows(self, run: str, word: str) -> bool:
        shown = await answer_of(self.people["ada"].get(f"/runs/{run}/status", params={"profile": PROFILE}))
        return bool(shown["shown"] == word)

    async def _steps(self, run: str) -> list[str]:
        found = await answer_of(self.people["ada"].get(f"/runs/{run}/steps", params={"profile": PROFILE}))
        return [
            step["shown"] for step in found["items"] if step["name"] in ("write", "edit", "publish", "check")
        ]
