"""The registered workflows of a server."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from tenure.client.transport import Transport
from tenure.errors import TenureError
from tenure.shapes.workflows import RegisteredWorkflow

_List = list  # `RemoteWorkflows.list` hides the builtin in annotations of the class


class RemoteWorkflows:
    """`engine.workflows`, over HTTP."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self) -> _List[RegisteredWorkflow]:
        return await self._transport.pages("/workflows", RegisteredWorkflow)

    async def versions(self, name: str) -> _List[RegisteredWorkflow]:
        """The registered versions of a workflow, newest first."""
        try:
            found = await self._transport.get(f"/workflows/{quote(name, safe='')}", dict[str, Any])
        except TenureError as refused:
            if refused.code != "WORKFLOW_NOT_FOUND":
                raise
            return []
        return msgspec.convert(found["items"], _List[RegisteredWorkflow])

    async def register(self, name: str, text: str) -> RegisteredWorkflow:
        """Register a workflow that is a YAML document."""
        return await self._transport.send(
            "PUT",
            f"/workflows/{quote(name, safe='')}",
            RegisteredWorkflow,
            content=text.encode(),
            content_type="application/yaml",
        )
