"""Pure verification: Merkle trees, signatures, signed notes. No database, no network."""
