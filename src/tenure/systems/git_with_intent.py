"""The system of git-with-intent.md, whole: a hook starts an agent, people approve its diff, its worker is killed, and it is undone.

Laws:
1. Everything that is checked is read from outside: from the API of the server, from GitHub, and from Firestore. The story only plays the
   outside world: GitHub's people, an approver, and the one who kills the worker.
2. GitHub and Firestore are doubles that speak HTTP; the rest is real. The worker is a process of its own.
3. No process outlives the story, however it ends. The database must be empty.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tenure.engine import Engine
from tenure.govern.connectors.settings import parse_connectors
from tenure.kernel.registry_rows import SHARED_TENANT
from tenure.private_files import append_file, make_folder
from tenure.publish.firestore.values import decode_fields
from tenure.server.http_server import serving
from tenure.server.settings import Settings
from tenure.services.catalog import register_definition
from tenure.services.identity.principals import OPERATOR
from tenure.systems.git_with_intent_agent import CHANGED_FILE, assist
from tenure.testing.doubles import DoubleReply, DoubleRequest, FirestoreDouble, GitHubDouble

TENANT, REPO = "acme", "acme/shop"
PATIENCE_SECONDS = 60.0
LOOK_SECONDS = 0.05
STOP_SECONDS = 5.0
GWI = {"profile": "git-with-intent"}
POLICY = """
version: 1
rules:
  - name: agents-draft-on-their-own-branches
    connector: github
    operation: [branch.create, commit.create]
    when: "!action.reverses && action.target.branch.startsWith('agent/')"
    allow: true
  - name: agents-comment
    connector: github
    operation: comment.create
    allow: true
  - name: people-approve-the-diff
    connector: github
    operation: pull.open
    approval: {tier: med, within: 4h}
    why: everybody sees a pull request
  - name: taking-back-is-free
    connector: github
    operation: [branch.delete, branch.move, pull.close, comment.delete]
    when: action.reverses
    allow: true
"""
CONNECTORS = """
connectors:
  github:
    kind: github
    base_url: {url}
    tokens: {{{tenant}: "file:{token}"}}
    allow_private: [127.0.0.1]
"""
RULE = {
    "when": "event == 'pull_request' && action == 'opened' && !body.pull_request.head.ref.startsWith('agent/')",
    "workflow": "git-with-intent",
    "input": {
        "repo": "${{ body.repository.full_name }}",
        "number": "${{ body.pull_request.number }}",
        "title": "${{ body.pull_request.title }}",
        "head": "${{ body.pull_request.head.sha }}",
        "branch": "${{ body.pull_request.head.ref }}",
    },
}

Say = Callable[[str], None]


class StoryCheck(msgspec.Struct, frozen=True):
    """Something that must have happened, and whether it has."""

    what: str
    holds: bool


class KillingGitHub(GitHubDouble):
    """GitHub, and somebody who kills the worker just when GitHub has made its commit: the answer never arrives."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.victim: int | None = None
        self.killed: int | None = None

    def handle(self, request: DoubleRequest) -> DoubleReply:
        reply = super().handle(request)
        if self.victim is not None and b"createCommitOnBranch" in request.body:
            self.killed, self.victim = self.victim, None
            os.kill(self.killed, signal.SIGKILL)
        return reply


class GitWithIntentStory:
    def __init__(self, folder: Path, say: Say, url: str | None = None) -> None:
        """`url`: an empty database. By default it is a file in `folder`."""
        self._folder = folder
        self._say = say
        self._url = url or f"sqlite:{folder / 'git-with-intent.db'}"
        self._address = ""
        self._callers: dict[str, httpx.AsyncClient] = {}
        self._checks: list[StoryCheck] = []
        self._connectors_file = folder / "connectors.yaml"
        self._secrets = folder / "secrets"
        self._hook_secret = secrets.token_hex(16)
        self.github = KillingGitHub(token=secrets.token_hex(16))
        self.firestore = FirestoreDouble()

    async def play(self, stay: asyncio.Event | None = None) -> list[StoryCheck]:
        """Play the story, and return what was checked. With `stay`, everything keeps running until it is set."""
        make_folder(self._folder)
        async with AsyncExitStack() as stack:
            stack.enter_context(self.github)
            stack.enter_context(self.firestore)
            engine = await self._start_server(stack)
            hook = await self._set_up(engine, stack)
            await self._act_out(hook)
            if stay is not None:
                self._say(f"the API is at {self._address}; GitHub's double is at {self.github.url}")
                await stay.wait()
        return self._checks

    # ------------------------------------------------------------------------------------------- setting up

    async def _start_server(self, stack: AsyncExitStack) -> Engine:
        folder = self._secrets / TENANT
        make_folder(self._secrets)
        make_folder(folder)
        for name, value in (("hook", self._hook_secret), ("github", self.github.token)):
            with append_file(folder / name) as file:
                file.write(value.encode())
        text = CONNECTORS.format(url=self.github.url, tenant=TENANT, token=folder / "github")
        with append_file(self._connectors_file) as file:
            file.write(text.encode())
        engine = await stack.enter_async_context(Engine(self._url, connectors=parse_connectors(text)))
        settings = Settings(
            port=0,
            log_runs=False,
            secrets_folder=str(self._secrets),
            hook_answer_seconds=PATIENCE_SECONDS,
            firestore_project="demo-tenure",
            firestore_emulator=self.firestore.url.removeprefix("http://"),
            firestore_tenants=(TENANT,),
        )
        _, self._address = await stack.enter_async_context(serving(engine, settings))
        return engine

    async def _set_up(self, engine: Engine, stack: AsyncExitStack) -> str:
        """Create the tenant, its people, its policy and its hook. Returns the hook's path."""
        await engine.scoped(tenant="", caller=OPERATOR).tenants.create(TENANT, name="Acme")
        people = engine.scoped(tenant=TENANT, caller=OPERATOR).people
        for person, roles in (
            ("olga", ("admin", "viewer")),
            ("ada", ("admin", "approver", "operator", "viewer")),
        ):
            await people.create(name=person.title(), roles=roles, groups=(), person=person)
            key = (await people.enrol((await people.invite(person)).code)).key.key
            client = httpx.AsyncClient(
                base_url=self._address, headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE_SECONDS
            )
            self._callers[person] = await stack.enter_async_context(client)
        await register_definition(engine.scope, assist, SHARED_TENANT, registered_by="system")
        version = (await self._call("olga", "POST", "/policies", {"text": POLICY}))["version"]
        for person in ("olga", "ada"):
            await self._call(person, "POST", f"/policies/{version}/activate")
        reference = f"file:{self._secrets / TENANT / 'hook'}"
        hook = {"kind": "github", "name": "shop", "secrets": [reference], "rules": [RULE]}
        return str((await self._call("olga", "POST", "/hooks", hook))["address"])

    # --------------------------------------------------------------------------------------------- the story

    async def _act_out(self, hook: str) -> None:
        git = self.github.git
        git.repository(REPO, {"app.py": "print('shop')\n", CHANGED_FILE: "# Changes\n"})
        git.repositories[REPO].branches["feature/cart"] = str(git.head(REPO, "main"))
        head = git.push(REPO, "feature/cart", {"cart.py": "cart = []\n"}, "Add a cart")
        pull = git.open_pull(REPO, "feature/cart", title="Add a cart")
        delivery = "0d1f2e3c-0000-4000-8000-000000000042"
        async with self._worker("worker-1") as first:
            self.github.victim = first.pid
            run = await self._deliver(hook, pull.number, delivery)
            await self._until("the worker is killed", lambda: self._is_killed(first))
            self._say(f"kill -9 {first.pid}: GitHub made the commit, and worker-1 never heard of it")
        async with self._worker("worker-2"):
            question = await self._until("the agent asks", lambda: self._question(run))
            await self._check_question(run, question, head)
            await self._call(
                "ada",
                "POST",
                f"/approvals/{question['id']}/decision",
                {"decision": "approve", "digest": question["digest"], "reason": "that is the diff I want"},
            )
            ended = await self._until("the run ends", lambda: self._ended(run))
            self._check_effects(ended, head, delivery)
            await self._call("ada", "POST", f"/runs/{run}/undo", {})
            undone = await self._until("the undo ends", lambda: self._undone(run))
        self._check_undo(undone, head)
        await self._check_mirror(run)

    async def _deliver(self, hook: str, number: int, delivery: str) -> str:
        """GitHub reports the pull request twice, as it does after a lost answer."""
        event = self.github.git.pull_event(REPO, number)
        answers = [
            await asyncio.to_thread(
                self.github.git.send_hook,
                f"{self._address}{hook}",
                self._hook_secret,
                "pull_request",
                event,
                delivery,
            )
            for _ in range(2)
        ]
        (status, body), (_, again) = answers
        self._check("the hook starts a run", status == 201 and bool(body["run_id"]))
        self._check(
            "a repeated delivery starts no other run",
            again["duplicate"] and again["run_id"] == body["run_id"],
        )
        self._say(f"#{number} was opened; its hook started {body['run_id']}")
        return str(body["run_id"])

    async def _check_question(self, run: str, question: dict[str, Any], head: str) -> None:
        proposed = str(question["question"])
        tip = str(self.github.git.head(REPO, "agent/pr-1"))
        receipts = (await self._call("ada", "GET", f"/runs/{run}/receipts"))["items"]
        [commit] = [one for one in receipts if one["action"] == "github.commit.create"]
        self._say(f"the agent asks for approval of {tip[:12]}, diff {commit['result']['diff'][:12]}")
        self._check("the question names the commit and its diff", tip in proposed)
        self._check("the approval covers the diff digest", commit["result"]["diff"] in proposed)
        self._check("the commit is on the reported head", commit["result"]["base"] == head)
        self._check("the lost commit was found again", commit["result"]["sha"] == tip)
        self._check("nothing was opened before the approval", len(self.github.git.pulls(REPO)) == 1)

    def _check_effects(self, ended: dict[str, Any], head: str, delivery: str) -> None:
        git = self.github.git
        opened = git.pulls(REPO)[1:]
        log = git.log(REPO, "agent/pr-1")
        refs = [one for one in self.github.writes if one.path.endswith("/git/refs")]
        self._say(f"ada approved; the agent opened #{opened[0].number if opened else '-'}")
        self._check("the run is completed", ended["status"] == "completed")
        self._check("the run document has the delivery's id", ended["trigger"]["webhookEventId"] == delivery)
        self._check("the branch was created once", len(refs) == 1)
        self._check("one commit was made", len(log) == 3 and head in self._ancestry("agent/pr-1"))
        self._check("one pull request was opened", len(opened) == 1 and opened[0].state == "open")
        self._check("one comment was made", len(self.github.comments) == 1)

    def _check_undo(self, undone: dict[str, Any], head: str) -> None:
        git = self.github.git
        log = undone["compensationLog"]
        for entry in log:
            self._say(f"undo: {entry['action']} is {entry['outcome']} by {entry['compensatedBy']}")
        expected = ["comment.create", "pull.open", "commit.create", "branch.create"]
        self._check(
            "the compensation log has each action once, newest first",
            [entry["action"] for entry in log] == [f"github.{name}" for name in expected],
        )
        self._check("everything is undone", all(entry["outcome"] == "undone" for entry in log))
        self._check("the pull request is closed", git.pulls(REPO)[1].state == "closed")
        self._check("the branch is gone", git.head(REPO, "agent/pr-1") is None)
        self._check("the comment is gone", not self.github.comments)
        self._check("the branch of the person is untouched", git.head(REPO, "feature/cart") == head)

    async def _check_mirror(self, run: str) -> None:
        path = f"gwi_runs/{run}"

        async def mirrored() -> bool:
            found = self.firestore.documents.get(path)
            log = [] if found is None else decode_fields(found.fields).get("compensationLog") or []
            return [entry["outcome"] for entry in log] == ["undone"] * 4

        await self._until("Firestore has the run", mirrored)
        self._check("Firestore has the run's checkpoints", bool(self.firestore.below(f"{path}/checkpoints/")))
        self._check("Firestore has the delivery's key", bool(self.firestore.below("gwi_idempotency/")))

    # ----------------------------------------------------------------------------------------------- watching

    def _ancestry(self, branch: str) -> set[str]:
        repository = self.github.git.repositories[REPO]
        found, left = set[str](), [repository.branches[branch]]
        while left:
            found.add(sha := left.pop())
            left += repository.commits[sha].parents
        return found

    async def _is_killed(self, process: asyncio.subprocess.Process) -> bool:
        return self.github.killed == process.pid and process.returncode is not None

    async def _question(self, run: str) -> Any:
        found = (await self._call("ada", "GET", f"/approvals?run={run}"))["items"]
        if not found and (ended := await self._ended(run)) is not None:
            raise RuntimeError(f"the run ended before it asked: {ended.get('error', ended['status'])}")
        return found[0] if found else None

    async def _document(self, run: str) -> dict[str, Any]:
        answer = await self._callers["ada"].get(f"/runs/{run}", params=GWI)
        answer.raise_for_status()
        return dict(answer.json())

    async def _ended(self, run: str) -> Any:
        found = await self._document(run)
        return found if "completedAt" in found else None

    async def _undone(self, run: str) -> Any:
        undos = (await self._call("ada", "GET", f"/runs/{run}/undo"))["items"]
        return await self._document(run) if undos and undos[0]["lines"] else None

    async def _call(self, who: str, method: str, path: str, body: Any = None) -> Any:
        answer = await self._callers[who].request(method, path, json=body)
        if not answer.is_success:
            raise RuntimeError(
                f"{method} {path} as {who} was answered {answer.status_code}: {answer.text[:500]}"
            )
        return answer.json()

    async def _until(self, what: str, look: Callable[[], Awaitable[Any]]) -> Any:
        """Wait until `look` finds something."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            if found := await look():
                return found
            await asyncio.sleep(LOOK_SECONDS)
        raise TimeoutError(f"{what}: not within {PATIENCE_SECONDS:g} s; the logs are in {self._folder}")

    def _check(self, what: str, holds: Any) -> None:
        self._checks.append(StoryCheck(what, bool(holds)))

    @asynccontextmanager
    async def _worker(self, name: str) -> AsyncIterator[asyncio.subprocess.Process]:
        module = "tenure.systems.git_with_intent_agent"
        command = (sys.executable, "-P", "-m", module, self._url, name, str(self._connectors_file))
        with append_file(self._folder / f"{name}.log") as output:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=output, stderr=output, cwd=self._folder
            )
        try:
            yield process
        finally:
            await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End a worker: its input ends, and after a while it is killed."""
    if process.returncode is None:
        assert process.stdin is not None
        process.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
    if process.returncode is None:
        process.kill()
        await process.wait()
