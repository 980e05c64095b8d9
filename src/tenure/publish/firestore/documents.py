"""The documents of a run, as the mirror writes them.

Laws:
1. Their contents are those of `reads.run_documents`: the API and the mirror show the same.
2. Each document has the version of its run (`mirrorVersion`): the number of the run's changes, and of the changes of the runs that undo
   it. It never decreases, so a lower version is older.
3. The id of an idempotency document holds the tenant and the source of its key: two tenants may use the same key.
"""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec

from tenure import ids
from tenure.kernel.run_rows import RunRow
from tenure.publish.firestore.values import document_id, encode_fields, encode_payload
from tenure.reads.run_documents import PROFILE, read_document
from tenure.reads.runs import RunReader
from tenure.store.port import Store
from tenure.store.transactions import read_first

RUNS, IDEMPOTENCY = "gwi_runs", "gwi_idempotency"
BELOW = ("steps", "checkpoints")
VERSION, DIGEST, KEY_DOCUMENT = "mirrorVersion", "mirrorDigest", "mirrorKeyDocument"
_PAYLOADS = frozenset({"result", "input", "output", "response"})


class MirrorDocument(msgspec.Struct, frozen=True):
    path: str
    """Below the database's documents, such as `gwi_runs/run_…/steps/plan`."""
    fields: dict[str, Any]
    """In Firestore's typed JSON, with version and digest."""
    version: int
    digest: str


def run_path(run_id: int) -> str:
    return f"{RUNS}/{ids.run_text(run_id)}"


async def read_mirror_documents(store: Store, run_id: int) -> list[MirrorDocument] | None:
    """A run's documents, its own last; None if the run does not exist."""
    run = await read_first(store, RunRow, "get_run", run_id)
    if run is None:
        return None
    version = run.version
    # The version is read before the contents: contents may be newer than their version, and are then written again.
    for found in await store.read("undos_of", run_id) if run.receipts else ():
        undo = await read_first(store, RunRow, "get_run", found.run_id)
        version += 0 if undo is None else undo.version
    reader, path = RunReader(store, None), run_path(run_id)
    documents = []
    for kind in BELOW:
        for part in await read_document(reader, store, run_id, PROFILE, kind):
            name = part.id if kind == "steps" else part.step_id
            documents.append(_make(f"{path}/{kind}/{document_id(name)}", part, version))
    key_path = None
    for part in await read_document(reader, store, run_id, PROFILE, "idempotency"):
        key_path = f"{IDEMPOTENCY}/{document_id(part.tenant_id, part.source, part.key)}"
        documents.append(_make(key_path, part, version))
    whole = await read_document(reader, store, run_id, PROFILE)
    documents.append(_make(path, whole, version, {} if key_path is None else {KEY_DOCUMENT: key_path}))
    return documents


def _make(path: str, part: Any, version: int, more: dict[str, str] | None = None) -> MirrorDocument:
    plain = msgspec.to_builtins(part, builtin_types=(datetime,))
    values = {name: encode_payload(value) if name in _PAYLOADS else value for name, value in plain.items()}
    fields = encode_fields({**values, **(more or {})})
    digest = sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()
    return MirrorDocument(
        path, {**fields, **encode_fields({VERSION: version, DIGEST: digest})}, version, digest
    )
