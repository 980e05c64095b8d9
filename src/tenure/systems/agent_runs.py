"""The system of agent-runs-uk.md, whole: agents run, their status is published as files, and readers follow it without the orchestrator.

Laws:
1. Everything that is checked is read from what was published (the status server, the files), or from the API.
2. Server, worker and status server are processes of their own. The model is a fake.
"""

from __future__ import annotations

from typing import Any

import httpx

from tenure.engine.engine import Engine
from tenure.kernel.run_rows import Cap
from tenure.outbound.document_store import DocumentStore
from tenure.private_files import write_file
from tenure.shapes.published import manifest_path, step_path
from tenure.systems.stage import SERVER, TENANT, Stage, expect_json

COMPLETED = "an agent with four steps is completed, and has created a proposal"
STREAMED = "a reader of the stream heard requested, queued, running, four steps, the proposal and completed"
FILES = "steps/1.json to steps/4.json and manifest.json are published"
FAILED = "an agent whose model does not answer fails after three retries, with a code and a text"
TIMED_OUT = "an agent that takes too long fails with AGENT_TIMEOUT, at the API with 504"
QUEUED = "an agent without a free slot stays queued, and starts when the slot is free"
DECIDED = "the inbox counts the proposal, a person accepts it, and the inbox is empty"
BY_HAND = "the owner starts the failed agent again by hand: a new run"
READS_GO_ON = "the orchestrator is killed, and readers still get every status"
PARTS = (COMPLETED, STREAMED, FILES, FAILED, TIMED_OUT, QUEUED, DECIDED, BY_HAND, READS_GO_ON)
CONCURRENT_LIBRARIANS = 1


async def play(stage: Stage) -> None:
    """Start the system and play its story. It keeps running, with the orchestrator started again."""
    async with Engine(stage.database) as engine:
        await stage.create_tenant(engine)
        owner_key = await stage.create_person(engine, "olena", "operator", "approver", "viewer")
        page_key = await stage.create_client(engine, "page", "viewer")
        await engine.put_caps([Cap(TENANT, "wf:librarian", max_concurrency=CONCURRENT_LIBRARIANS)])
    await stage.start("worker", "worker", "tenure.systems.agent_runs_agents")
    server, api = await stage.start_server("server", *_serve_options(stage))
    reader_process = await stage.start(
        "status-server", "status-server", "--documents", stage.files, "--listen", "127.0.0.1:0"
    )
    reader_address = await stage.until_listening(reader_process)
    owner = await stage.connect(api, owner_key)
    reader = await stage.connect(reader_address, page_key)
    story = _AgentStory(stage, owner, reader)
    await stage.until("the worker to register its agents", story.is_registered)
    await stage.until("the keys to be published", story.is_readable)

    await story.complete_one()
    await story.fail_one()
    await story.time_one_out()
    await story.wait_for_a_slot()

    await server.kill()
    await story.check_reads()
    _, api = await stage.start_server("server-again", *_serve_options(stage))
    stage.addresses["The page"] = f"{reader_address}/page#key={page_key}&run={next(iter(story.ends))}"
    stage.addresses[SERVER] = api
    stage.addresses["What is published"] = stage.files


def _serve_options(stage: Stage) -> tuple[str, ...]:
    return ("--publish", stage.files, "--no-log-runs")


class _AgentStory:
    def __init__(self, stage: Stage, owner: httpx.AsyncClient, reader: httpx.AsyncClient) -> None:
        self._stage = stage
        self._owner = owner
        self._reader = reader
        self._documents = DocumentStore(stage.files)
        self.ends: dict[str, str] = {}
        """The runs that have ended, and how."""

    async def is_registered(self) -> bool:
        found = await expect_json(self._owner.get("/workflows"))
        return {"archivist-violin", "oracle", "dreamer", "librarian"} <= {
            one["name"] for one in found["items"]
        }

    async def is_readable(self) -> bool:
        return (await self._reader.get("/proposals/pending")).status_code == 200

    async def _start(self, agent: str, **given: Any) -> str:
        made = await expect_json(self._owner.post("/agents/run", json={"workflow": agent, "input": given}))
        run: str = made["id"]
        return run

    async def _status(self, run: str) -> dict[str, Any] | None:
        answer = await self._reader.get(f"/runs/{run}/status")
        found: dict[str, Any] | None = answer.json() if answer.status_code == 200 else None
        return found

    async def _end(self, run: str) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            found = await self._status(run)
            return found if found is not None and found["status"] in ("completed", "failed") else None

        found: dict[str, Any] = await self._stage.until(f"the end of {run}", look)
        self.ends[run] = found["status"]
        return found

    async def complete_one(self) -> None:
        stage = self._stage
        heard: list[str] = []
        async with self._reader.stream("GET", "/events/stream", timeout=60) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            run = await self._start("archivist-violin", topic="violins")
            async for line in lines:
                if line.startswith("data: "):
                    heard.append(line)
                    if '"completed"' in line:
                        break
        last = await self._end(run)
        stage.check(
            COMPLETED,
            (last["status"], last["steps_completed"], len(last["proposals_created"])) == ("completed", 4, 1),
            last["proposals_created"][0] if last["proposals_created"] else str(last),
        )
        words = [
            word
            for line in heard
            for word in ("requested", "queued", "running", "completed")
            if f'"{word}"' in line
        ]
        stage.check(
            STREAMED,
            words == ["requested", "queued", "running", "completed"]
            and sum("run.step.completed" in line for line in heard) == 4
            and sum("proposal.created" in line for line in heard) == 1,
            f"{len(heard)} events",
        )
        paths = [*(step_path(TENANT, run, number) for number in range(1, 5)), manifest_path(TENANT, run)]
        found = [await self._documents.version(path) for path in paths]
        stage.check(FILES, None not in found, stage.files)

        async def count(number: int) -> bool:
            answer = await self._reader.get("/inbox/stats")
            return answer.status_code == 200 and answer.json()["pending_proposals"] == number

        await stage.until("the inbox to count the proposal", lambda: count(1))
        [proposal] = (await expect_json(self._reader.get("/proposals/pending")))["items"]
        await expect_json(
            self._owner.post(f"/proposals/{proposal['id']}/decision", json={"decision": "accept"})
        )
        await stage.until("the inbox to be empty", lambda: count(0))
        stage.happened(DECIDED, proposal["title"])

    async def fail_one(self) -> None:
        run = await self._start("oracle", question="why?")
        last = await self._end(run)
        self._stage.check(
            FAILED,
            last["status"] == "failed"
            and last["error"].startswith("NLM_UNAVAILABLE: ")
            and "after 4 tries" in last["error"],
            last["error"],
        )
        again = await self._start("oracle", question="why, again?")
        await self._stage.until("the new run to be published", lambda: self._status(again))
        untouched = await self._status(run)
        self._stage.check(BY_HAND, again != run and untouched == last, again)

    async def time_one_out(self) -> None:
        run = await self._start("dreamer")
        last = await self._end(run)
        answer = await self._owner.get(f"/runs/{run}/result")
        self._stage.check(
            TIMED_OUT,
            last["error"].startswith("AGENT_TIMEOUT: ")
            and (answer.status_code, answer.json()["error"]["code"]) == (504, "AGENT_TIMEOUT"),
            last["error"],
        )

    async def wait_for_a_slot(self) -> None:
        flag = self._stage.folder / "catalogued"
        first = await self._start("librarian", until=str(flag))

        async def is_running() -> bool:
            found = await self._status(first)
            return found is not None and found["status"] == "running"

        await self._stage.until("the first librarian to work", is_running)
        second = await self._start("librarian", until=str(flag))

        async def is_queued() -> bool:
            found = await self._status(second)
            return found is not None and found["status"] == "queued"

        await self._stage.until("the second librarian to be queued", is_queued)
        third = await self._end(await self._start("archivist-violin", topic="cellos"))  # others have slots
        waited = await is_queued()
        write_file(flag, "")
        ends = [(await self._end(run))["status"] for run in (first, second)]
        self._stage.check(
            QUEUED, waited and third["status"] == "completed" and ends == ["completed", "completed"], second
        )

    async def check_reads(self) -> None:
        """Read every status again, without the orchestrator."""
        shown = {run: await self._status(run) for run in self.ends}
        found = {run: None if status is None else status["status"] for run, status in shown.items()}
        self._stage.check(READS_GO_ON, found == self.ends, f"{len(found)} runs")
