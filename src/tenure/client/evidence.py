"""The evidence of a server's runs."""

from __future__ import annotations

import base64

from tenure.client.transport import RemoteGroup, join_path
from tenure.errors import TenureError
from tenure.shapes.evidence import EvidencePart, ExportedEvidence

_List = list  # `RemoteEvidence.list` hides the builtin in annotations of the class


class RemoteEvidence(RemoteGroup):
    """`engine.evidence`, over HTTP: a server shows what was sealed."""

    async def list(self, run_id: str) -> _List[EvidencePart]:
        """The sealed parts of a run."""
        return await self._transport.pages(join_path("runs", run_id, "evidence"), EvidencePart)

    async def newest(self, *, limit: int = 50) -> _List[EvidencePart]:
        """The newest sealed parts of all runs."""
        return await self._transport.pages("/evidence", EvidencePart, limit=limit)

    async def export(self, run_id: str, *, checkpoint: bytes | None = None) -> _List[ExportedEvidence]:
        """Everything that was sealed of a run, with proofs for a checkpoint of the ledger, or else for the newest."""
        found = []
        ask = self._transport.ask
        params = {} if checkpoint is None else {"checkpoint": base64.urlsafe_b64encode(checkpoint).decode()}
        for part in await self.list(run_id):
            at = join_path("runs", run_id, "evidence", str(part.part))
            proof: str | None = None
            try:
                proof = (await ask("GET", f"{at}/proof", params=params, again=False)).text
            except TenureError as refused:
                if checkpoint is not None or refused.code not in ("NOT_READY", "RUN_NOT_SEALED"):
                    raise
            found.append(
                ExportedEvidence(
                    name=part.name,
                    zip=(await ask("GET", f"{at}/bundle")).content,
                    envelope=(await ask("GET", f"{at}/statement")).content,
                    proof=proof,
                    sealed=True,
                )
            )
        return found
