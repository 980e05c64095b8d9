"""A server's evidence of runs, over HTTP."""

from __future__ import annotations

import base64
from urllib.parse import quote

from tenure.client.transport import Transport
from tenure.errors import TenureError
from tenure.shapes.evidence import EvidencePart, ExportedEvidence

_List = list  # `RemoteEvidence.list` hides the builtin in annotations of the class


class RemoteEvidence:
    """What an engine has of it, as far as a server shows it: what was sealed."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self, run_id: str) -> _List[EvidencePart]:
        """What there is of a run."""
        return await self._transport.pages(f"/runs/{quote(run_id, safe='')}/evidence", EvidencePart)

    async def newest(self, *, limit: int = 50) -> _List[EvidencePart]:
        """The newest bundles of the tenant."""
        return await self._transport.pages("/evidence", EvidencePart, limit=limit)

    async def export(self, run_id: str, *, checkpoint: bytes | None = None) -> _List[ExportedEvidence]:
        """All that was sealed of a run, with proofs for a checkpoint of the ledger (without one: for the newest)."""
        found = []
        to = self._transport
        params = {} if checkpoint is None else {"checkpoint": base64.urlsafe_b64encode(checkpoint).decode()}
        for part in await self.list(run_id):
            at = f"/runs/{quote(run_id, safe='')}/evidence/{part.part}"
            proof: str | None = None
            try:
                proof = (await to.ask("GET", f"{at}/proof", params=params, again=False)).text
            except TenureError as refused:
                if checkpoint is not None or refused.code not in ("NOT_READY", "RUN_NOT_SEALED"):
                    raise
            found.append(
                ExportedEvidence(
                    name=part.name,
                    zip=(await to.ask("GET", f"{at}/bundle")).content,
                    envelope=(await to.ask("GET", f"{at}/statement")).content,
                    proof=proof,
                    sealed=True,
                )
            )
        return found
