"""The system of approval-runs.md, whole: templates of work and gates, workers that never pass a gate, and people who approve.

Laws:
1. Everything that is checked is read over HTTP, in the document's words, or from the file that the work writes.
2. Server and workers are processes of their own. One worker is killed in the middle of its step.
"""

from __future__ import annotations

import asyncio

import httpx

from tenure.engine import Engine
from tenure.private_files import make_folder
from tenure.systems.stage import SERVER, Stage, expect_json

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
    await story.play()


class _ApprovalStory:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.work = stage.folder / "work"
        self.people: dict[str, httpx.AsyncClient] = {}
        self._request = {"workflow": "article", "input": {"title": "Gates", "folder": str(self.work)}}

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
        _, address = await stage.start_server("server")
        stage.addresses[SERVER] = address
        for person, key in keys.items():
            self.people[person] = await stage.connect(address, key)
        yaml = {"Content-Type": "application/yaml"}
        await expect_json(self.people["rita"].put("/workflows/article", content=TEMPLATE, headers=yaml))

    async def play(self) -> None:
        """The life of one run, from its request to its end, and of another one that is canceled."""
        run = await self._request_once()
        first_worker = await self.stage.start("worker-1", "worker", WORKER)
        await self.stage.until("the gate", lambda: self._shows(run, "WAITING_APPROVAL"))
        await self._check_gate(run)
        await self._check_refusals(run)
        await self._approve_first_gate(run)
        await first_worker.kill()
        await self.stage.start("worker-2", "worker", WORKER)
        await self._check_reclaim(run)
        await self._approve_last_gate(run)
        await self._cancel_another()

    async def _request_once(self) -> str:
        """Send the same request many times. Returns the run."""
        rita = self.people["rita"]
        answers = await asyncio.gather(
            *(
                expect_json(rita.post("/runs", json=self._request, headers={"Idempotency-Key": "article-1"}))
                for _ in range(REQUESTS)
            )
        )
        run = str(answers[0].get("id") or answers[0].get("run_id"))
        listed = (await expect_json(rita.get("/runs")))["items"]
        self.stage.check(ONE_RUN, [one["id"] for one in listed] == [run], run)
        return run

    async def _check_gate(self, run: str) -> None:
        stage, ada = self.stage, self.people["ada"]
        stage.check(
            WAITING, await self._steps(run) == ["SUCCEEDED", "WAITING_APPROVAL", "PENDING", "PENDING"]
        )
        query = {"profile": PROFILE, "status": "WAITING_APPROVAL"}
        found = (await expect_json(ada.get("/runs", params=query)))["items"]
        none = (await expect_json(ada.get("/runs", params={**query, "status": "SUCCEEDED"})))["items"]
        stage.check(FILTERED, ([one["id"] for one in found], none) == ([run], []))
        attempts = (await expect_json(ada.get(f"/runs/{run}/steps/edit/attempts")))["items"]
        stage.check(NOT_PASSED, attempts == [] and await self._shows(run, "WAITING_APPROVAL"))

    async def _check_refusals(self, run: str) -> None:
        eve = self.people["eve"]
        hidden = [
            await eve.get(f"/runs/{run}"),
            await eve.post(f"/runs/{run}/approve"),
            await eve.post(f"/runs/{run}/cancel"),
        ]
        absent = await eve.get("/runs/run_2026-01-01_000000_aaaaaa")
        codes = {(one.status_code, one.json()["error"]["code"]) for one in (*hidden, absent)}
        self.stage.check(HIDDEN, codes == {(404, "RUN_NOT_FOUND")}, str(sorted(codes)))
        own = await self.people["rita"].post(f"/runs/{run}/approve")
        self.stage.check(REQUESTER, own.json()["error"]["code"] == "APPROVER_IS_REQUESTER")

    async def _approve_first_gate(self, run: str) -> None:
        stage, ada = self.stage, self.people["ada"]
        approved = await expect_json(ada.post(f"/runs/{run}/approve"))
        await stage.until("the step after the gate", (self.work / "publish.begun").exists)
        stage.check(APPROVED, approved["advanced"])
        repeated = await expect_json(ada.post(f"/runs/{run}/approve"))
        stage.check(IDEMPOTENT, repeated == {"advanced": False} and await self._shows(run, "RUNNING"))

    async def _check_reclaim(self, run: str) -> None:
        await self.stage.until("the second gate", lambda: self._shows(run, "WAITING_APPROVAL"))
        attempts = (await expect_json(self.people["ada"].get(f"/runs/{run}/steps/publish/attempts")))["items"]
        self.stage.check(
            RECLAIMED,
            len(attempts) == 2
            and len({one["worker"] for one in attempts}) == 2
            and (self.work / "article.txt").exists(),
        )

    async def _approve_last_gate(self, run: str) -> None:
        stage, ada = self.stage, self.people["ada"]
        await expect_json(ada.post(f"/runs/{run}/approve"))
        stage.check(LAST, await self._shows(run, "SUCCEEDED"), str(await self._steps(run)))
        again = await ada.post(f"/runs/{run}/approve")
        stage.check(OVER, again.json()["error"]["code"] == "RUN_TERMINAL_STATE")

    async def _cancel_another(self) -> None:
        rita = self.people["rita"]
        run = str((await expect_json(rita.post("/runs", json=self._request)))["id"])
        await expect_json(rita.post(f"/runs/{run}/cancel"))
        await self.stage.until("the cancel", lambda: self._shows(run, "CANCELED"))
        steps = await self._steps(run)
        self.stage.check(CANCELED, set(steps) <= {"CANCELED", "SUCCEEDED"}, str(steps))

    async def _shows(self, run: str, word: str) -> bool:
        shown = await expect_json(self.people["ada"].get(f"/runs/{run}/status", params={"profile": PROFILE}))
        return bool(shown["shown"] == word)

    async def _steps(self, run: str) -> list[str]:
        found = await expect_json(self.people["ada"].get(f"/runs/{run}/steps", params={"profile": PROFILE}))
        return [
            step["shown"] for step in found["items"] if step["name"] in ("write", "edit", "publish", "check")
        ]
