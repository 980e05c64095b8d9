"""Firestore's REST API, as far as the mirror uses it, and the credentials for it.

Laws:
1. A commit is atomic. A failed precondition is `FirestoreConflict`, and nothing was written.
2. `FirestoreRefused` means that these documents are refused, and would be refused again. Every other failure is `FirestoreUnavailable`,
   also a missing permission: it passes when somebody repairs it, and nothing may be left out because of it.
3. The credentials are a reference to a service account's key, and are read at each use. Access tokens are kept until shortly before they
   expire. The emulator needs none.
4. Requests go only to the host of the database and to the token endpoint.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from tenure import clock
from tenure.clock import SECOND_US, HostClock
from tenure.errors import TenureError
from tenure.outbound.address_rules import AllowedNetworks
from tenure.outbound.http import REQUEST_BYTES_MAX, send_request
from tenure.outbound.responses import HttpResponse, RequestNotSent, ResponseLost
from tenure.outbound.urls import OutboundRoute
from tenure.secrets import resolve_own

FIRESTORE_URL = "https://firestore.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/datastore"
REQUEST_SECONDS = 20.0
TOKEN_SECONDS = 3_600
TOKEN_MARGIN_SECONDS = 120.0
LIST_PAGE = 300
_CONFLICT_STATUSES = "FAILED_PRECONDITION ALREADY_EXISTS ABORTED NOT_FOUND"
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class FirestoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    project: str
    database: str = "(default)"
    credentials: str | None = None
    """The reference of a service account's key file (JSON), such as `file:/run/secrets/firestore.json`."""
    emulator: str | None = None
    """`host:port` of an emulator, which is used instead and needs no credentials."""
    url: str = FIRESTORE_URL
    reach: AllowedNetworks = AllowedNetworks()
    """Networks besides the public ones that requests may go to."""


class ServiceAccountKey(msgspec.Struct, frozen=True):
    """The part of a service account's key file that is needed."""

    client_email: str
    private_key: str
    private_key_id: str = ""
    token_uri: str = "https://oauth2.googleapis.com/token"


class StoredDocument(msgspec.Struct, frozen=True):
    """A document as Firestore has it."""

    path: str
    fields: dict[str, Any]
    """In typed JSON."""
    update_time: str


class FirestoreRead(msgspec.Struct, frozen=True):
    found: dict[str, StoredDocument]
    """By path."""
    read_at: datetime
    """By Firestore's clock."""


class FirestoreConflict(Exception):
    """A precondition failed: somebody else has written the document."""


class FirestoreUnavailable(Exception):
    """Firestore cannot be reached or used now."""


class FirestoreRefused(Exception):
    """Firestore refuses the documents of a request, and would refuse them again."""


class FirestoreClient:
    def __init__(self, settings: FirestoreSettings) -> None:
        self._settings = settings
        self._url = settings.url if settings.emulator is None else f"http://{settings.emulator}"
        self._root = f"projects/{settings.project}/databases/{settings.database}/documents"
        self._token, self._token_until = "", 0.0

    def name(self, path: str) -> str:
        """The resource name of a document."""
        return f"{self._root}/{path}"

    async def get(self, paths: Iterable[str], mask: Iterable[str]) -> FirestoreRead:
        """Read some fields of documents; missing ones are left out."""
        asked = {"documents": [self.name(path) for path in paths], "mask": {"fieldPaths": list(mask)}}
        answer = await self._send("POST", ":batchGet", asked)
        rows = [row for row in answer if isinstance(row, dict)] if isinstance(answer, list) else []
        found = (self._stored(row["found"]) for row in rows if "found" in row)
        times = [row["readTime"] for row in rows if "readTime" in row]
        if not times:
            raise FirestoreUnavailable("a read was answered without its time")
        return FirestoreRead({one.path: one for one in found}, datetime.fromisoformat(max(times)))

    async def commit(self, writes: list[dict[str, Any]]) -> list[str]:
        """Write atomically (law 1). Returns the update time of each write; empty for a deletion."""
        answer = await self._send("POST", ":commit", {"writes": writes})
        results = answer.get("writeResults", []) if isinstance(answer, dict) else []
        committed = answer.get("commitTime", "") if isinstance(answer, dict) else ""
        if len(results) != len(writes):
            raise FirestoreUnavailable("a commit was answered without its results")
        # A write that changes nothing has no time of its own.
        return [str(result.get("updateTime") or committed) for result in results]

    async def list_page(
        self, collection: str, mask: Iterable[str], page: str = ""
    ) -> tuple[list[StoredDocument], str]:
        """A page of a collection with some of its fields, and the token of the next page."""
        given = [("pageSize", str(LIST_PAGE)), *(("mask.fieldPaths", name) for name in mask)]
        query = urlencode([*given, ("pageToken", page)] if page else given)
        answer = await self._send("GET", f"/{quote(collection)}?{query}")
        rows = answer.get("documents", []) if isinstance(answer, dict) else []
        return [self._stored(row) for row in rows], str(answer.get("nextPageToken", ""))

    def update(self, path: str, fields: dict[str, Any], known: str | None) -> dict[str, Any]:
        """A write of a whole document. `known` is its last update time; None if it does not exist."""
        expected: dict[str, Any] = {"exists": False} if known is None else {"updateTime": known}
        return {"update": {"name": self.name(path), "fields": fields}, "currentDocument": expected}

    def delete(self, path: str) -> dict[str, Any]:
        return {"delete": self.name(path)}

    def _stored(self, row: dict[str, Any]) -> StoredDocument:
        path = str(row["name"]).partition("/documents/")[2]
        return StoredDocument(path, row.get("fields", {}), str(row.get("updateTime", "")))

    # ---------------------------------------------------------------------------------------------- requests

    async def _send(self, method: str, where: str, body: Any = None) -> Any:
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {await self._access_token()}",
        }
        content = b"" if body is None else msgspec.json.encode(body)
        url = f"{self._url}/v1/{quote(self._root, safe='/()')}{where}"
        answer = await self._request(method, url, headers, content)
        if answer.status == 401:
            self._token_until = 0.0
        if 200 <= answer.status < 300:
            return answer.json()
        raise _fault(answer)

    async def _request(self, method: str, url: str, headers: dict[str, str], content: bytes) -> HttpResponse:
        settings = self._settings
        plain = url.startswith("http:")
        reach = AllowedNetworks(True, True) if settings.emulator is not None and plain else settings.reach
        route = OutboundRoute(hosts=(urlsplit(url).netloc,), reach=reach)
        deadline = clock.boot_seconds() + REQUEST_SECONDS
        if len(content) > REQUEST_BYTES_MAX:
            raise FirestoreRefused(
                f"a request has {len(content)} bytes; at most {REQUEST_BYTES_MAX} are sent"
            )
        try:
            return await send_request(method, url, route, deadline=deadline, headers=headers, content=content)
        except (RequestNotSent, ResponseLost) as fault:
            raise FirestoreUnavailable(str(fault)) from fault

    async def _access_token(self) -> str:
        """A token for requests (law 3)."""
        if self._settings.emulator is not None:
            return "owner"
        if clock.boot_seconds() < self._token_until:
            return self._token
        if self._settings.credentials is None:
            raise FirestoreUnavailable("no credentials are configured: name a service account's key file")
        try:
            key = msgspec.json.decode(resolve_own(self._settings.credentials), type=ServiceAccountKey)
        except TenureError as missing:
            raise FirestoreUnavailable(missing.message) from missing
        except (msgspec.DecodeError, msgspec.ValidationError):
            raise FirestoreUnavailable("the credentials are not the key file of a service account") from None
        began = clock.boot_seconds()
        form = {"grant_type": _GRANT, "assertion": sign_assertion(key, HostClock().now_us() // SECOND_US)}
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = await self._request("POST", key.token_uri, headers, urlencode(form).encode())
        body = answer.json()
        if answer.status != 200 or not isinstance(body, dict) or not body.get("access_token"):
            raise _fault(answer)
        self._token = str(body["access_token"])
        lifetime = float(body.get("expires_in", TOKEN_SECONDS))
        self._token_until = began + max(lifetime - TOKEN_MARGIN_SECONDS, 0.0)
        return self._token


def sign_assertion(key: ServiceAccountKey, now_seconds: int) -> str:
    """The signed statement that the token endpoint exchanges for an access token."""
    # Late: it loads cryptography, and most processes mirror nothing.
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

    try:
        private = serialization.load_pem_private_key(key.private_key.encode(), None)
    except (ValueError, TypeError):
        raise FirestoreUnavailable("the private key of the service account cannot be read") from None
    if not isinstance(private, RSAPrivateKey):
        raise FirestoreUnavailable("the private key of the service account is not an RSA key")
    header = {"alg": "RS256", "typ": "JWT", "kid": key.private_key_id}
    claims = {
        "iss": key.client_email,
        "scope": SCOPE,
        "aud": key.token_uri,
        "iat": now_seconds,
        "exp": now_seconds + TOKEN_SECONDS,
    }
    signed = b".".join(_base64(msgspec.json.encode(part)) for part in (header, claims))
    signature = private.sign(signed, PKCS1v15(), hashes.SHA256())
    return b".".join((signed, _base64(signature))).decode()


def _base64(body: bytes) -> bytes:
    return base64.urlsafe_b64encode(body).rstrip(b"=")


def _fault(answer: HttpResponse) -> Exception:
    """The meaning of an answer that is not a success (law 2)."""
    body = answer.json()
    body = body[0] if isinstance(body, list) and body else body
    error = body.get("error") if isinstance(body, dict) else None
    status = str(error.get("status", "")) if isinstance(error, dict) else str(error or "")
    message = str(error.get("message", ""))[:300] if isinstance(error, dict) else ""
    text = f"Firestore answered {answer.status} {status}: {message}"
    if (status and status in _CONFLICT_STATUSES.split()) or answer.status == 409:
        return FirestoreConflict(text)
    return FirestoreRefused(text) if status == "INVALID_ARGUMENT" else FirestoreUnavailable(text)
