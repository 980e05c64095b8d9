"""The contents and signatures of webhooks.

Laws:
1. A body is a CloudEvents 1.0 event in JSON. It is created once: every attempt sends the same bytes under the same id.
2. It is signed as in Standard Webhooks: HMAC-SHA256 over `id.timestamp.body`, with the timestamp of the attempt.
3. Like the feed it contains ids, states and numbers. For more, receivers use the API with a key.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import msgspec

from tenure.errors import TenureError
from tenure.kernel.notifications import (
    APPROVAL_REMINDER,
    APPROVAL_REQUESTED,
    PROPOSAL_CREATED,
    STATUS_CHANGED,
    STEP_COMPLETED,
    Notification,
)
from tenure.kernel.run_rows import CONDITION_FALSE
from tenure.kernel.server_rows import NoticeRow

CONTENT_TYPE = "application/cloudevents+json"
_PREFIX = b"whsec_"


class WebhookEventData(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The `data` of an event. The event's type determines the fields."""

    run_id: str
    workflow: str
    profile: str
    status: str | None = None
    """In the words of the run's profile."""
    state: str | None = None
    """The same in the kernel's words."""
    step: int | None = None
    skipped: list[dict[str, str]] | None = None
    """Steps that were just skipped because their condition was false: `name` and `reason`."""
    approval_id: str | None = None
    proposal_id: str | None = None


class CloudEvent(msgspec.Struct, kw_only=True):
    specversion: str = "1.0"
    id: str
    source: str
    type: str
    subject: str
    time: datetime
    datacontenttype: str = "application/json"
    data: WebhookEventData


def encode_event(notification: Notification, at_us: int) -> bytes:
    """A notification as it is sent. Its id is unique within its run: a feed position would reveal the activity of other tenants."""
    item = notification.item
    skipped = [{"name": name, "reason": CONDITION_FALSE} for name in item.skipped] or None
    more: dict[str, dict[str, Any]] = {
        STATUS_CHANGED: {"status": notification.word, "state": item.status},
        STEP_COMPLETED: {"step": item.steps, "skipped": skipped},
        PROPOSAL_CREATED: {"proposal_id": notification.question},
        APPROVAL_REQUESTED: {"approval_id": notification.question},
        APPROVAL_REMINDER: {"approval_id": notification.question},
    }
    event = CloudEvent(
        id=f"{notification.run}-{item.seq}-{notification.type}"
        + (f"-{notification.no}" if notification.no else ""),
        source=f"/tenure/{item.tenant}",
        type=notification.type,
        subject=notification.run,
        time=datetime.fromtimestamp(at_us / 1e6, UTC),
        data=WebhookEventData(
            run_id=notification.run,
            workflow=item.workflow,
            profile=item.profile,
            **more.get(notification.type, {}),
        ),
    )
    return msgspec.json.encode(event)


def message_id(notice: NoticeRow) -> str:
    """The `webhook-id`: the same for every attempt, and different for every subscription."""
    return f"{notice.subscription}_{sha256(notice.body).hexdigest()[:32]}"


def decode_signing_secret(secret: bytes) -> bytes:
    """The key in a secret: `whsec_` and base64 as in Standard Webhooks, or the bytes themselves."""
    if not secret.startswith(_PREFIX):
        return secret
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not key:  # an empty key would prove nothing
        raise TenureError("SECRET_UNAVAILABLE", "what follows whsec_ is not base64")
    return key


def signed_headers(notice: NoticeRow, secret: bytes, at_us: int, trace: str | None = None) -> dict[str, str]:
    """The headers of an attempt. `trace` is that of the run."""
    id_, at = message_id(notice), str(at_us // 1_000_000)
    signed = hmac.digest(
        decode_signing_secret(secret), b"%b.%b.%b" % (id_.encode(), at.encode(), notice.body), "sha256"
    )
    return {
        **({} if trace is None else {"traceparent": trace}),
        "content-type": CONTENT_TYPE,
        "user-agent": "tenure-webhooks",
        "webhook-id": id_,
        "webhook-timestamp": at,
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }
