"""The result of a run, for callers that wait for it.

Laws:
1. A waiting caller holds no database connection. One query serves many callers, and a run that ends in this process wakes its callers
   immediately.
2. A run that was restarted is followed to its last successor.
3. The status for a failed run depends on the failure: 502 if another service could not be reached, 504 if the run took too long,
   otherwise 500, whatever the status of its code is. The response is not retryable. A user's own code becomes STEP_FAILED with that code
   in the details. A canceled run is 409.
4. An agent run has the codes of its document's section 5.3: AGENT_TIMEOUT for a run or step that took too long, INTERNAL_ERROR for all that the
   map does not name. The details have the reason.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from tenure import ids
from tenure.artifacts import is_reference
from tenure.errors import CODES, Detail, TenureError
from tenure.kernel.run_rows import CLOSED_RUN
from tenure.reads import status_document
from tenure.reads.payloads import decode_payload
from tenure.reads.status_batch import StatusBatcher
from tenure.sdk import codec
from tenure.services.run_waiters import POLL_SECONDS_MAX, POLL_SECONDS_MIN
from tenure.services.scope import Scope
from tenure.store.run_lists import RunGlance

WAIT_SECONDS_MAX = 30.0
_KEPT_STATUSES = frozenset({502, 504})
_API_CODES = {"STORE_UNAVAILABLE": "UPSTREAM_UNAVAILABLE"}


class RunFailure(msgspec.Struct, frozen=True):
    status: int
    error: TenureError


class UnfinishedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has not ended."""

    id: str
    status: str


class RunOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The output of a run."""

    id: str
    """The run that returned it: the last successor of a restarted run."""
    status: str
    output: Any


async def await_result(
    scope: Scope, run_id: str, wait: float, status_batcher: StatusBatcher, stopping: asyncio.Event
) -> RunOutput | UnfinishedRun | RunFailure:
    """The result of a run, or its status after `wait` seconds or when `stopping` is set."""
    deadline = asyncio.get_running_loop().time() + wait
    number, is_restart = ids.run_int(run_id), False
    while True:
        glance = await _wait_for_end(scope, number, deadline, status_batcher, stopping, is_restart=is_restart)
        if glance is None or glance.status not in CLOSED_RUN:
            return UnfinishedRun(
                id=ids.run_text(number), status="queued" if glance is None else glance.status
            )
        if glance.status != "succeeded":
            return _failure(glance, decode_payload(await scope.read_payload(number, glance.error_ref)))
        body = await scope.read_payload(number, glance.output_ref)
        if body is not None and body.startswith(codec.RESERVED) and not is_reference(body):
            number, is_restart = ids.run_int(codec.decode_restart(body)), True
            continue
        if body is not None and is_reference(body):
            body = await scope.artifacts.get(body)
        return RunOutput(id=ids.run_text(number), status=glance.status, output=decode_payload(body))


async def _wait_for_end(
    scope: Scope,
    number: int,
    deadline: float,
    status_batcher: StatusBatcher,
    stopping: asyncio.Event,
    *,
    is_restart: bool,
) -> RunGlance | None:
    """The run once it has ended, or as it is at the deadline. None: a restart that has not been created yet."""
    loop, pause = asyncio.get_running_loop(), POLL_SECONDS_MIN
    with scope.runtime.waiters.waiting(number) as waiter:
        while True:
            glance: RunGlance | None = None
            try:
                glance = await status_batcher.at(number, scope.tenant)
            except TenureError as refused:
                if not is_restart or refused.code != "RUN_NOT_FOUND":
                    raise
            left = min(pause, deadline - loop.time())
            ended = glance is not None and glance.status in CLOSED_RUN
            if ended or left <= 0 or stopping.is_set():
                return glance
            await waiter.wait(left)
            pause = min(pause * 1.5, POLL_SECONDS_MAX)


def _failure(glance: RunGlance, cause: Any) -> RunFailure:
    reason = glance.reason or "STEP_FAILED"
    reason = _API_CODES.get(reason, reason)
    code = reason if reason in CODES else "STEP_FAILED"
    if glance.profile == status_document.PROFILE:  # law 4
        code = status_document.API_CODES.get(reason, "INTERNAL_ERROR")
    message = f"{ids.run_text(glance.id)} {glance.status} ({reason})"
    details: tuple[Detail, ...] = (Detail("reason", reason),)
    if cause is not None:
        message += f": {cause}"
        details += (Detail("error", str(cause)),)
    if glance.status == "canceled":
        return RunFailure(409, TenureError("RUN_CANCELED", message, details))
    own = CODES[code].status
    return RunFailure(own if own in _KEPT_STATUSES else 500, TenureError(code, message, details))
