"""Profiles that only tests use."""

PLAIN = """\
name = "plain"
title = "Plain"
document = "None: the kernel itself"
recovery = "requeue"
optional_steps = true
default_retryable = true

[timing]
retries = 3
backoff = { kind = "exponential", base_seconds = 1.0 }
lease_seconds = 30.0
heartbeat_seconds = 10.0
planning_seconds = 60.0
cancel_grace_seconds = 30.0

[run]
kernel = "There is no document."

[step]
kernel = "There is no document."

[attempt]
kernel = "There is no document."

[lease]
kernel = "There is no document."
"""
"""The smallest possible profile: it uses the kernel's own words everywhere."""
