"""Whether a part is in its tenant's ledger: by a proof that lies beside it, and a checkpoint that was kept elsewhere.

Law: the checkpoint is believed by its signature, the proof by its hashes; what the leaf says is made from the bundle. No byte of
the proof is passed over.
"""

from __future__ import annotations

from tenure import ids
from tenure.errors import TenureError
from tenure.govern.evidence.statement import Predicate
from tenure.govern.evidence.wrong import Wrong
from tenure.govern.ledger import notes
from tenure.govern.signing import Trust
from tenure.kernel import leaves


def leaf_of(said: Predicate) -> leaves.Entry:
    """The leaf of a part."""
    run_id, head, outcome = ids.run_int(said.run), bytes.fromhex(said.head), said.outcome or ""
    if said.part:
        return leaves.supplement(said.tenant, run_id, said.part, head, said.events, outcome)
    return leaves.sealed(said.tenant, run_id, head, said.events, outcome)


def check_ledger(said: Predicate, proof: bytes | None, checkpoint: bytes, trust: Trust | None) -> str:
    """What was proven, in words; or `Wrong`."""
    try:
        kept = notes.parse(checkpoint)
        if trust is not None:
            notes.signer_of(kept, trust)
    except TenureError as fault:
        raise Wrong("CHECKPOINT_INVALID", "the checkpoint", fault.message) from None
    if proof is None:
        raise Wrong(
            "PROOF_MISSING",
            "the proof",
            f"there is none beside the bundle; it lies in NAME{notes.PROOF_SUFFIX} where it was exported with the checkpoint",
        )
    try:
        given = notes.parse_proof(proof)
    except TenureError as fault:
        raise Wrong("PROOF_INVALID", "the proof", fault.message) from None
    if (given.checkpoint.origin, given.checkpoint.size) != (kept.origin, kept.size):
        raise Wrong("PROOF_MISSING", "the proof", notes.inclusion_problem(b"", given, kept) or "")
    problem = notes.inclusion_problem(leaf_of(said).body, given, kept)
    if problem is not None:
        raise Wrong("NOT_IN_LEDGER", "the ledger", problem)
    problem = notes.own_checkpoint_problem(given, kept, trust)
    if problem is not None:
        raise Wrong("PROOF_INVALID", "the proof's checkpoint", problem)
    signed = "" if trust is not None else ", which was not checked itself"
    return f"leaf {given.index} of the ledger, by the checkpoint of {kept.size} leaves{signed}"
