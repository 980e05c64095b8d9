"""The messages of lease holders over HTTP, one by one and in batches; `services.runners` carries them out.

Law: messages of one lease are carried out in the order of the batch. If one fails with a retryable error, those after it fail too, so
that they can be repeated together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any

import msgspec

from tenure.clock import to_micros
from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.kernel.lease_types import LeaseKey, LeaseReply
from tenure.kernel.registry_rows import LogLineRow
from tenure.limits import ROWS_DECIDED_ON_LOOP_MAX
from tenure.server.error_responses import to_tenure_error
from tenure.services.identity.principals import Principal
from tenure.services.plans import assign_queues
from tenure.services.runners.credentials import LeaseCredential
from tenure.services.runners.leases import RunnerLeases
from tenure.work_pool import run_in_pool
from tenure.worker import protocol as p
from tenure.worker.protocol_codec import REPLY, decode_message, format_lease_id, parse_lease_id


class RunnerMessages:
    """Decodes messages into commands, and encodes the replies."""

    def __init__(self, leases: RunnerLeases) -> None:
        self._leases = leases

    async def handle(self, credential: LeaseCredential, message: p.RunnerMessage) -> p.MessageReply:
        """Carry out one message."""
        if isinstance(message, p.LogMessage):
            if len(message.lines) > p.LINES_MAX:
                raise TenureError(
                    "INVALID_INPUT",
                    f"a log message has at most {p.LINES_MAX} lines, not {len(message.lines)}",
                )
            return REPLY.encode(
                await self._leases.log(credential, message.seq, partial(_log_lines, credential, message))
            )
        if isinstance(message, p.CompleteMessage) and len(message.plan or ()) > ROWS_DECIDED_ON_LOOP_MAX:
            command = await run_in_pool(self._decode, credential, message)
        else:
            command = self._decode(credential, message)
        return REPLY.encode(await self._leases.send(credential, command))

    def _decode(self, credential: LeaseCredential, message: p.RunnerMessage) -> c.LeaseCommand:
        key = (credential.run_id, credential.idx, credential.n)
        given = {
            "run_id": credential.run_id,
            "idx": credential.idx,
            "n": credential.n,
            "tenant": credential.tenant,
            "context": c.Context(f"worker:{credential.owner}", "system", format_lease_id(*key)),
            "new_id": partial(self._leases.new_run_id, credential.tenant),
        }
        command = decode_message(message, given)
        if isinstance(command, c.Complete) and command.plan:
            return msgspec.structs.replace(command, plan=assign_queues(command.plan))
        return command

    async def handle_batch(self, who: Principal, messages: list[Any]) -> list[p.MessageReply]:
        """Carry out a batch: one reply each, in order; see the law above."""
        answers: list[p.MessageReply | None] = [None] * len(messages)
        by_lease: dict[str, list[int]] = {}
        for at, message in enumerate(messages):
            by_lease.setdefault(message.lease, []).append(at)
        keys: dict[str, LeaseKey] = {}
        for lease in by_lease:
            try:
                keys[lease] = parse_lease_id(lease)
            except TenureError:
                continue  # it is refused below
        await self._leases.credentials.load(keys.values())
        submitted: list[tuple[int, asyncio.Future[LeaseReply]]] = []
        in_order: list[Awaitable[None]] = []
        for lease, places in by_lease.items():
            key = keys.get(lease)
            future = self._submit(who, key, messages[places[0]]) if len(places) == 1 else None
            if future is None:
                in_order.append(self._handle_in_order(who, key, messages, places, answers))
            else:
                submitted.append((places[0], future))
        if in_order:
            await asyncio.gather(*in_order)
        for at, future in submitted:
            try:
                answers[at] = REPLY.encode(await future)
            except Exception as fault:
                answers[at] = _refuse(fault)
        return [answer for answer in answers if answer is not None]

    def _submit(
        self, who: Principal, key: LeaseKey | None, message: Any
    ) -> asyncio.Future[LeaseReply] | None:
        """Submit the only message of a lease without a task, if it needs nothing but a commit."""
        if key is None or isinstance(message, p.LogMessage | p.StartChildMessage | p.RunningMessage):
            return None
        if isinstance(message, p.CompleteMessage) and message.plan is not None:
            return None
        try:
            return self._leases.submit(self._decode(self._check_token(who, key, message.token), message))
        except TenureError:
            return None  # `_handle_in_order` reports the error

    async def _handle_in_order(
        self,
        who: Principal,
        key: LeaseKey | None,
        messages: list[Any],
        places: list[int],
        answers: list[p.MessageReply | None],
    ) -> None:
        for place, at in enumerate(places):
            message = messages[at]
            try:
                if key is None:
                    raise TenureError("UNAUTHENTICATED")
                answers[at] = await self.handle(self._check_token(who, key, message.token), message)
            except Exception as fault:
                answers[at] = refused = _refuse(fault)
                if refused.error is not None and refused.error.retryable:
                    for later in places[place + 1 :]:
                        answers[later] = refused
                    return

    def _check_token(self, who: Principal, key: LeaseKey, token: str) -> LeaseCredential:
        credential = self._leases.credentials.check(key, token)
        if credential.tenant != who.tenant:
            raise TenureError("UNAUTHENTICATED")
        return credential


def _refuse(fault: Exception) -> p.MessageReply:
    error = to_tenure_error(fault)
    refusal = p.MessageFault(code=error.code, message=error.message, retryable=error.retryable)
    return p.MessageReply(state="error", cancel=error.code == "RUN_CANCELING", error=refusal)


def _log_lines(
    credential: LeaseCredential, message: p.LogMessage, now_us: int, late: bool
) -> list[LogLineRow]:
    mark = {"late": True} if late else {}
    return [
        LogLineRow(
            credential.run_id,
            at=now_us if entry.at is None else to_micros(entry.at),
            step=entry.step or credential.step,
            level=entry.level,
            text=entry.text,
            fields=msgspec.json.encode(entry.fields | mark).decode(),
        )
        for entry in message.lines
    ]
