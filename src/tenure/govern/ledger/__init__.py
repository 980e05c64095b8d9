"""The ledger: a signed, append-only log of seals per tenant, in which a missing tail or a missing run shows.

`tenant_ledger` is one ledger, `signing_keys` manages the keys, `keeper` appends and signs periodically, `checkpoint_export` copies checkpoints
out of the database, and `audit` compares the database with them.
"""
