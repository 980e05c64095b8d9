"""The client of a server, with the groups and the shapes of an engine.

Laws:
1. The owner of the key is the actor; an `actor` or `approver` that is given is not sent.
2. Answers are the shapes that an engine returns, so that code written for one works with the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from datetime import datetime
from typing import Any, Self

import msgspec

from tenure.client.approvals import RemoteApprovals, RemoteConfirmations
from tenure.client.ci import RemoteCiRuns
from tenure.client.evidence import RemoteEvidence
from tenure.client.hooks import RemoteHooks
from tenure.client.identity import RemoteClients, RemoteKeys, RemotePeople, RemoteTenants
from tenure.client.policies import RemoteFreezes, RemotePolicies
from tenure.client.receipts import RemoteCosts, RemoteReceipts, RemoteUndos
from tenure.client.reports import RemoteReports
from tenure.client.runs import RemoteRuns
from tenure.client.transport import PATIENCE_SECONDS, Transport, drop_none
from tenure.client.workflows import RemoteSchedules, RemoteWorkflows
from tenure.shapes.events import StreamEvent
from tenure.shapes.runs import Run, SignalResult


class Client:
    """An async context manager."""

    def __init__(
        self,
        server: str,
        key: str | None = None,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        verify: bool | str = True,
    ) -> None:
        """`key` is a credential `tn_...`; the default is TENURE_KEY."""
        self.transport = Transport(server, key, patience_seconds=patience_seconds, verify=verify)
        self.server = self.transport.server
        self.runs = RemoteRuns(self.transport)
        self.approvals = RemoteApprovals(self.transport)
        self.receipts = RemoteReceipts(self.transport)
        self.schedules = RemoteSchedules(self.transport)
        self.workflows = RemoteWorkflows(self.transport)
        self.costs = RemoteCosts(self.transport)
        self.evidence = RemoteEvidence(self.transport)
        self.undos = RemoteUndos(self.transport)
        self.policies = RemotePolicies(self.transport)
        self.freezes = RemoteFreezes(self.transport)
        self.hooks = RemoteHooks(self.transport)
        self.ci = RemoteCiRuns(self.transport)
        self.reports = RemoteReports(self.transport)
        self.confirmations = RemoteConfirmations(self.transport)
        self.people = RemotePeople(self.transport)
        self.clients = RemoteClients(self.transport)
        self.keys = RemoteKeys(self.transport)
        self.tenants = RemoteTenants(self.transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.transport.close()

    # ------------------------------------------------------------------------------------ everyday calls

    async def submit(
        self,
        workflow: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the word users know it by
        *,
        key: str | None = None,
        **options: Any,
    ) -> str:
        """Start a run of a registered workflow. Returns its id. The options are those of POST /runs: version, labels, metadata,
        priority, profile, workspace, trigger, concurrency_key, supersede, not_before, timeout.

        With a `key`, the same request again returns the same run.
        """
        if isinstance(options.get("not_before"), datetime):
            options["not_before"] = options["not_before"].isoformat()
        body = {"workflow": workflow, "input": dict(input or {}), **drop_none(**options)}
        return str((await self.transport.send("POST", "/runs", dict[str, Any], body, key=key))["id"])

    async def get(self, run_id: str, profile: str | None = None) -> Run:
        """The run with its input, output and error; in the words of its own profile, unless another is named."""
        return await self.runs.get(run_id, profile)

    async def result(self, run_id: str, *, wait: float | None = 0.0) -> Any:
        """The run's output, or its error raised; see `runs.result`."""
        return await self.runs.result(run_id, wait=wait)

    async def approve(self, run_id: str, *, approver: str = "", **answer: Any) -> str:
        """Approve a question of the run; see `approvals.approve`."""
        return await self.approvals.approve(run_id, approver=approver, **answer)

    async def reject(self, run_id: str, *, approver: str = "", **answer: Any) -> str:
        """Reject a question of the run; see `approvals.reject`."""
        return await self.approvals.reject(run_id, approver=approver, **answer)

    async def signal(self, run_id: str, event: str, data: Any = None, **options: Any) -> SignalResult:
        """Deliver an event to the run; see `runs.signal`."""
        return await self.runs.signal(run_id, event, data, **options)

    async def cancel(self, run_id: str, **options: Any) -> str:
        """Request cancellation; see `runs.cancel`."""
        return await self.runs.cancel(run_id, **options)

    async def stream(
        self, *, run: str | None = None, types: Collection[str] = (), after: str | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Events as they happen; with `after` (the id of an event), all events after that one."""
        headers = {"Accept": "text/event-stream", **({} if after is None else {"Last-Event-ID": after})}
        params = {name: value for name, value in (("run", run), ("type", list(types))) if value}
        number = ""
        async for line in self.transport.lines("/events/stream", headers, **params):
            name, _, value = line.partition(": ")
            if name == "id":
                number = value
            elif name == "data":
                data = msgspec.json.decode(value, type=dict[str, Any])
                yield StreamEvent(id=number, type=str(data["type"]), data=data)
