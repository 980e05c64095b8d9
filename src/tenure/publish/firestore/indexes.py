"""The composite indexes that queries over the mirror need, as `firestore.indexes.json` (section 6.3 of the document)."""

from __future__ import annotations

import msgspec

from tenure.publish.firestore.documents import IDEMPOTENCY, RUNS

INDEXES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (RUNS, (("tenantId", "ASCENDING"), ("status", "ASCENDING"), ("createdAt", "DESCENDING"))),
    (RUNS, (("tenantId", "ASCENDING"), ("repoId", "ASCENDING"), ("createdAt", "DESCENDING"))),
    (RUNS, (("status", "ASCENDING"), ("lastHeartbeatAt", "ASCENDING"))),
    (IDEMPOTENCY, (("status", "ASCENDING"), ("expiresAt", "ASCENDING"))),
)
"""Collection, and the fields with their order. A field without an order in the document is compared for equality."""


def render_indexes() -> str:
    """The contents of `firestore.indexes.json`, for `firebase deploy --only firestore:indexes`."""
    indexes = [
        {
            "collectionGroup": collection,
            "queryScope": "COLLECTION",
            "fields": [{"fieldPath": name, "order": order} for name, order in fields],
        }
        for collection, fields in INDEXES
    ]
    return (
        f"{msgspec.json.format(msgspec.json.encode({'indexes': indexes, 'fieldOverrides': []})).decode()}\n"
    )
