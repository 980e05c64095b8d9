"""Answering a run's approvals at the terminal where it is watched.

Laws:
1. Each approval is asked once. Enter leaves it for later, and prints the command to answer it.
2. If another person answers it in the meantime, the prompt ends.
3. The answer is bound to what was shown: its number, digest and revision.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from tenure.cli.common.console import escape_control, remedy_for, safe_text
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.cli.common.backend import Backend
    from tenure.cli.runs.progress import ProgressScreen
    from tenure.shapes.approvals import Approval
    from tenure.shapes.runs import Run
    from tenure.shapes.steps import Step

LOOK_SECONDS = 0.2
_YES = ("y", "yes")
_NO = ("n", "no")


class ApprovalPrompt:
    def __init__(self, backend: Backend, console: Console, approver: str) -> None:
        self._backend = backend
        self._console = console
        self._approver = approver
        self._asked: set[tuple[str, int, int]] = set()

    async def ask(self, run: Run, steps: list[Step], screen: ProgressScreen) -> bool:
        """Ask for the next open approval that was not asked before. Returns whether there was one."""
        waiting = {
            step.name for step in steps if step.kind == "approval" and step.state == "waiting_approval"
        }
        if not waiting:
            return False
        for question in await self._backend.approvals.list(run.id):
            key = (run.id, question.no, question.revision)
            if question.status != "requested" or question.step not in waiting or key in self._asked:
                continue
            self._asked.add(key)
            screen.stop()
            try:
                await self._ask_one(question)
            finally:
                screen.resume()
            return True
        return False

    async def _ask_one(self, question: Approval) -> None:
        self._show(question)
        while True:
            text = await self._prompt(question, "Approve? [y/n, Enter: later] ")
            if text is None:
                self._say("another person has answered")
                return
            answer = text.strip().lower()
            if answer in _YES:
                await self._decide(question, "approve", None)
                return
            if answer in _NO:
                why = await self._prompt(question, "Why? [Enter: no reason] ")
                await self._decide(question, "reject", (why or "").strip() or None)
                return
            if not answer:
                bound = f" --digest {question.digest[:12]}" if question.digest else ""
                self._say(f"later: tenure approvals approve {question.run_id} --no {question.no}{bound}")
                return

    def _show(self, question: Approval) -> None:
        lines = [Text(escape_control(question.action), "bold")]
        if question.question is not None:
            body = msgspec.json.format(msgspec.json.encode(question.question), indent=2).decode()
            lines.append(Text(escape_control(body)))
        people = f", {len(question.votes)} of {question.people} approved" if question.people > 1 else ""
        title = f"approval {question.no}: {question.step} (tier {question.tier}{people})"
        self._console.print(
            Panel(
                Text("\n").join(lines), title=Text(escape_control(title)), border_style="cyan", expand=False
            )
        )

    def _say(self, text: str) -> None:
        self._console.print(safe_text(text), soft_wrap=True)

    async def _decide(self, question: Approval, verb: str, reason: str | None) -> None:
        fields: dict[str, Any] = {"digest": question.digest, "revision": question.revision, "reason": reason}
        decide = self._backend.approve if verb == "approve" else self._backend.reject
        try:
            status = await decide(question.run_id, approver=self._approver, no=question.no, **fields)
        except TenureError as refused:
            self._say(f"{refused.code}: {refused.message}. {remedy_for(refused)}")
            return
        more = ": more people are needed, each with their own key, on a server"
        self._say(f"{status}{more if status == 'requested' else ''}")

    async def _prompt(self, question: Approval, text: str) -> str | None:
        """A line from the terminal, or None if the approval was closed in the meantime."""
        self._console.print(Text(text), end="")
        self._console.file.flush()
        reading = asyncio.ensure_future(read_line())
        try:
            while True:
                done, _ = await asyncio.wait((reading,), timeout=LOOK_SECONDS)
                if done:
                    return reading.result()
                if not await self._is_open(question):
                    self._console.print()
                    return None
        finally:
            reading.cancel()

    async def _is_open(self, question: Approval) -> bool:
        rows = await self._backend.approvals.list(question.run_id)
        return any(row.no == question.no and row.status == "requested" for row in rows)


async def read_line() -> str:
    """A line from stdin, empty if it was closed. It can be canceled: no thread is left reading."""
    loop = asyncio.get_running_loop()
    fd = sys.stdin.fileno()
    line: asyncio.Future[str] = loop.create_future()

    def on_readable() -> None:
        if not line.done():
            line.set_result(os.read(fd, 4096).decode(errors="replace"))

    sys.stdout.flush()
    loop.add_reader(fd, on_readable)
    try:
        return await line
    finally:
        loop.remove_reader(fd)
