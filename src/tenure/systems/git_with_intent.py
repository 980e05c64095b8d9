"""The system of git-with-intent.md, whole: a hook starts an agent, people approve its diff, its worker is killed, and it is undone.

Laws:
1. Everything that is checked is read from outside: from the API of the server, from GitHub, and from Firestore. The story only plays the
   outside world: GitHub's people, an approver, and the one who kills the worker.
2. GitHub and Firestore are doubles that speak HTTP; the rest is real. The worker is a process of its own.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from typing import Any

import httpx

from tenure.engine.engine import Engine
from tenure.govern.connectors.settings import parse_connectors
from tenure.kernel.registry_rows import SHARED_TENANT
from tenure.private_files import write_file
from tenure.publish.firestore.values import decode_fields
from tenure.server.http_server import serving
from tenure.server.settings import Settings
from tenure.services.catalog import register_definition
from tenure.systems.git_with_intent_agent import CHANGED_FILE, assist
from tenure.systems.stage import SERVER, STUCK_SECONDS, TENANT, Stage, StageProcess, expect_json
from tenure.testing.doubles import DoubleReply, DoubleRequest, FirestoreDouble, GitHubDouble

REPO = "acme/shop"
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

REPORTED = "the hook starts a run"
REPEATED = "a repeated delivery starts no other run"
BOUND = "people are asked about exactly one commit and its diff"
FOUND = "the worker was killed after the commit, which was found again and not repeated"
HELD = "nothing is opened before the approval"
COMPLETED = "the run is completed, and its document has the delivery's id"
ONCE = "each effect is at GitHub once: branch, commit, pull request, comment"
UNDONE = "everything is undone, newest first, and the compensation log says so"
UNTOUCHED = "the branch of the person is untouched"
MIRRORED = "Firestore has the run, its checkpoints and the delivery's key"
PARTS = (REPORTED, REPEATED, FOUND, BOUND, HELD, COMPLETED, ONCE, UNDONE, UNTOUCHED, MIRRORED)


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
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._address = ""
        self._callers: dict[str, httpx.AsyncClient] = {}
        self._connectors_file = stage.folder / "connectors.yaml"
        self._hook_secret = secrets.token_hex(16)
        self.github = stage.exits.enter_context(KillingGitHub(token=secrets.token_hex(16)))
        self.firestore = stage.exits.enter_context(FirestoreDouble())

    # ------------------------------------------------------------------------------------------- setting up

    async def start(self) -> str:
        """Start the server, and create the tenant, its people, its policy and its hook. Returns the hook's path."""
        stage = self._stage
        folder = stage.write_secrets(hook=self._hook_secret, github=self.github.token)
        text = CONNECTORS.format(url=self.github.url, tenant=TENANT, token=folder / "github")
        write_file(self._connectors_file, text)
        engine = Engine(stage.database, connectors=parse_connectors(text))
        await stage.exits.enter_async_context(engine)
        settings = Settings(
            port=stage.port,
            log_runs=False,
            secrets_folder=str(stage.secrets_folder),
            hook_answer_seconds=STUCK_SECONDS,
            firestore_project="demo-tenure",
            firestore_emulator=self.firestore.url.removeprefix("http://"),
            firestore_tenants=(TENANT,),
        )
        _, self._address = await stage.exits.enter_async_context(serving(engine, settings))
        stage.addresses.update(
            {
                SERVER: self._address,
                "GitHub (a double)": self.github.url,
                "Firestore (a double)": self.firestore.url,
            }
        )
        await stage.create_tenant(engine)
        for person, roles in (
            ("olga", ("admin", "viewer")),
            ("ada", ("admin", "approver", "operator", "viewer")),
        ):
            key = await stage.create_person(engine, person, *roles)
            self._callers[person] = await stage.connect(self._address, key)
        await register_definition(engine.scope, assist, SHARED_TENANT, registered_by="system")
        version = (await self._call("olga", "POST", "/policies", {"text": POLICY}))["version"]
        for person in ("olga", "ada"):
            await self._call(person, "POST", f"/policies/{version}/activate")
        hook = {"kind": "github", "name": "shop", "secrets": [f"file:{folder / 'hook'}"], "rules": [RULE]}
        return str((await self._call("olga", "POST", "/hooks", hook))["address"])

    async def _start_worker(self, name: str) -> StageProcess:
        module = "tenure.systems.git_with_intent_agent"
        arguments = ("worker", module, "--name", name, "--connectors", str(self._connectors_file))
        return await self._stage.start(name, *arguments)

    # --------------------------------------------------------------------------------------------- the story

    async def play(self, hook: str) -> None:
        git, stage = self.github.git, self._stage
        git.repository(REPO, {"app.py": "print('shop')\n", CHANGED_FILE: "# Changes\n"})
        git.repositories[REPO].branches["feature/cart"] = str(git.head(REPO, "main"))
        head = git.push(REPO, "feature/cart", {"cart.py": "cart = []\n"}, "Add a cart")
        pull = git.open_pull(REPO, "feature/cart", title="Add a cart")
        delivery = "0d1f2e3c-0000-4000-8000-000000000042"
        first = await self._start_worker("worker-1")
        self.github.victim = first.pid
        run = await self._deliver(hook, pull.number, delivery)
        await stage.until("the worker to be killed", lambda: self.github.killed == first.pid)
        stage.say(f"kill -9 {first.pid}: GitHub made the commit, and worker-1 never heard of it")
        await self._start_worker("worker-2")
        question = await stage.until("the agent to ask", lambda: self._question(run))
        await self._check_question(run, question, head)
        await self._call(
            "ada",
            "POST",
            f"/approvals/{question['id']}/decision",
            {"decision": "approve", "digest": question["digest"], "reason": "that is the diff I want"},
        )
        ended = await stage.until("the run to end", lambda: self._ended(run))
        self._check_effects(ended, head, delivery)
        await self._call("ada", "POST", f"/runs/{run}/undo", {})
        undone = await stage.until("the undo to end", lambda: self._undone(run))
        self._check_undo(undone, head)
        await self._check_mirror(run)

    async def _deliver(self, hook: str, number: int, delivery: str) -> str:
        """GitHub reports the pull request twice, as it does after a lost answer."""
        event, url = self.github.git.pull_event(REPO, number), f"{self._address}{hook}"
        (status, body), (_, again) = [
            await asyncio.to_thread(
                self.github.git.send_hook, url, self._hook_secret, "pull_request", event, delivery
            )
            for _ in range(2)
        ]
        self._stage.check(REPORTED, status == 201 and body["run_id"], f"#{number} started {body['run_id']}")
        self._stage.check(REPEATED, again["duplicate"] and again["run_id"] == body["run_id"])
        return str(body["run_id"])

    async def _check_question(self, run: str, question: dict[str, Any], head: str) -> None:
        proposed, tip = str(question["question"]), str(self.github.git.head(REPO, "agent/pr-1"))
        receipts = (await self._call("ada", "GET", f"/runs/{run}/receipts"))["items"]
        [commit] = [one["result"] for one in receipts if one["action"] == "github.commit.create"]
        self._stage.check(FOUND, commit["sha"] == tip and commit["base"] == head, f"commit {tip[:12]}")
        self._stage.check(
            BOUND, tip in proposed and commit["diff"] in proposed, f"diff {commit['diff'][:12]}"
        )
        self._stage.check(HELD, len(self.github.git.pulls(REPO)) == 1)

    def _check_effects(self, ended: dict[str, Any], head: str, delivery: str) -> None:
        git = self.github.git
        opened = git.pulls(REPO)[1:]
        refs = [one for one in self.github.writes if one.path.endswith("/git/refs")]
        self._stage.check(
            COMPLETED, ended["status"] == "completed" and ended["trigger"]["webhookEventId"] == delivery
        )
        counts = {
            "branch": len(refs),
            "commit": len(git.log(REPO, "agent/pr-1")) - 2,
            "pull request": len(opened),
            "comment": len(self.github.comments),
        }
        self._stage.check(
            ONCE, set(counts.values()) == {1} and head in self._ancestry("agent/pr-1"), str(counts)
        )

    def _check_undo(self, undone: dict[str, Any], head: str) -> None:
        git, log = self.github.git, undone["compensationLog"]
        expected = ["comment.create", "pull.open", "commit.create", "branch.create"]
        gone = git.pulls(REPO)[1].state == "closed" and git.head(REPO, "agent/pr-1") is None
        self._stage.check(
            UNDONE,
            [entry["action"] for entry in log] == [f"github.{name}" for name in expected]
            and all(entry["outcome"] == "undone" for entry in log)
            and gone
            and not self.github.comments,
            ", ".join(expected),
        )
        self._stage.check(UNTOUCHED, git.head(REPO, "feature/cart") == head)

    async def _check_mirror(self, run: str) -> None:
        path = f"gwi_runs/{run}"

        def mirrored() -> bool:
            found = self.firestore.documents.get(path)
            log = [] if found is None else decode_fields(found.fields).get("compensationLog") or []
            return [entry["outcome"] for entry in log] == ["undone"] * 4

        await self._stage.until("Firestore to have the run", mirrored)
        self._stage.check(
            MIRRORED,
            self.firestore.below(f"{path}/checkpoints/") and self.firestore.below("gwi_idempotency/"),
        )

    # ----------------------------------------------------------------------------------------------- watching

    def _ancestry(self, branch: str) -> set[str]:
        repository = self.github.git.repositories[REPO]
        found, left = set[str](), [repository.branches[branch]]
        while left:
            found.add(sha := left.pop())
            left += repository.commits[sha].parents
        return found

    async def _question(self, run: str) -> Any:
        found = (await self._call("ada", "GET", f"/approvals?run={run}"))["items"]
        return found[0] if found else None

    async def _document(self, run: str) -> Any:
        return await expect_json(self._callers["ada"].get(f"/runs/{run}", params=GWI))

    async def _ended(self, run: str) -> Any:
        found = await self._document(run)
        return found if "completedAt" in found else None

    async def _undone(self, run: str) -> Any:
        undos = (await self._call("ada", "GET", f"/runs/{run}/undo"))["items"]
        return await self._document(run) if undos and undos[0]["lines"] else None

    async def _call(self, who: str, method: str, path: str, body: Any = None) -> Any:
        return await expect_json(self._callers[who].request(method, path, json=body))


async def play(stage: Stage) -> None:
    """Start the system, and play its story."""
    story = GitWithIntentStory(stage)
    await story.play(await story.start())
