"""The ledger: what was sealed and in which order, signed for, so that a missing tail or a missing run shows.

`notes` are checkpoints and proofs as text, `book` is a tenant's ledger, `keys` the keys that sign, `keeper` what appends and
signs by itself, `exporting` takes checkpoints out of the database, `checking` compares it with them.
"""
