"""Registered workflows and their versions."""

from __future__ import annotations

from tenure.errors import TenureError
from tenure.kernel.registry_rows import WorkflowRow
from tenure.limits import PAYLOAD_BYTES_MAX
from tenure.store.port import RowType, Store
from tenure.store.transactions import check_name, read_rows, write_rows

READS: dict[str, RowType] = {
    "workflows_of": WorkflowRow,  # () ; tenant, after_name, limit -> by name and version
    "workflows_page": WorkflowRow,  # () ; tenant, everybody, after_name, after_version, limit -> likewise, with
    # those for everybody, unless the tenant has that name and version
    "workflow_named": WorkflowRow,  # () ; tenant, name -> all its versions, newest first
}
WRITES: dict[str, RowType] = {"save_workflow": WorkflowRow}


async def save_workflow(
    store: Store,
    tenant: str,
    name: str,
    version: str,
    kind: str,
    definition: str,
    digest: str,
    *,
    registered_by: str = "",
    unconfirmed: str = "",
) -> WorkflowRow:
    """Register a version of a workflow; registering the same again changes nothing.

    The definition of a `code` workflow may be renewed. Another text under the version of a `declared` one, or another
    kind, is WORKFLOW_CHANGED. The people in `unconfirmed` (`id id`) are involved in its runs until a second person confirms it.
    """
    check_name("a workflow's name", name)
    check_name("a workflow's version", version)
    if len(definition.encode()) > PAYLOAD_BYTES_MAX:
        raise TenureError(
            "PAYLOAD_TOO_LARGE", f"the definition of {name!r} has more than {PAYLOAD_BYTES_MAX} bytes"
        )
    values = (tenant, name, version, kind, definition, digest, registered_by, unconfirmed)
    await write_rows(store, "save_workflow", *values, timed=True)
    rows = await read_rows(store, WorkflowRow, "workflow_named", tenant, name)
    found = next(row for row in rows if row.version == version)
    if found.kind != kind or (kind == "declared" and found.digest != digest):
        raise TenureError(
            "WORKFLOW_CHANGED",
            f"version {version!r} of workflow {name!r} is registered as {found.kind} with the digest"
            f" {found.digest[:12]}; this is {kind} with {digest[:12]}",
        )
    return found
