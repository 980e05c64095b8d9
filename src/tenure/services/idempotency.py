"""Responses to requests with an idempotency key, as their records store them.

Laws:
1. A response is stored as the bytes that were sent. A replay repeats status, Location and body, and is marked as a replay.
2. While a request is being processed, a repeat gets 202, and a different request with the same key gets 409. Afterwards, a different
   request gets 422.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tenure import ids
from tenure.kernel.decide.idempotency import key_refused_error
from tenure.kernel.run_rows import IdempotencyRow
from tenure.store.idempotency import (
    SWEEP_RECORDS_MAX,
    HeldRecord,
    IdempotencyRecords,
    KeyedRequest,
    decode_response,
    encode_response,
)

__all__ = [
    "SWEEP_RECORDS_MAX",
    "HeldRecord",
    "IdempotencyRecords",
    "KeyedRequest",
    "RequestInProcess",
    "StoredResponse",
    "replay_response",
]

IN_PROCESS_RETRY_SECONDS = 1


class RequestInProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The same request is being processed."""

    status: str = "processing"
    run_id: str | None = None
    """The run of the request, if it is known."""


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a request, as it is stored and sent."""

    status: int
    body: bytes
    """JSON."""
    location: str | None = None
    run_id: int | None = None
    """The run that the request created or is about."""
    replayed: bool = False
    retry_after: int | None = None

    @classmethod
    def of(
        cls, value: Any, status: int = 200, *, location: str | None = None, run_id: int | None = None
    ) -> StoredResponse:
        return cls(status=status, body=msgspec.json.encode(value), location=location, run_id=run_id)

    @classmethod
    def stored(cls, record: IdempotencyRow) -> StoredResponse:
        status, location, body = decode_response(record.response or b"")
        return cls(status=status, body=body, location=location, run_id=record.run_id, replayed=True)

    def stores(self) -> bytes:
        """The bytes for a record."""
        return encode_response(self.status, self.body, self.location)

    def headers(self) -> dict[str, str]:
        """The headers besides those of every response."""
        headers: dict[str, str] = {}
        if self.location is not None:
            headers["Location"] = self.location
        if self.replayed:
            headers["Idempotency-Replayed"] = "true"
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        return headers


def replay_response(record: IdempotencyRow, request_hash: bytes) -> StoredResponse:
    """The response to a request whose key has a record (law 2)."""
    if record.request_hash != request_hash:
        raise key_refused_error(record)
    if record.status == "processing":
        run = None if record.run_id is None else ids.run_text(record.run_id)
        body = msgspec.json.encode(RequestInProcess(run_id=run))
        return StoredResponse(
            status=202, body=body, run_id=record.run_id, retry_after=IN_PROCESS_RETRY_SECONDS
        )
    return StoredResponse.stored(record)
