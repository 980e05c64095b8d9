"""A double of Firestore's REST API: batchGet, commit and lists of documents, and the token endpoint.

    with FirestoreDouble() as firestore:
        ...  # FirestoreSettings(project="p", emulator=firestore.url.removeprefix("http://"))
        firestore.documents["gwi_runs/run_…"].fields

Laws:
1. A commit is atomic: if one precondition fails, nothing is written.
2. Preconditions are enforced: `exists`, and `updateTime` to the microsecond. Times never repeat.
3. Documents are checked like Firestore checks them: typed values, no list in a list, no reserved name or id, at most 1 MiB and 20
   levels.
4. With `account`, requests need an access token that the token endpoint gave for a signed assertion.
"""

from __future__ import annotations

import base64
import secrets
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs

import msgspec

from tenure.testing.doubles.base import Double, DoubleReply, DoubleRequest

DOCUMENT_BYTES_MAX = 1024 * 1024
DEPTH_MAX = 20
WRITES_MAX = 500
_KINDS = frozenset(
    {
        "nullValue",
        "booleanValue",
        "integerValue",
        "doubleValue",
        "timestampValue",
        "stringValue",
        "bytesValue",
        "arrayValue",
        "mapValue",
    }
)


class FirestoreDocument(msgspec.Struct):
    fields: dict[str, Any]
    created: str
    updated: str


class FirestoreRefusal(Exception):
    def __init__(self, code: int, status: str, message: str) -> None:
        """`status` is Firestore's own word, in lower case."""
        super().__init__(message)
        self.reply = DoubleReply(
            code, {"error": {"code": code, "status": status.upper(), "message": message}}
        )


class FirestoreDouble(Double):
    """`account` is the address of a service account, and `public_key` its key as PEM."""

    def __init__(self, *, account: str = "", public_key: bytes = b"", **how: Any) -> None:
        super().__init__(**how)
        self.documents: dict[str, FirestoreDocument] = {}
        """By path, such as `gwi_runs/run_…`."""
        self.history: list[tuple[str, dict[str, Any] | None]] = []
        """Every write in order: path and fields, None for a deletion."""
        self.tokens: set[str] = set()
        self._account, self._public_key = account, public_key
        self._now = datetime(2026, 1, 1, tzinfo=UTC)

    def pass_time(self, seconds: float) -> None:
        """Advance the clock of the double."""
        self._now += timedelta(seconds=seconds)

    def below(self, prefix: str) -> list[str]:
        return sorted(path for path in self.documents if path.startswith(prefix))

    def handle(self, request: DoubleRequest) -> DoubleReply:
        try:
            if request.parts == ("token",):
                return self._give_token(request)
            if self._account and request.headers.get("authorization", "")[7:] not in self.tokens:
                raise FirestoreRefusal(401, "unauthenticated", "the token is missing or has expired")
            root, _, below = "/".join(request.parts).partition("/documents")
            root = f"{root.removeprefix('v1/')}/documents"
            if below == ":batchGet":
                return self._batch_get(root, request.json())
            if below == ":commit":
                return self._commit(root, request.json())
            if request.method == "GET" and below.count("/") % 2 == 1:
                return self._list(root, below.removeprefix("/"), request)
            raise FirestoreRefusal(404, "not_found", "no such method")
        except FirestoreRefusal as refused:
            return refused.reply

    def _tick(self) -> str:
        self._now += timedelta(microseconds=1)
        return self._now.isoformat(timespec="microseconds").replace("+00:00", "Z")

    def _show(self, root: str, path: str, mask: list[str] | None) -> dict[str, Any]:
        found = self.documents[path]
        fields = {name: value for name, value in found.fields.items() if mask is None or name in mask}
        return {
            "name": f"{root}/{path}",
            "fields": fields,
            "createTime": found.created,
            "updateTime": found.updated,
        }

    def _batch_get(self, root: str, asked: dict[str, Any]) -> DoubleReply:
        at, mask = self._tick(), asked.get("mask", {}).get("fieldPaths")
        rows = []
        for name in asked["documents"]:
            path = name.removeprefix(f"{root}/")
            known = path in self.documents
            rows.append(
                {"found": self._show(root, path, mask), "readTime": at}
                if known
                else {"missing": name, "readTime": at}
            )
        return DoubleReply(200, rows)

    def _list(self, root: str, collection: str, request: DoubleRequest) -> DoubleReply:
        depth = collection.count("/") + 1
        paths = [path for path in self.below(f"{collection}/") if path.count("/") == depth]
        paths = [path for path in paths if path > request.first("pageToken")]
        size = int(request.first("pageSize", "20"))
        shown = [self._show(root, path, request.query.get("mask.fieldPaths")) for path in paths[:size]]
        return DoubleReply(
            200, {"documents": shown, "nextPageToken": paths[size - 1] if len(paths) > size else ""}
        )

    def _commit(self, root: str, asked: dict[str, Any]) -> DoubleReply:
        writes = asked["writes"]
        if len(writes) > WRITES_MAX:
            raise FirestoreRefusal(400, "invalid_argument", f"maximum {WRITES_MAX} writes")
        planned: list[tuple[str, dict[str, Any] | None]] = []
        for write in writes:
            fields = write["update"]["fields"] if "update" in write else None
            name = write["update"]["name"] if "update" in write else write["delete"]
            path = name.removeprefix(f"{root}/")
            _check_document(name, path, fields)
            self._check_precondition(path, write.get("currentDocument", {}))
            planned.append((path, fields))
        at = self._tick()
        for path, fields in planned:
            self.history.append((path, fields))
            if fields is None:
                self.documents.pop(path, None)
            else:
                created = self.documents[path].created if path in self.documents else at
                self.documents[path] = FirestoreDocument(fields, created, at)
        results = [{} if fields is None else {"updateTime": at} for _, fields in planned]
        return DoubleReply(200, {"writeResults": results, "commitTime": at})

    def _check_precondition(self, path: str, expected: dict[str, Any]) -> None:
        found = self.documents.get(path)
        if expected.get("exists") is False and found is not None:
            raise FirestoreRefusal(409, "already_exists", f"Document already exists: {path}")
        if expected.get("exists") is True and found is None:
            raise FirestoreRefusal(404, "not_found", f"No document to update: {path}")
        given = expected.get("updateTime")
        if given is not None and (found is None or found.updated != given):
            raise FirestoreRefusal(
                400, "failed_precondition", f"the stored version of {path} does not match {given}"
            )

    def _give_token(self, request: DoubleRequest) -> DoubleReply:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

        assertion = parse_qs(request.body.decode()).get("assertion", [""])[0]
        signed, _, signature = assertion.rpartition(".")
        key = serialization.load_pem_public_key(self._public_key)
        assert isinstance(key, RSAPublicKey)
        try:
            key.verify(_base64(signature), signed.encode(), PKCS1v15(), hashes.SHA256())
            claims = msgspec.json.decode(_base64(signed.partition(".")[2]))
        except (InvalidSignature, msgspec.DecodeError, ValueError):
            return DoubleReply(400, {"error": "invalid_grant"})
        if (claims["iss"], claims["aud"]) != (self._account, f"{self.url}/token"):
            return DoubleReply(400, {"error": "invalid_grant"})
        token = secrets.token_hex(16)
        self.tokens.add(token)
        return DoubleReply(200, {"access_token": token, "expires_in": 3600, "token_type": "Bearer"})


def _base64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _check_document(name: str, path: str, fields: dict[str, Any] | None) -> None:
    parts = path.split("/")
    if len(parts) % 2 or any(
        not part
        or part in (".", "..")
        or (part.startswith("__") and part.endswith("__"))
        or len(part) > 1_500
        for part in parts
    ):
        raise FirestoreRefusal(400, "invalid_argument", f"invalid document name {name}")
    if fields is None:
        return
    if len(msgspec.json.encode(fields)) > DOCUMENT_BYTES_MAX:
        raise FirestoreRefusal(400, "invalid_argument", f"Document {name} exceeds the maximum size")
    _check_fields(fields, 1)


def _check_fields(fields: dict[str, Any], depth: int) -> None:
    for field, value in fields.items():
        if not field or (field.startswith("__") and field.endswith("__")):
            raise FirestoreRefusal(400, "invalid_argument", f"invalid field name {field!r}")
        _check_value(value, depth)


def _check_value(value: Any, depth: int) -> None:
    if depth > DEPTH_MAX or not isinstance(value, dict) or len(value) != 1 or not value.keys() <= _KINDS:
        raise FirestoreRefusal(400, "invalid_argument", "invalid value")
    [(kind, held)] = value.items()
    if kind == "integerValue" and not isinstance(held, str):
        raise FirestoreRefusal(400, "invalid_argument", "an integerValue is a string")
    if kind == "mapValue":
        _check_fields(held.get("fields", {}), depth + 1)
    if kind == "arrayValue":
        for one in held.get("values", ()):
            if "arrayValue" in one:
                raise FirestoreRefusal(400, "invalid_argument", "Nested arrays are not allowed")
            _check_value(one, depth + 1)
