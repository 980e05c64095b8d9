"""The rows of governing: policies, what is frozen, signing keys, the ledger, evidence, Slack cards.

Laws:
1. As in `kernel.service`: none of them is a run's state, times are whole microseconds by the store's clock, and no secret
   is in any of them. Of a signing key the public half is here; the private one is a reference that only configuration names.
2. A policy version, a leaf of the ledger, a signed checkpoint and a bundle's record never change once they are written.
"""

from __future__ import annotations

from typing import ClassVar

from tenure.kernel.row import Row


class PolicyRow(Row, gc=False):
    """One version of a tenant's policy, as it was published."""

    table: ClassVar[str] = "policy"
    key: ClassVar[tuple[str, ...]] = ("tenant", "version")

    tenant: str
    version: int
    text: str
    """The YAML, byte for byte."""
    digest: bytes
    """SHA-256 of it."""
    author: str
    created_at: int


class GovernanceRow(Row, gc=False):
    """What holds for a tenant now. Every INTENT is committed under a shared lock of this row."""

    table: ClassVar[str] = "governance"
    key: ClassVar[tuple[str, ...]] = ("tenant",)

    tenant: str
    version: int
    """Of the active policy; 0: none, and everything is denied."""
    proposed: int | None
    """The version that somebody wants to be active; a second person says yes."""
    proposed_by: str | None
    frozen: str
    """What is frozen, and who froze it: a JSON object of scope (`*`, `wf:NAME`, `cn:NAME`) -> `id id`."""
    thaw: str
    """Unfreezing that somebody wants: a JSON object of scope -> person."""
    revision: int
    updated_at: int


class SigningKeyRow(Row, gc=False):
    """A key that seals: its public half."""

    table: ClassVar[str] = "signing_key"
    key: ClassVar[tuple[str, ...]] = ("id",)

    id: str
    """SHA-256 of the public key, in hex."""
    public: bytes
    endorsed_by: str | None
    """The key before it."""
    endorsement: bytes | None
    """That key's signature over this one."""
    created_at: int
    revoked_from: int | None = None


class LedgerLeafRow(Row, gc=False):
    """An entry of a tenant's ledger ('' for the installation's own)."""

    table: ClassVar[str] = "ledger_leaf"
    key: ClassVar[tuple[str, ...]] = ("tenant", "pos")

    tenant: str
    pos: int
    kind: str
    """created, sealed, supplement, admin or key."""
    run_id: int | None
    part: int
    """Of a sealed run 0, of its supplements their number; of an admin leaf its last event."""
    body: bytes
    """The exact bytes that are hashed."""
    at: int


class LedgerNodeRow(Row, gc=False):
    """The hash of a full subtree of a ledger: `pos` counts subtrees of 2**level leaves."""

    table: ClassVar[str] = "ledger_node"
    key: ClassVar[tuple[str, ...]] = ("tenant", "level", "pos")

    tenant: str
    level: int
    pos: int
    hash: bytes


class SignedCheckpointRow(Row, gc=False):
    """A signed checkpoint of a ledger, in the form of C2SP's tlog-checkpoint."""

    table: ClassVar[str] = "ledger_checkpoint"
    key: ClassVar[tuple[str, ...]] = ("tenant", "size")

    tenant: str
    size: int
    root: bytes
    note: str
    key_id: str
    at: int


class EvidenceRow(Row, gc=False):
    """A bundle of a finished run (0), or a numbered supplement to it."""

    table: ClassVar[str] = "evidence"
    key: ClassVar[tuple[str, ...]] = ("run_id", "no")

    run_id: int
    no: int
    tenant: str
    sha256: bytes
    size: int
    head: bytes
    """The hash of the last event in it."""
    events: int
    key_id: str | None
    """The key that signed it."""
    reference: bytes
    """Where the zip lies among the artifacts."""
    envelope: bytes
    """The DSSE envelope, as it lies beside the zip."""
    at: int


class SlackCardRow(Row, gc=False):
    """A message in Slack that shows a question, to be updated when it is decided."""

    table: ClassVar[str] = "slack_card"
    key: ClassVar[tuple[str, ...]] = ("run_id", "no")

    run_id: int
    no: int
    tenant: str
    hook_id: str
    channel: str
    ts: str | None
    """Slack's name of the message; None while it is being posted."""
    shown: str
    """What it shows, `revision/status/votes`; what it should show is the approval's."""
    due_at: int | None
    """When it may be looked at: whoever does takes it for a while. None: it shows how the question ended."""
    tries: int = 0
    """Since the last that went well."""
    reminded: bool = False
    """Whether people were reminded, in its thread."""
    error: str | None = None


GOVERNANCE_ROWS: dict[str, type[Row]] = {
    row.table: row
    for row in (
        PolicyRow,
        GovernanceRow,
        SigningKeyRow,
        LedgerLeafRow,
        LedgerNodeRow,
        SignedCheckpointRow,
        EvidenceRow,
        SlackCardRow,
    )
}
