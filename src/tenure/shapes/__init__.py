"""What the product shows of runs, steps, approvals, receipts and people: structs only."""
