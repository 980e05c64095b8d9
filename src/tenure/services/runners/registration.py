"""What remote workers register: themselves, and the workflows that they serve."""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from tenure.canonical import canonical
from tenure.errors import TenureError
from tenure.kernel import capability
from tenure.kernel.decide.validation import is_name
from tenure.kernel.registry_rows import WorkerProcessRow, WorkflowRow
from tenure.limits import CLAIM_STEPS_MAX, NAME_CHARS_MAX, WORKER_BEAT_SECONDS
from tenure.services.catalog import load_registered
from tenure.services.identity.principals import Principal
from tenure.services.scope import Runtime
from tenure.store.workers import delete_worker, register_worker
from tenure.store.workflows import save_workflow
from tenure.work_pool import run_in_pool

WORKERS_CACHED_MAX = 10_000
SLOTS_MAX = 100_000


class RunnerRegistration:
    """The remote workers of all tenants, and their workflows."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._registered_until: dict[str, float] = {}

    async def register_worker(
        self,
        who: Principal,
        worker: str,
        capabilities: Sequence[str],
        slots: int,
        *,
        version: str = "",
        process: tuple[int, str, str, int, int] | None = None,
    ) -> None:
        """Record that a worker is alive. Its process counts only for leases of its own tenant.

        `process` has the fields of `WorkerProcessRow`: session, boot id, namespaces, process id and start ticks.
        """
        if not is_name(worker) or len(capabilities) > CLAIM_STEPS_MAX:
            raise TenureError(
                "INVALID_INPUT",
                f"worker must have 1 to 200 printable characters and at most {CLAIM_STEPS_MAX} capabilities",
            )
        for one in capabilities:
            capability.check(one)
        name = _worker_name(who, worker)
        row = None if process is None else WorkerProcessRow(process[0], who.tenant, name, *process[1:])
        await register_worker(
            self._runtime.store, name, capabilities, min(max(slots, 1), SLOTS_MAX), version, row
        )

    async def note_claim(self, who: Principal, worker: str, capabilities: Sequence[str], slots: int) -> None:
        """Register a worker that claims, at most every WORKER_BEAT_SECONDS."""
        name, now = _worker_name(who, worker), time.monotonic()
        if self._registered_until.get(name, 0.0) < now:
            if len(self._registered_until) >= WORKERS_CACHED_MAX:
                self._registered_until.clear()
            self._registered_until[name] = now + WORKER_BEAT_SECONDS
            await self.register_worker(who, worker, capabilities, slots)

    async def delete_worker(self, who: Principal, worker: str) -> None:
        await delete_worker(self._runtime.store, _worker_name(who, worker))

    async def register_workflow(
        self, who: Principal, name: str, version: str, kind: str, definition: dict[str, Any], digest: str
    ) -> str | None:
        """Register a workflow in the runner's tenant. Returns why it was refused, if it was.

        A person who registers with their own key is the workflow's editor; a service is not (docs/separation-of-duties.md).
        """
        if len(digest) > NAME_CHARS_MAX or not digest.isprintable():
            raise TenureError(
                "INVALID_INPUT", f"digest must have at most {NAME_CHARS_MAX} printable characters"
            )
        about = (who.tenant, name, version, kind)
        editors = who.people if who.kind == "person" else ""
        try:
            checked = await run_in_pool(_check_definition, about, definition, digest)
            await save_workflow(
                self._runtime.store, *about, *checked, registered_by=who.actor, unconfirmed=editors
            )
        except TenureError as error:
            if error.code not in ("WORKFLOW_CHANGED", "WORKFLOW_INVALID"):
                raise
            return f"{error.code}: {error.message}. {error.spec.remedy}"
        return None


def _worker_name(who: Principal, worker: str) -> str:
    return f"@{who.tenant}/{worker}"[:NAME_CHARS_MAX]


def _check_definition(
    about: tuple[str, str, str, str], definition: dict[str, Any], digest: str
) -> tuple[str, str]:
    """The text and digest of a workflow. Raises WORKFLOW_INVALID if it could not be started."""
    text = msgspec.json.encode(definition, order="sorted").decode()
    digest = digest or sha256(canonical(definition)).hexdigest()
    load_registered(WorkflowRow(*about, text, digest, 0))
    return text, digest
