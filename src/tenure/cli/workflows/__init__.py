"""Commands that register, list and check workflows."""
