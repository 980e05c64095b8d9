"""Keeps cards of open approvals in a tenant's Slack channel up to date.

Laws:
1. It may run in every process: the process that inserts a card's row posts the card, and the process that takes a card updates it
   (`store.slack_cards`).
2. Nothing is posted twice: if it is not known whether a message was posted, it is looked up first by its metadata.
3. A card decides nothing: a click is checked like every other answer, against the current state.
4. The token is a reference in the tenant's Slack hook. It is resolved for each request, and no answer or log contains it.
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
from tenure.kernel.governance_rows import SlackCardRow
from tenure.kernel.server_rows import HookRow
from tenure.logs import get_logger
from tenure.orchestrator.periodic_task import PeriodicTask
from tenure.outbound.address_rules import AllowedNetworks
from tenure.outbound.http import send_request
from tenure.outbound.responses import RequestNotSent, ResponseLost
from tenure.outbound.urls import OutboundRoute
from tenure.publish.pauses import delay_after
from tenure.publish.slack_blocks import SlackMessage, card_content_key, render_card, render_reminder
from tenure.reads.approvals import read_approvals
from tenure.secrets import Secrets
from tenure.shapes.approvals import Approval
from tenure.store.port import Store
from tenure.store.slack_cards import SlackCards

log = get_logger(__name__)

SCAN_SECONDS = 1.0
CONCURRENT_CARDS_MAX = 20
SEND_SECONDS_MAX = 10.0
FORGET_SECONDS = 3_600.0
DELAYS_SECONDS = (5.0, 30.0, 120.0, 600.0, 3_600.0)
SILENT_TRIES_MAX = 4
"""Attempts of a card that ended without an outcome."""
SLACK_URL = "https://slack.com/api"
EVENT = "tenure_approval"
LOOKED_THROUGH_MAX = 200
ERROR_CHARS_MAX = 200
UNREADABLE = frozenset({"missing_scope", "not_allowed_token_type", "no_permission"})
"""The channel cannot be read. A second card is better than none."""


class CardSettings(msgspec.Struct, frozen=True):
    channel: str = ""
    token: str = ""


class SlackRefused(Exception):
    def __init__(self, error: str, retry_after: float = 0.0) -> None:
        super().__init__(error)
        self.error = error
        self.retry_after = retry_after


class SlackCardPublisher:
    def __init__(
        self,
        store: Store,
        secrets: Secrets,
        *,
        reach: AllowedNetworks,
        slack_url: str = SLACK_URL,
        public_url: str | None = None,
    ) -> None:
        self._store = store
        self._cards = SlackCards(store)
        self._secrets = secrets
        self._url = slack_url.rstrip("/")
        self._way = OutboundRoute(hosts=(httpx.URL(self._url).netloc.decode(),), reach=reach)
        self._public = public_url
        self._rounds = PeriodicTask("cards", self.look, SCAN_SECONDS, CONCURRENT_CARDS_MAX)
        self._forget_at = time.monotonic() + FORGET_SECONDS

    async def start(self) -> None:
        await self._rounds.__aenter__()

    async def stop(self) -> None:
        """Stop. Other processes continue unfinished work."""
        await self._rounds.__aexit__()

    async def look(self) -> int:
        """Post new cards and update others. Returns the number of cards."""
        hooks = {hook.id: hook for hook in await self._cards.hooks()}
        if not hooks:
            return 0
        if time.monotonic() >= self._forget_at:
            self._forget_at = time.monotonic() + FORGET_SECONDS
            await self._cards.delete_orphans()
        for hook in hooks.values():
            for question in await self._cards.wanted(hook.tenant, CONCURRENT_CARDS_MAX):
                await self._cards.begin(question, hook, _settings(hook).channel)
        taken = await self._cards.take(CONCURRENT_CARDS_MAX)
        await asyncio.gather(*(self._update(one, hooks.get(one.hook_id)) for one in taken))
        return len(taken)

    # ------------------------------------------------------------------------------------------------ one card

    async def _update(self, taken: SlackCardRow, hook: HookRow | None) -> None:
        """Update one card and record the outcome."""
        if hook is None:  # it was disabled, or is no longer its tenant's oldest hook
            await self._cards.put(taken, taken.tries, again_us=us(DELAYS_SECONDS[-1]))
            return
        if taken.tries > SILENT_TRIES_MAX and taken.error is None:
            # An attempt is counted before it begins, and a failure is recorded: these attempts ended with their process.
            error = f"{taken.tries - 1} attempts ended without a recorded outcome"
            await self._cards.put(msgspec.structs.replace(taken, error=error), taken.tries, again_us=None)
            log.error("card_set_aside", tenant=taken.tenant, run=taken.run_id, no=taken.no)
            return
        rows = await self._store.read("approval_detail", taken.run_id, taken.no)
        if not rows:
            await self._cards.put(taken, taken.tries, again_us=None)
            return
        [view] = await read_approvals(self._store, rows)
        card = msgspec.structs.replace(taken)
        again_us = 0 if view.status == "requested" else None
        try:
            await self._bring_up_to_date(card, view, _settings(hook))
        except (SlackRefused, TenureError, RequestNotSent, ResponseLost) as fault:
            problem = fault.code if isinstance(fault, TenureError) else str(fault)
            log.warning(
                "card_failed", tenant=taken.tenant, approval=view.id, tries=taken.tries, error=problem
            )
            card.error = problem[:ERROR_CHARS_MAX]
            if view.status == "requested" or card.ts is not None or isinstance(fault, ResponseLost):
                wait = fault.retry_after if isinstance(fault, SlackRefused) else 0.0
                again_us = us(max(delay_after(taken.tries, DELAYS_SECONDS), wait))
        else:
            card.tries = 0
            card.error = None
        await self._cards.put(card, taken.tries, again_us=again_us)

    async def _bring_up_to_date(self, row: SlackCardRow, view: Approval, settings: CardSettings) -> None:
        """Send what is missing. `row` is updated after each message, so that it is right even if the next one fails."""
        may_be_posted = row.tries > 1
        link = None if self._public is None else f"{self._public.rstrip('/')}/approvals/{view.id}"
        mark = _mark(view.id, "card")
        body = _body(row.channel, render_card(view, link), mark)
        if row.ts is None and may_be_posted:
            row.ts = await self._find_posted(row, settings, mark, {})
        if row.ts is None:
            row.ts = str((await self._request(settings, row.tenant, "chat.postMessage", body)).get("ts"))
        elif row.shown != card_content_key(view):
            await self._request(settings, row.tenant, "chat.update", {**body, "ts": row.ts})
        row.shown = card_content_key(view)
        if view.reminded_at is not None and not row.reminded and view.status == "requested":
            mark = _mark(view.id, "reminder")
            thread = {"thread_ts": row.ts}
            if not may_be_posted or await self._find_posted(row, settings, mark, thread) is None:
                body = {**_body(row.channel, render_reminder(view), mark), **thread}
                await self._request(settings, row.tenant, "chat.postMessage", body)
            row.reminded = True

    async def _find_posted(
        self, row: SlackCardRow, settings: CardSettings, mark: dict[str, Any], thread: dict[str, str]
    ) -> str | None:
        """The timestamp of a message that may have been posted (law 2), among the newest messages."""
        body = {"channel": row.channel, "include_all_metadata": "true", "limit": str(LOOKED_THROUGH_MAX)}
        method = "conversations.history"
        if thread:
            method, body["ts"] = "conversations.replies", thread["thread_ts"]
        try:
            reply = await self._request(settings, row.tenant, method, body)
        except SlackRefused as refused:
            if refused.error in UNREADABLE:
                return None
            raise
        messages = reply.get("messages")
        for one in messages if isinstance(messages, list) else ():
            if isinstance(one, dict) and one.get("metadata") == mark:
                return str(one.get("ts"))
        return None

    async def _request(
        self, settings: CardSettings, tenant: str, method: str, body: dict[str, Any]
    ) -> dict[str, Any]:
        """One request to Slack: its answer, or SlackRefused."""
        token = self._secrets.resolve(settings.token, tenant).decode("latin-1")
        reads = method.startswith(
            "conversations."
        )  # methods that read take a query, methods that write take JSON
        answer = await send_request(
            "GET" if reads else "POST",
            f"{self._url}/{method}{f'?{urlencode(body)}' if reads else ''}",
            self._way,
            deadline=clock.boot_seconds() + SEND_SECONDS_MAX,
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json; charset=utf-8"},
            content=b"" if reads else msgspec.json.encode(body),
        )
        reply = answer.json()
        if answer.status == 200 and isinstance(reply, dict) and reply.get("ok") is True:
            return reply
        error = reply.get("error") if isinstance(reply, dict) else None
        waits = answer.headers.get("retry-after", "")
        raise SlackRefused(
            error if isinstance(error, str) and error.isidentifier() else f"HTTP {answer.status}",
            float(waits) if waits.isdigit() and len(waits) < 6 else 0.0,
        )


def _settings(hook: HookRow) -> CardSettings:
    return msgspec.json.decode(hook.settings, type=CardSettings)


def _mark(approval_id: str, what: str) -> dict[str, Any]:
    """The invisible metadata by which a message is found."""
    return {"event_type": EVENT, "event_payload": {"approval": approval_id, "what": what}}


def _body(channel: str, message: SlackMessage, mark: dict[str, Any]) -> dict[str, Any]:
    return {
        "channel": channel,
        "text": message.text,
        "blocks": message.blocks,
        "metadata": mark,
        "unfurl_links": False,
        "unfurl_media": False,
    }
