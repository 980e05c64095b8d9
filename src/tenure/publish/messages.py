"""What a webhook says, and how its receiver knows that it is from us.

Laws:
1. A body is a CloudEvents 1.0 event in JSON. It is made once: every try sends the same bytes under the same id.
2. It is signed as Standard Webhooks has it: HMAC-SHA256 over `id.timestamp.body`, with a timestamp of the try.
3. Like the feed it is made from, it holds ids, states and numbers: whoever wants more asks for it with a key.
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
from tenure.kernel.model import CONDITION_FALSE
from tenure.kernel.news import APPROVAL, PROPOSAL, REMINDER, STATUS, STEP, News
from tenure.kernel.service import Notice

CONTENT_TYPE = "application/cloudevents+json"
SOURCE = "/tenure"
_PREFIX = b"whsec_"


class Happening(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The `data` of an event: what its type says is there."""

    run_id: str
    workflow: str
    profile: str
    status: str | None = None
    """In the words of the run's profile."""
    state: str | None = None
    """The same in the kernel's words."""
    step: int | None = None
    """How many steps are done by now."""
    skipped: list[dict[str, str]] | None = None
    """Steps that were skipped just now, because their condition was false: `name` and `reason`."""
    approval_id: str | None = None
    proposal_id: str | None = None


class CloudEvent(msgspec.Struct, kw_only=True):
    """An event as it is sent."""

    specversion: str = "1.0"
    id: str
    source: str
    type: str
    subject: str
    time: datetime
    datacontenttype: str = "application/json"
    data: Happening


def source_of(tenant: str) -> str:
    """Where a tenant's events come from."""
    return f"{SOURCE}/{tenant}"


def body_of(news: News, at_us: int) -> bytes:
    """A piece of news as it is sent. Its id says what it is within its run: a position in the feed would tell how much others do."""
    told = news.told
    more: dict[str, Any] = {}
    if news.type == STATUS:
        more = {"status": news.word, "state": told.status}
    elif news.type == STEP:
        more = {"step": told.steps}
        if told.skipped:
            more["skipped"] = [{"name": name, "reason": CONDITION_FALSE} for name in told.skipped]
    elif news.type == PROPOSAL:
        more = {"proposal_id": news.question}
    elif news.type in (APPROVAL, REMINDER):
        more = {"approval_id": news.question}
    event = CloudEvent(
        id=f"{news.run}-{told.seq}-{news.type}" + (f"-{news.no}" if news.no else ""),
        source=source_of(told.tenant),
        type=news.type,
        subject=news.run,
        time=datetime.fromtimestamp(at_us / 1e6, UTC),
        data=Happening(run_id=news.run, workflow=told.workflow, profile=told.profile, **more),
    )
    return msgspec.json.encode(event)


def message_id(notice: Notice) -> str:
    """The `webhook-id`: the same in every try, another one for every subscription."""
    return f"{notice.subscription}_{sha256(notice.body).hexdigest()[:32]}"


def key_of(secret: bytes) -> bytes:
    """The key in a secret: as Standard Webhooks writes it (`whsec_` and base64), or the bytes themselves."""
    if not secret.startswith(_PREFIX):
        return secret
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not key:  # it would prove nothing
        raise TenureError("SECRET_UNAVAILABLE", "what follows whsec_ is not base64")
    return key


def headers_of(notice: Notice, secret: bytes, at_us: int, trace: str | None = None) -> dict[str, str]:
    """What a try is sent with; `trace` is the run's."""
    id_, at = message_id(notice), str(at_us // 1_000_000)
    signed = hmac.digest(key_of(secret), b"%b.%b.%b" % (id_.encode(), at.encode(), notice.body), "sha256")
    traced = {} if trace is None else {"traceparent": trace}
    return {
        **traced,
        "content-type": CONTENT_TYPE,
        "user-agent": "tenure-webhooks",
        "webhook-id": id_,
        "webhook-timestamp": at,
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }
