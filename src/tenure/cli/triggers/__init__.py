"""Commands for schedules and hooks."""
