"""Commands for policies, freezes, receipts and undo."""
