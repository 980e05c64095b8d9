"""A server's evidence of runs, over HTTP."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING
from urllib.parse import quote

from tenure.embedded.evidence import EvidenceView, Exported
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.client.transport import Transport


class RemoteEvidence:
    """What an engine has of it, as far as a server shows it: what was sealed."""

    _to: Transport

    async def evidence(self, run_id: str) -> list[EvidenceView]:
        """What there is of a run."""
        return await self._to.pages(f"/runs/{quote(run_id, safe='')}/evidence", EvidenceView)

    async def newest_evidence(self, *, limit: int = 50) -> list[EvidenceView]:
        """The newest bundles of the tenant."""
        return await self._to.pages("/evidence", EvidenceView, limit=limit)

    async def export_evidence(self, run_id: str, *, checkpoint: bytes | None = None) -> list[Exported]:
        """All that was sealed of a run, with proofs for a checkpoint of the ledger (without one: for the newest)."""
        found = []
        to = self._to
        params = {} if checkpoint is None else {"checkpoint": base64.urlsafe_b64encode(checkpoint).decode()}
        for part in await self.evidence(run_id):
            at = f"/runs/{quote(run_id, safe='')}/evidence/{part.part}"
            proof: str | None = None
            try:
                proof = (await to.ask("GET", f"{at}/proof", params=params, again=False)).text
            except TenureError as refused:
                if checkpoint is not None or refused.code not in ("NOT_READY", "RUN_NOT_SEALED"):
                    raise
            found.append(
                Exported(
                    name=part.name,
                    zip=(await to.ask("GET", f"{at}/bundle")).content,
                    envelope=(await to.ask("GET", f"{at}/statement")).content,
                    proof=proof,
                    sealed=True,
                )
            )
        return found
