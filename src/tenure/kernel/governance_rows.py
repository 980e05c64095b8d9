"""The rows of governance: policies, freezes, signing keys, the ledger, evidence, Slack cards.

Laws:
1. As in `kernel.server_rows`: none of them is a run's state, times are whole microseconds by the store's clock, and they
   hold no secrets. A signing key's row has its public half; only the configuration refers to the private half.
2. A policy version, a leaf of the ledger, a signed checkpoint and an evidence record never change once they are written.
"""

from __future__ import annotations

from tenure.kernel.row import NumberedRow, Row, table


@table("policy", key=("tenant", "version"))
class PolicyRow(Row):
    """One version of a tenant's policy."""

    tenant: str
    version: int
    text: str
    """The YAML, byte for byte."""
    digest: bytes
    """The SHA-256 of the text."""
    author: str
    created_at: int


@table("governance", key=("tenant",))
class GovernanceRow(Row):
    """A tenant's active policy and freezes. Every commit that intends an act holds a shared lock of this row."""

    tenant: str
    version: int
    """The version of the active policy. 0: there is none, and everything is denied."""
    proposed: int | None
    """The version that a person proposed to activate. A second person has to confirm it."""
    proposed_by: str | None
    frozen: str
    """What is frozen, and by whom: a JSON object of scope (`*`, `wf:NAME`, `cn:NAME`) -> `id id`."""
    thaw: str
    """Proposals to unfreeze: a JSON object of scope -> person."""
    revision: int
    updated_at: int


@table("signing_key", key=("id",))
class SigningKeyRow(Row):
    """The public half of a key that signs evidence and ledger checkpoints."""

    id: str
    """The SHA-256 of the public key, in hex."""
    public: bytes
    endorsed_by: str | None
    """The previous key."""
    endorsement: bytes | None
    """The previous key's signature over this key."""
    created_at: int
    revoked_from: int | None = None


@table("ledger_leaf", key=("tenant", "pos"))
class LedgerLeafRow(Row):
    """An entry of a tenant's ledger. The tenant '' stands for the installation."""

    tenant: str
    pos: int
    kind: str
    """created, sealed, supplement, admin or key."""
    run_id: int | None
    part: int
    """For a sealed run 0; for a supplement its number; for an admin leaf its last event."""
    body: bytes
    """The exact bytes that are hashed."""
    at: int


@table("ledger_node", key=("tenant", "level", "pos"))
class LedgerNodeRow(Row):
    """The hash of a full subtree of a ledger. `pos` counts subtrees of 2**level leaves."""

    tenant: str
    level: int
    pos: int
    hash: bytes


@table("ledger_checkpoint", key=("tenant", "size"))
class SignedCheckpointRow(Row):
    """A signed checkpoint of a ledger, in the form of C2SP's tlog-checkpoint."""

    tenant: str
    size: int
    root: bytes
    note: str
    key_id: str
    at: int


@table("evidence", key=("run_id", "no"))
class EvidenceRow(NumberedRow):
    """The evidence of a finished run: its bundle (0), or a numbered supplement."""

    tenant: str
    sha256: bytes
    size: int
    head: bytes
    """The hash of the last event that it covers."""
    events: int
    key_id: str | None
    reference: bytes
    """The reference of the zip in the artifact store."""
    envelope: bytes
    """The DSSE envelope, byte for byte."""
    at: int


@table("slack_card", key=("run_id", "no"))
class SlackCardRow(NumberedRow):
    """A Slack message that shows a question. It is updated when the question is decided."""

    tenant: str
    hook_id: str
    channel: str
    ts: str | None
    """Slack's id of the message. None: it is being posted."""
    shown: str
    """What it shows of the approval, as `revision/status/votes`."""
    due_at: int | None
    """When a process may check it next; that process sets a later moment first. None: it shows the final outcome."""
    tries: int = 0
    """Failed tries since the last success."""
    reminded: bool = False
    """Whether a reminder was posted in its thread."""
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
