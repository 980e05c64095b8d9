"""The response to a delivery, as it is sent and as the record of the delivery's key stores it."""

from __future__ import annotations

from tenure.services.idempotency import StoredResponse
from tenure.shapes.hooks import DeliveryStatus


def delivery_response(received: DeliveryStatus) -> StoredResponse:
    """The answer to a delivery: 201 with its run, 202 while it is processed, 200 if it created no run or repeats an earlier one."""
    fresh = received.run_id is not None and not received.duplicate
    under_way = received.status == "received" or (received.status == "duplicate" and received.run_id is None)
    status = 202 if under_way else 201 if fresh else 200
    return StoredResponse.of(
        received, status, location=None if received.run_id is None else f"/runs/{received.run_id}"
    )
