"""The rows of the registries: schedules, workers, workflows and log lines.

Laws:
1. None of them is a run's state: no decision of the kernel reads them, and no event contains them.
2. Times are whole microseconds by the store's clock.
3. The store's own small operations (`tenure.store.transactions`) write them, one statement each.
"""

from __future__ import annotations

from tenure.kernel.row import Row, RunPartRow, table


@table("schedule", key=("tenant", "name"))
class ScheduleRow(Row):
    """When to start runs of a workflow, and with which input."""

    tenant: str
    name: str
    workspace: str
    workflow: str
    code_version: str
    profile: str
    queue: str
    """The queue of the body of a code-first workflow."""
    plan: str | None
    """The steps of a declared run, as JSON. None: the run is code-first, with its body on `queue`."""
    input: bytes | None
    cron: str
    zone: str
    catch_up: str
    """skip, last or all: which of the slots that passed while no scheduler ran are started."""
    catch_up_max: int
    """With `all`: the highest number of such slots; the newest are started."""
    pass_slot: bool
    """Whether the slot's time is added to the input as `slot`."""
    owner: str
    """The opaque id of the requester of its runs."""
    labels: str
    created_at: int = 0
    updated_at: int = 0
    revision: int = 1
    """Grows with every change by people, so that an edit of an older version is noticed."""
    paused: bool = False
    next_at: int | None = None
    """The next slot. None: it is paused, or there is no further slot."""
    last_slot: int | None = None
    unconfirmed: str = ""
    """Who has created or changed it since a second person confirmed it, as `id id`."""


SERVER_MARK = "%"
"""The prefix of a server's name among the workers."""


@table("worker", key=("name",))
class WorkerRow(Row):
    """A worker that has sent a sign of life recently."""

    name: str
    """For a remote worker `@TENANT/NAME`: it serves that tenant only (`for_tenant`). For a server `%NAME`: it claims no
    work."""
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


@table("worker_process", key=("session",))
class WorkerProcessRow(Row):
    """The process that holds the leases of a session; see `tenure.processes`."""

    session: int
    tenant: str
    """For a remote worker the tenant that it serves; otherwise ''."""
    name: str
    boot_id: str
    namespaces: str
    pid: int
    start_ticks: int
    seen_at: int = 0


@table("workflow", key=("tenant", "name", "version"))
class WorkflowRow(Row):
    """A registered version of a workflow."""

    tenant: str
    name: str
    version: str
    kind: str
    """code or declared (a document of steps)."""
    definition: str
    """For a declared workflow its document; for code its parameters, doc and steps, as JSON."""
    digest: str
    registered_at: int
    registered_by: str = ""
    """The credential or local account that registered it first."""
    unconfirmed: str = ""
    """The people involved in it, as `id id`, until a second person confirms it. Empty if a worker registered it."""


@table("log_line", key=("run_id", "no"))
class LogLineRow(RunPartRow):
    """A line that a run's code logged. The store assigns its number and, if it has none, its time."""

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
"""The tenant of workflows that workers with database access register, because those serve every tenant."""
