"""Governed effects: policy, connectors, the order in which an act is done, undo, evidence and the ledger."""
