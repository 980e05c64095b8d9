"""Doubles of other services, for tests of workflows and connectors. They speak real HTTP on a local port.

    from tenure.testing.doubles import GitHubDouble

    with GitHubDouble(token="t0ken") as github:
        ...  # a connector with base_url=github.url
        assert github.labels("acme/app", 7) == ["triage"]
        github.trouble(status=503, headers={"Retry-After": "2"})    # for the next request that writes
        github.trouble(drop="after")                                # the request is handled, and the connection breaks

See docs/connectors.md.
"""

from __future__ import annotations

from tenure.testing.doubles.base import Double, DoubleReply, DoubleRequest, InjectedFault
from tenure.testing.doubles.firestore import FirestoreDouble
from tenure.testing.doubles.github import GitHubDouble
from tenure.testing.doubles.github_checks import CheckWrite, HookAnswer, pull_request_event, push_event
from tenure.testing.doubles.service import ServiceDouble
from tenure.testing.doubles.servicenow import ServiceNowDouble
from tenure.testing.doubles.slack import SlackDouble

__all__ = [
    "CheckWrite",
    "Double",
    "DoubleReply",
    "DoubleRequest",
    "FirestoreDouble",
    "GitHubDouble",
    "HookAnswer",
    "InjectedFault",
    "ServiceDouble",
    "ServiceNowDouble",
    "SlackDouble",
    "pull_request_event",
    "push_event",
]
