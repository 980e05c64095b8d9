"""Cards: open approvals in a tenant's Slack channel, kept as they are.

Laws:
1. It may run in every process: who writes a card's row posts it, who takes a card brings it up to date (`store.cards`).
2. Nothing is posted twice: where it is not known whether something was posted, it is looked for first, by what the message carries in
   its metadata.
3. What a card shows never decides anything: a click is checked like every other answer, against what is so then.
4. The token is a reference on the tenant's Slack hook; it is read for each request, and no answer or log has it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import urlencode

import httpx
import msgspec

from tenure import clock
from tenure.clock import us
from tenure.errors import TenureError
from tenure.govern.addresses import Reach
from tenure.govern.answers import AnswerLost, NotSent
from tenure.govern.outgoing import Way, send
from tenure.kernel.governance import Card
from tenure.kernel.service import Hook
from tenure.logs import get_logger
from tenure.orchestrator.questions import ApprovalView, views_of
from tenure.orchestrator.rounds import Rounds
from tenure.publish.blocks import Message, card, reminder, shown_of
from tenure.secrets import Secrets
from tenure.store.cards import Cards
from tenure.store.port import Store

log = get_logger(__name__)

LOOK_SECONDS = 1.0
AT_ONCE_MAX = 20
SEND_SECONDS_MAX = 10.0
FORGET_SECONDS = 3_600.0
DELAYS_SECONDS = (5.0, 30.0, 120.0, 600.0, 3_600.0)
SILENT_TRIES_MAX = 4
"""Tries of a card that ended without saying how."""
SLACK_URL = "https://slack.com/api"
EVENT = "tenure_approval"
LOOKED_THROUGH_MAX = 200
ERROR_CHARS_MAX = 200
UNREADABLE = frozenset({"missing_scope", "not_allowed_token_type", "no_permission"})
"""The channel cannot be looked through: then a second card is better than none."""


class CardSettings(msgspec.Struct, frozen=True):
    """What a hook's settings say about cards."""

    channel: str = ""
    token: str = ""


class SlackRefused(Exception):
    """Slack did not do it."""

    def __init__(self, error: str, retry_after: float = 0.0) -> None:
        super().__init__(error)
        self.error = error
        self.retry_after = retry_after


class CardPublisher:
    """See the laws above."""

    def __init__(
        self,
        store: Store,
        secrets: Secrets,
        *,
        reach: Reach,
        slack_url: str = SLACK_URL,
        public_url: str | None = None,
    ) -> None:
        self._store = store
        self._cards = Cards(store)
        self._secrets = secrets
        self._url = slack_url.rstrip("/")
        self._way = Way(hosts=(httpx.URL(self._url).netloc.decode(),), reach=reach)
        self._public = public_url
        self._rounds = Rounds("cards", self.look, LOOK_SECONDS, AT_ONCE_MAX)
        self._forget_at = time.monotonic() + FORGET_SECONDS

    async def start(self) -> None:
        """Begin."""
        await self._rounds.__aenter__()

    async def stop(self) -> None:
        """End; what is under way is taken up by others."""
        await self._rounds.__aexit__()

    async def look(self) -> int:
        """Post what is new, and bring up to date what is not; how much that was."""
        hooks = {hook.id: hook for hook in await self._cards.hooks()}
        if not hooks:
            return 0
        if time.monotonic() >= self._forget_at:
            self._forget_at = time.monotonic() + FORGET_SECONDS
            await self._cards.forget()
        for hook in hooks.values():
            channel = _settings(hook).channel
            for question in await self._cards.wanted(hook.tenant, AT_ONCE_MAX):
                await self._cards.begin(question, hook, channel)
        taken = await self._cards.take(AT_ONCE_MAX)
        await asyncio.gather(*(self._see_to(one, hooks.get(one.hook_id)) for one in taken))
        return len(taken)

    # ------------------------------------------------------------------------------------------------ one card

    async def _see_to(self, taken: Card, hook: Hook | None) -> None:
        """Bring one card up to date, and say how that went."""
        if hook is None:  # it was switched off, or is another tenant's oldest now
            await self._cards.put(taken, taken.tries, again_us=us(DELAYS_SECONDS[-1]))
            return
        if taken.tries > SILENT_TRIES_MAX and taken.error is None:
            # Each try is counted before it begins, and one that fails says why: these ended their process.
            aside = msgspec.structs.replace(
                taken, error=f"{taken.tries - 1} attempts ended without a recorded outcome"
            )
            await self._cards.put(aside, taken.tries, again_us=None)
            log.error("card_set_aside", tenant=taken.tenant, run=taken.run_id, no=taken.no)
            return
        rows = await self._store.read("question_at", taken.run_id, taken.no)
        if not rows:
            await self._cards.put(taken, taken.tries, again_us=None)
            return
        [view] = await views_of(self._store, rows)
        now_has = msgspec.structs.replace(taken)
        try:
            await self._bring_up_to_date(now_has, view, _settings(hook))
        except (SlackRefused, TenureError, NotSent, AnswerLost) as fault:
            said = fault.code if isinstance(fault, TenureError) else str(fault)
            wait = fault.retry_after if isinstance(fault, SlackRefused) else 0.0
            delay = max(DELAYS_SECONDS[min(taken.tries, len(DELAYS_SECONDS)) - 1], wait)
            over = view.status != "requested" and now_has.ts is None and not isinstance(fault, AnswerLost)
            log.warning("card_failed", tenant=taken.tenant, approval=view.id, tries=taken.tries, error=said)
            failed = msgspec.structs.replace(now_has, error=said[:ERROR_CHARS_MAX])
            await self._cards.put(failed, taken.tries, again_us=None if over else us(delay))
            return
        done = msgspec.structs.replace(now_has, tries=0, error=None)
        await self._cards.put(done, taken.tries, again_us=0 if view.status == "requested" else None)

    async def _bring_up_to_date(self, row: Card, view: ApprovalView, settings: CardSettings) -> None:
        """Send what is missing; `row` says afterwards what is there, also where the next thing fails."""
        doubtful = row.tries > 1
        message = card(view, self._link(view))
        mark = _mark(view.id, "card")
        if row.ts is None and doubtful:
            row.ts = await self._posted(row, settings, mark, {})
        if row.ts is None:
            said = await self._ask(
                settings, row.tenant, "chat.postMessage", _body(row.channel, message, mark)
            )
            row.ts = str(said.get("ts"))
            row.shown = shown_of(view)
        elif row.shown != shown_of(view):
            body = {**_body(row.channel, message, mark), "ts": row.ts}
            await self._ask(settings, row.tenant, "chat.update", body)
            row.shown = shown_of(view)
        if view.reminded_at is not None and not row.reminded and view.status == "requested":
            mark = _mark(view.id, "reminder")
            thread = {"thread_ts": row.ts}
            there = await self._posted(row, settings, mark, thread) if doubtful else None
            if there is None:
                body = {**_body(row.channel, reminder(view), mark), **thread}
                await self._ask(settings, row.tenant, "chat.postMessage", body)
            row.reminded = True

    def _link(self, view: ApprovalView) -> str | None:
        return None if self._public is None else f"{self._public.rstrip('/')}/approvals/{view.id}"

    async def _posted(
        self, row: Card, settings: CardSettings, mark: dict[str, Any], thread: dict[str, str]
    ) -> str | None:
        """Slack's name of a message that may have been posted (law 2), among the newest ones."""
        body = {"channel": row.channel, "include_all_metadata": "true", "limit": str(LOOKED_THROUGH_MAX)}
        method = "conversations.history"
        if thread:
            method, body["ts"] = "conversations.replies", thread["thread_ts"]
        try:
            said = await self._ask(settings, row.tenant, method, body)
        except SlackRefused as refused:
            if refused.error in UNREADABLE:
                return None
            raise
        messages = said.get("messages")
        for one in messages if isinstance(messages, list) else ():
            if isinstance(one, dict) and one.get("metadata") == mark:
                return str(one.get("ts"))
        return None

    async def _ask(
        self, settings: CardSettings, tenant: str, method: str, body: dict[str, Any]
    ) -> dict[str, Any]:
        """One request to Slack: what it answered, or SlackRefused."""
        token = self._secrets.resolve(settings.token, tenant).decode("latin-1")
        reads = method.startswith("conversations.")  # what reads takes a query, what writes takes JSON
        answer = await send(
            "GET" if reads else "POST",
            f"{self._url}/{method}{f'?{urlencode(body)}' if reads else ''}",
            self._way,
            deadline=clock.boot_seconds() + SEND_SECONDS_MAX,
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json; charset=utf-8"},
            content=b"" if reads else msgspec.json.encode(body),
        )
        said = answer.json()
        if answer.status == 200 and isinstance(said, dict) and said.get("ok") is True:
            return said
        error = said.get("error") if isinstance(said, dict) else None
        waits = answer.headers.get("retry-after", "")
        raise SlackRefused(
            error if isinstance(error, str) and error.isidentifier() else f"HTTP {answer.status}",
            float(waits) if waits.isdigit() and len(waits) < 6 else 0.0,
        )


def _settings(hook: Hook) -> CardSettings:
    return msgspec.json.decode(hook.settings, type=CardSettings)


def _mark(approval_id: str, what: str) -> dict[str, Any]:
    """What a message of ours carries, unseen, to be found by."""
    return {"event_type": EVENT, "event_payload": {"approval": approval_id, "what": what}}


def _body(channel: str, message: Message, mark: dict[str, Any]) -> dict[str, Any]:
    return {
        "channel": channel,
        "text": message.text,
        "blocks": message.blocks,
        "metadata": mark,
        "unfurl_links": False,
        "unfurl_media": False,
    }
