"""The rows that lie beside the runs: schedules, workers, workflows and log lines.

Laws:
1. None of them is a run's state: no decision of the kernel reads them, and no event tells of them.
2. A row's fields are its table's columns, in order; times are whole microseconds by the store's clock.
3. They are written by the store's own small operations (`tenure.store.transactions`), one statement each.
"""

from __future__ import annotations

from typing import ClassVar

from tenure.kernel.run_rows import Row


class ScheduleRow(Row, gc=False):
    """When to start runs of a workflow, and what those runs are."""

    table: ClassVar[str] = "schedule"
    key: ClassVar[tuple[str, ...]] = ("tenant", "name")

    tenant: str
    name: str
    workspace: str
    workflow: str
    code_version: str
    profile: str
    queue: str
    """The queue of the body of a code-first workflow."""
    plan: str | None
    """The steps of a declared run, as JSON; None: a code-first one, whose body is on `queue`."""
    input: bytes | None
    cron: str
    zone: str
    """The time zone that the cron expression is read in."""
    catch_up: str
    """skip, last or all: what becomes of slots that passed while no scheduler ran."""
    catch_up_max: int
    """Of `all`: how many of them at most, the newest."""
    pass_slot: bool
    """Whether the runs' input gets the slot's moment under `slot`."""
    owner: str
    """The opaque id of the person its runs are asked for by."""
    labels: str
    created_at: int = 0
    updated_at: int = 0
    revision: int = 1
    """Grows with every change people make, so that nobody goes on with an older text."""
    paused: bool = False
    next_at: int | None = None
    """The next slot; None while it is paused, and when there is none any more."""
    last_slot: int | None = None
    unconfirmed: str = ""
    """Who has made or changed it since a second person confirmed it, as `id id`."""


SERVER_MARK = "%"
"""What the name of a server begins with, among the workers."""


class WorkerRow(Row, gc=False):
    """A worker that has said lately that it is there."""

    table: ClassVar[str] = "worker"
    key: ClassVar[tuple[str, ...]] = ("name",)

    name: str
    """Of a remote one `@TENANT/NAME`: it serves that tenant only; see `for_tenant`. Of a server `%NAME`: it says here that it is
    there, and does no work of its own."""
    queues: str
    """The queue texts it serves, as a JSON list."""
    slots: int
    version: str
    started_at: int
    seen_at: int

    def for_tenant(self, tenant: str) -> str | None:
        """Its own name, if it serves this tenant."""
        if self.name.startswith(SERVER_MARK):
            return None
        if not self.name.startswith("@"):
            return self.name
        mine = f"@{tenant}/"
        return self.name.removeprefix(mine) if self.name.startswith(mine) else None


class WorkerProcessRow(Row, gc=False):
    """Which process holds the leases of a session; see `tenure.processes`."""

    table: ClassVar[str] = "worker_process"
    key: ClassVar[tuple[str, ...]] = ("session",)

    session: int
    tenant: str
    """Of a remote worker the tenant that it serves; else ''."""
    name: str
    boot_id: str
    namespaces: str
    pid: int
    start_ticks: int
    seen_at: int = 0


class WorkflowRow(Row, gc=False):
    """A version of a workflow that somebody has registered."""

    table: ClassVar[str] = "workflow"
    key: ClassVar[tuple[str, ...]] = ("tenant", "name", "version")

    tenant: str
    name: str
    version: str
    kind: str
    """code, or declared (a document of steps)."""
    definition: str
    """Of a declared one its document; of code what is known of it: parameters, doc, steps, as JSON."""
    digest: str
    registered_at: int
    registered_by: str = ""
    """Whose credential, or which local account, has registered it first."""
    unconfirmed: str = ""
    """The people who stand behind it, as `id id`, until a second person confirms it. Of what workers register: nobody."""


class LogLineRow(Row, gc=False):
    """A line that a run's code has logged. Its number and, where it has none, its moment are given by the store."""

    table: ClassVar[str] = "log_line"
    key: ClassVar[tuple[str, ...]] = ("run_id", "no")

    run_id: int
    no: int = 0
    at: int = 0
    step: str = ""
    """The step's name, or the checkpoint's key."""
    level: str = "info"
    text: str = ""
    fields: str = "{}"
    """Further values, as a JSON object."""


REGISTRY_ROWS: dict[str, type[Row]] = {
    row.table: row for row in (ScheduleRow, WorkerRow, WorkerProcessRow, WorkflowRow, LogLineRow)
}
CATCH_UP_POLICIES = ("skip", "last", "all")


SHARED_TENANT = "*"
"""The tenant of what workers with database access register: they serve everybody."""
