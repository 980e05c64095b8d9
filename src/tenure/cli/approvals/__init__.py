"""Commands that list and answer approvals."""
