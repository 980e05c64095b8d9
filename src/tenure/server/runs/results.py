"""What a run came to, waited for.

Laws:
1. Who waits holds no database connection: looks of many are one query, and a run that ends in this process is told at once.
2. A run that was restarted is followed to its last.
3. A failed run is an answer about the run, not about the request: 502 where something behind it could not be reached, 504
   where it took too long, 500 else, whatever its code's own status is; asking again does not help, so it is not retryable.
   A code of the user's own is STEP_FAILED with that code in the details. A canceled run is 409.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from tenure import ids
from tenure.artifacts import is_reference
from tenure.embedded.flows import POLL_SECONDS_MAX, POLL_SECONDS_MIN
from tenure.errors import CODES, Detail, TenureError
from tenure.kernel.model import CLOSED_RUN, Payload
from tenure.orchestrator.step_views import decoded
from tenure.sdk import codec
from tenure.store.listing import Glance

if TYPE_CHECKING:
    from tenure.server.service import Service

WAIT_SECONDS_MAX = 30.0
_BY_STATUS = frozenset({502, 504})
_AT_THE_API = {"STORE_UNAVAILABLE": "UPSTREAM_UNAVAILABLE"}


class Failure(msgspec.Struct, frozen=True):
    """How a run that did not succeed is answered."""

    status: int
    error: TenureError


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is still on its way."""

    id: str
    status: str


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """What a run returned."""

    id: str
    """The run that returned it: of a restarted one its last."""
    status: str
    output: Any


async def outcome(service: Service, tenant: str, run_id: str, wait: float) -> Output | Unfinished | Failure:
    """What a run came to, waiting so many seconds at most."""
    deadline = asyncio.get_running_loop().time() + wait
    number, owed = ids.run_int(run_id), False
    while True:
        glance = await _ended(service, tenant, number, deadline, owed=owed)
        if glance is None or glance.status not in CLOSED_RUN:
            return Unfinished(id=ids.run_text(number), status="queued" if glance is None else glance.status)
        body = await _body(service, glance)
        if glance.status != "succeeded":
            return _failure(glance, decoded(body))
        if body is None or not body.startswith(codec.RESERVED):
            return Output(id=ids.run_text(number), status=glance.status, output=decoded(body))
        if is_reference(body):
            kept = await service.engine.artifacts.get(body)
            return Output(id=ids.run_text(number), status=glance.status, output=decoded(kept))
        number, owed = ids.run_int(codec.restarted_as(body)), True


async def _ended(service: Service, tenant: str, number: int, deadline: float, *, owed: bool) -> Glance | None:
    """The run once it has ended, or as it is when the time is over; None: it is owed by another and not made yet."""
    loop, pause = asyncio.get_running_loop(), POLL_SECONDS_MIN
    with service.engine.ends.waiting(number) as ending:
        while True:
            glance: Glance | None = None
            try:
                glance = await service.looks.at(number, tenant)
            except TenureError as refused:
                if not owed or refused.code != "RUN_NOT_FOUND":
                    raise
            left = min(pause, deadline - loop.time())
            over = glance is not None and glance.status in CLOSED_RUN
            if over or left <= 0 or service.stopping.is_set():
                return glance
            await ending.news(left)
            pause = min(pause * 1.5, POLL_SECONDS_MAX)


async def _body(service: Service, glance: Glance) -> bytes | None:
    ref = glance.output_ref if glance.status == "succeeded" else glance.error_ref
    if ref is None:
        return None
    found: list[Payload] = await service.engine.store.read("payload", glance.id, ref)
    return found[0].body if found else None


def _failure(glance: Glance, said: Any) -> Failure:
    """See law 3."""
    reason = glance.reason or "STEP_FAILED"
    reason = _AT_THE_API.get(reason, reason)
    code = reason if reason in CODES else "STEP_FAILED"
    words = "" if said is None else f": {said}"
    details = [Detail("reason", reason)]
    if said is not None:
        details.append(Detail("error", str(said)))
    canceled = glance.status == "canceled"
    error = TenureError(
        "RUN_CANCELED" if canceled else code,
        f"{ids.run_text(glance.id)} {glance.status} ({reason}){words}",
        tuple(details),
    )
    own = error.spec.status
    return Failure(409 if canceled else own if own in _BY_STATUS else 500, error)
