"""Doubles of other services, for tests of workflows and connectors: they speak real HTTP on a port of this machine.

    from tenure.testing.doubles import GitHubDouble

    with GitHubDouble(token="t0ken") as github:
        ...  # a connector with base_url=github.url
        assert github.labels("acme/app", 7) == ["triage"]
        github.trouble(status=503, headers={"Retry-After": "2"})    # of the next request that writes
        github.trouble(drop="after")                                # it is done, and the connection breaks

See docs/connectors.md.
"""

from __future__ import annotations

from tenure.testing.doubles.base import Double, Reply, Request, Trouble
from tenure.testing.doubles.github import GitHubDouble
from tenure.testing.doubles.service import ServiceDouble
from tenure.testing.doubles.servicenow import ServiceNowDouble
from tenure.testing.doubles.slack import SlackDouble

__all__ = [
    "Double",
    "GitHubDouble",
    "Reply",
    "Request",
    "ServiceDouble",
    "ServiceNowDouble",
    "SlackDouble",
    "Trouble",
]
