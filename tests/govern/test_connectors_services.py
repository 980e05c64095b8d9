"""The GitHub, Slack and ServiceNow connectors against HTTP doubles: calls, lookups, undos and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tenure.clock import boot_seconds
from tenure.govern.connector import CallFault, Connector, ConnectorCall, Reversal
from tenure.govern.connectors.faults import CallFailed
from tenure.govern.connectors.github import GitHubConnector
from tenure.govern.connectors.http_service import HttpService
from tenure.govern.connectors.registry import Connectors
from tenure.govern.connectors.servicenow import ServiceNowConnector
from tenure.govern.connectors.slack import SlackConnector
from tenure.outbound.address_rules import AllowedNetworks
from tenure.outbound.urls import OutboundRoute
from tenure.testing.doubles import Double, GitHubDouble, ServiceNowDouble, SlackDouble

TOKEN = "a-token-that-nobody-has"
ISSUE = {"repo": "acme/app", "number": 7}
SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", TOKEN)


def link(double: Double) -> HttpService:
    way = OutboundRoute(
        hosts=(double.url.removeprefix("http://"),), reach=AllowedNetworks(networks=("127.0.0.1",))
    )
    return HttpService(base_url=double.url, way=way, tokens={"acme": "env:SERVICE_TOKEN"})


@pytest.fixture
def github() -> Iterator[GitHubDouble]:
    with GitHubDouble(token=TOKEN) as double:
        double.issue("acme/app", 7, labels=("bug",), assignees=("ada",))
        yield double


@pytest.fixture
def slack() -> Iterator[SlackDouble]:
    with SlackDouble(token=TOKEN) as double:
        yield double


@pytest.fixture
def now() -> Iterator[ServiceNowDouble]:
    with ServiceNowDouble(token=TOKEN) as double:
        yield double


class ConnectorDriver:
    """Uses a connector as the governor does, one operation at a time."""

    def __init__(self, connector: Connector) -> None:
        self.connectors = Connectors([connector])
        self.connector = self.connectors[connector.name]

    def order(
        self, operation: str, target: dict[str, Any], fields: dict[str, Any], key: str = "k1"
    ) -> ConnectorCall:
        self.connectors.check(f"{self.connector.name}.{operation}", target, fields)
        deadline = boot_seconds() + 10
        return ConnectorCall(
            tenant="acme", operation=operation, target=target, fields=fields, key=key, deadline=deadline
        )

    async def do(
        self, operation: str, target: dict[str, Any], fields: dict[str, Any], key: str = "k1"
    ) -> Any:
        return await self.connector.call(self.order(operation, target, fields, key))

    async def fault(self, operation: str, target: dict[str, Any], fields: dict[str, Any]) -> CallFault:
        with pytest.raises(CallFailed) as raised:
            await self.do(operation, target, fields)
        return self.connector.classify(raised.value)

    async def found(
        self, operation: str, target: dict[str, Any], fields: dict[str, Any], key: str = "k1"
    ) -> Any:
        looked = await self.connector.lookup(self.order(operation, target, fields, key))
        return None if looked is None else looked.result

    async def do_and_get_reversal(
        self, operation: str, target: dict[str, Any], fields: dict[str, Any]
    ) -> Reversal | None:
        """Read the state, make the call, and return the reversal that both give."""
        before = await self.connector.state(self.order(operation, target, fields))
        result = await self.do(operation, target, fields)
        return self.connector.reverse(operation, target, fields, before, result)

    async def reverse(self, way: Reversal | None) -> bool:
        """Apply the reversal if the target is unchanged. Return whether it was applied."""
        assert way is not None
        order = self.order(way.operation, way.target, way.fields, "k2")
        now = await self.connector.state(order) or {}
        if any(now.get(key) != value for key, value in way.expects.items()):
            return False
        await self.connector.call(order)
        return True


# ---------------------------------------------------------------------------------------------- GitHub


@pytest.mark.clause("GOV-22")
async def test_an_undo_removes_only_the_labels_that_were_added(github: GitHubDouble) -> None:
    backend = ConnectorDriver(GitHubConnector(link=link(github)))
    way = await backend.do_and_get_reversal("label.add", ISSUE, {"labels": ["bug", "triage"]})
    github.labels("acme/app", 7).append("somebody's")
    assert github.labels("acme/app", 7) == ["bug", "triage", "somebody's"]
    assert await backend.reverse(way)
    assert github.labels("acme/app", 7) == ["bug", "somebody's"]
    assert not await backend.reverse(way), "the target no longer has our change"
    assert await backend.do_and_get_reversal("label.add", ISSUE, {"labels": ["bug"]}) is None, (
        "the label existed before"
    )


async def test_an_undo_restores_labels_unless_others_changed_them(github: GitHubDouble) -> None:
    backend = ConnectorDriver(GitHubConnector(link=link(github)))
    way = await backend.do_and_get_reversal("label.set", ISSUE, {"labels": ["z", "a"]})
    assert github.labels("acme/app", 7) == ["z", "a"]
    github.labels("acme/app", 7).append("mine")
    assert not await backend.reverse(way)
    github.labels("acme/app", 7).remove("mine")
    assert await backend.reverse(way)
    assert github.labels("acme/app", 7) == ["bug"]


async def test_removing_labels_ignores_missing_ones(github: GitHubDouble) -> None:
    backend = ConnectorDriver(GitHubConnector(link=link(github)))
    way = await backend.do_and_get_reversal("label.remove", ISSUE, {"labels": ["gone", "bug"]})
    assert github.labels("acme/app", 7) == []
    assert way is not None
    assert way.fields == {"labels": ["bug"]}
    assert await backend.reverse(way)
    assert github.labels("acme/app", 7) == ["bug"]


async def test_a_partial_removal_of_labels_is_unknown(
    github: GitHubDouble,
) -> None:
    github.issue("acme/app", 7, labels=("a", "b"))
    backend = ConnectorDriver(GitHubConnector(link=link(github)))
    github.trouble()
    github.trouble(status=403, json={"message": "no"})
    fault = await backend.fault("label.remove", ISSUE, {"labels": ["a", "b"]})
    assert (fault.outcome, github.labels("acme/app", 7)) == ("unknown", ["b"])
    github.trouble(status=403, json={"message": "no"})
    assert (await backend.fault("label.remove", ISSUE, {"labels": ["b"]})).outcome == "not_done"


async def test_removing_a_missing_label_succeeds_unless_the_issue_is_invisible(github: GitHubDouble) -> None:
    backend = ConnectorDriver(GitHubConnector(link=link(github)))
    assert await backend.do("comment.delete", {"repo": "acme/app", "comment": 5}, {}) == {}
    for operation, target, fields in (
        ("comment.delete", {"repo": "acme/hidden", "comment": 5}, {}),
        ("label.remove", {"repo": "acme/app", "number": 8}, {"labels": ["x"]}),
    ):
        fault = await backend.fault(operation, target, fields)
        assert (fault.outcome, fault.code) == ("not_done", "CONNECTOR_REJECTED")


async def test_a_label_may_contain_slashes(github: GitHubDouble) -> None:
    github.issue("acme/app", 7, labels=("area/x?y#z ü",))
    backend = ConnectorDriver(GitHubConnector(link=link(github)))
    await backend.do("label.remove", ISSUE, {"labels": ["area/x?y#z ü"]})
    assert github.labels("acme/app", 7) == []
    fault = await backend.fault("label.remove", ISSUE, {"labels": [".."]})
    assert (fault.outcome, fault.code) == ("not_done", "INVALID_INPUT")


@pytest.mark.clause("GOV-22")
async def test_a_comment_is_found_by_its_hidden_mark(github: GitHubDouble) -> None:
    backend = ConnectorDriver(GitHubConnector(link=link(github)))
    fields = {"body": "Looks like a duplicate."}
    assert await backend.found("comment.create", ISSUE, fields) is None
    github.trouble(drop="after")
    assert (await backend.fault("comment.create", ISSUE, fields)).outcome == "unknown"
    found = await backend.found("comment.create", ISSUE, fields)
    assert found["id"] in github.comments
    assert await backend.found("comment.create", ISSUE, fields, key="another") is None
    body = github.comments[found["id"]]["body"]
    assert body.startswith("Looks like a duplicate.\n\n<!-- tenure:")
    assert "k1" not in body, "the comment contains the key"
    way = backend.connector.reverse("comment.create", ISSUE, fields, None, found)
    github.comments[found["id"]]["body"] += " edited"
    assert not await backend.reverse(way)
    github.comments[found["id"]]["body"] = body.replace("\n", "\r\n")
    assert await backend.reverse(way)
    assert github.comments == {}
    assert way is not None
    await backend.do(way.operation, way.target, way.fields)  # deleting a missing comment succeeds


async def test_a_comment_far_down_a_long_issue_is_found(github: GitHubDouble) -> None:
    backend = ConnectorDriver(GitHubConnector(link=link(github)))
    for n in range(120):
        await backend.do("comment.create", ISSUE, {"body": f"{n}"}, key=f"k{n}")
    assert await backend.found("comment.create", ISSUE, {"body": "x"}, key="k119") is not None


async def test_a_mark_inside_a_text_is_removed(github: GitHubDouble) -> None:
    backend = ConnectorDriver(GitHubConnector(link=link(github)))
    fault = await backend.fault("comment.create", ISSUE, {"body": "<!-- tenure:0 -->"})
    assert (fault.outcome, fault.code) == ("not_done", "INVALID_INPUT")
    assert github.requests == []


@pytest.mark.clause("GOV-22")
async def test_an_undo_unassigns_the_people_that_were_assigned(github: GitHubDouble) -> None:
    backend = ConnectorDriver(GitHubConnector(link=link(github)))
    way = await backend.do_and_get_reversal("assignee.add", ISSUE, {"assignees": ["Ada", "bob"]})
    assert way is not None
    assert way.fields == {"assignees": ["bob"]}, "ada was assigned before, and names ignore case"
    assert await backend.reverse(way)
    assert "bob" not in github.issues["acme/app", 7]["assignees"]
    back = await backend.do_and_get_reversal("assignee.remove", ISSUE, {"assignees": ["ada"]})
    assert await backend.reverse(back)


async def test_an_undo_restores_the_commit_status(github: GitHubDouble) -> None:
    backend = ConnectorDriver(GitHubConnector(link=link(github)))
    commit = {"repo": "acme/app", "sha": SHA}
    first = {"state": "pending", "context": "tenure", "description": "asked"}
    assert await backend.do_and_get_reversal("status.set", commit, first) is None, (
        "GitHub cannot delete a status"
    )
    way = await backend.do_and_get_reversal("status.set", commit, {"state": "success", "context": "tenure"})
    assert await backend.reverse(way)
    assert (github.statuses[0]["state"], github.statuses[0]["description"]) == ("pending", "asked")
    assert not await backend.reverse(way)


async def test_a_check_run_is_found_by_its_external_id(github: GitHubDouble) -> None:
    backend = ConnectorDriver(GitHubConnector(link=link(github)))
    commit = {"repo": "acme/app", "sha": SHA}
    fields = {"name": "policy", "status": "in_progress"}
    github.trouble(status=502, done=True)
    assert (await backend.fault("check.create", commit, fields)).outcome == "unknown"
    found = await backend.found("check.create", commit, fields)
    assert await backend.found("check.create", commit, fields, key="k9") is None
    change = {"status": "completed", "conclusion": "success"}
    changed = await backend.do("check.update", {"repo": "acme/app", "check": found["id"]}, change)
    assert changed["conclusion"] == "success"


@pytest.mark.clause("GOV-18")
async def test_a_github_rate_limit_is_a_known_failure(github: GitHubDouble) -> None:
    backend = ConnectorDriver(GitHubConnector(link=link(github)))
    fields = {"labels": ["x"]}
    github.limit(second=True, seconds=17)
    fault = await backend.fault("label.add", ISSUE, fields)
    assert (fault.outcome, fault.retryable, fault.retry_after_seconds) == ("not_done", True, 17.0)
    github.limit()
    fault = await backend.fault("label.add", ISSUE, fields)
    assert (fault.outcome, fault.retryable, fault.retry_after_seconds) == ("not_done", True, 0.0)
    github.trouble(status=403, json={"message": "You have exceeded a secondary rate limit"})
    assert (await backend.fault("label.add", ISSUE, fields)).retry_after_seconds == 60.0
    github.trouble(status=429)
    assert (await backend.fault("label.add", ISSUE, fields)).retryable
    github.trouble(status=403, json={"message": "Resource not accessible by integration"})
    fault = await backend.fault("label.add", ISSUE, fields)
    assert (fault.outcome, fault.retryable, fault.code) == ("not_done", False, "CONNECTOR_REJECTED")
    assert "Resource not accessible" in fault.message
    assert github.labels("acme/app", 7) == ["bug"]


async def test_a_tenant_without_a_token_is_refused(github: GitHubDouble) -> None:
    backend = ConnectorDriver(GitHubConnector(link=link(github)))
    order = ConnectorCall(
        tenant="globex",
        operation="label.add",
        target=ISSUE,
        fields={"labels": ["x"]},
        key="k",
        deadline=boot_seconds() + 10,
    )
    with pytest.raises(CallFailed) as raised:
        await backend.connector.call(order)
    assert (raised.value.fault.code, raised.value.fault.outcome) == ("SECRET_UNAVAILABLE", "not_done")
    assert github.requests == []


# ----------------------------------------------------------------------------------------------- Slack


@pytest.mark.clause("GOV-22")
async def test_a_message_is_posted_found_and_deleted(slack: SlackDouble) -> None:
    backend = ConnectorDriver(SlackConnector(link=link(slack)))
    where, fields = {"channel": "C0123"}, {"text": "disk <full> & hot"}
    slack.trouble(drop="after")
    assert (await backend.fault("message.post", where, fields)).outcome == "unknown"
    assert slack.messages[0]["text"] == "disk &lt;full&gt; &amp; hot", "the text is not escaped"
    found = await backend.found("message.post", where, fields)
    assert found["ts"] == slack.messages[0]["ts"]
    assert await backend.found("message.post", where, fields, key="k2") is None
    assert "k1" not in str(slack.messages)
    way = backend.connector.reverse("message.post", where, fields, None, found)
    assert await backend.reverse(way)
    assert slack.messages == []
    assert way is not None
    await backend.do(way.operation, way.target, way.fields)


async def test_a_message_in_a_thread_is_found_among_many(slack: SlackDouble) -> None:
    backend = ConnectorDriver(SlackConnector(link=link(slack)))
    parent = slack.say("C0123", "an incident")
    where = {"channel": "C0123", "thread_ts": parent}
    result = await backend.do("message.post", where, {"text": "assigned"})
    for n in range(250):
        slack.say("C0123", f"{n}", thread_ts=parent)
    found = await backend.found("message.post", where, {"text": "assigned"})
    assert found["ts"] == result["ts"]
    assert await backend.reverse(
        backend.connector.reverse("message.post", where, {"text": "assigned"}, None, result)
    )


async def test_an_undo_restores_a_changed_message(slack: SlackDouble) -> None:
    backend = ConnectorDriver(SlackConnector(link=link(slack)))
    ts = slack.say("C0123", "before")
    where = {"channel": "C0123", "ts": ts}
    way = await backend.do_and_get_reversal("message.update", where, {"text": "a < b"})
    assert slack.messages[0]["text"] == "a &lt; b"
    assert await backend.reverse(way)
    assert slack.messages[0]["text"] == "before"
    assert not await backend.reverse(way)


@pytest.mark.parametrize(
    ("error", "outcome", "retryable"),
    [
        ("channel_not_found", "not_done", False),
        ("ratelimited", "not_done", True),
        ("internal_error", "unknown", False),
    ],
)
async def test_slack_errors_in_a_200_response_are_recognised(
    slack: SlackDouble, error: str, outcome: str, retryable: bool
) -> None:
    backend = ConnectorDriver(SlackConnector(link=link(slack)))
    slack.trouble(status=200, json={"ok": False, "error": error})
    fault = await backend.fault("message.post", {"channel": "C0123"}, {"text": "x"})
    assert (fault.outcome, fault.retryable) == (outcome, retryable)


# ------------------------------------------------------------------------------------------ ServiceNow


@pytest.mark.clause("GOV-22")
async def test_an_undo_restores_the_assignment_of_an_incident(now: ServiceNowDouble) -> None:
    backend = ConnectorDriver(ServiceNowConnector(link=link(now)))
    sys_id = now.incident("INC0001", assignment_group="network", assigned_to="")
    where = {"sys_id": sys_id}
    way = await backend.do_and_get_reversal(
        "incident.assign", where, {"assigned_to": "ada", "assignment_group": "network"}
    )
    assert now.incidents[sys_id]["assigned_to"] == "ada"
    assert way is not None
    assert way.fields == {"assigned_to": ""}, "the group was unchanged"
    now.incidents[sys_id]["assigned_to"] = "bob"
    assert not await backend.reverse(way)
    now.incidents[sys_id]["assigned_to"] = "ada"
    assert await backend.reverse(way)
    assert now.incidents[sys_id]["assigned_to"] == ""


async def test_an_update_sets_fields_but_no_journal_entries(now: ServiceNowDouble) -> None:
    backend = ConnectorDriver(ServiceNowConnector(link=link(now)))
    sys_id = now.incident("INC0001", urgency="3", u_risk="low")
    where = {"sys_id": sys_id}
    way = await backend.do_and_get_reversal(
        "incident.update", where, {"urgency": 1, "custom": {"u_risk": "high"}}
    )
    assert (now.incidents[sys_id]["urgency"], now.incidents[sys_id]["u_risk"]) == ("1", "high")
    assert await backend.reverse(way)
    assert (now.incidents[sys_id]["urgency"], now.incidents[sys_id]["u_risk"]) == ("3", "low")
    for fields in ({"custom": {"work_notes": "x"}}, {"custom": {"sys_created_by": "x"}}, {}):
        fault = await backend.fault("incident.update", where, fields)
        assert (fault.outcome, fault.code) == ("not_done", "INVALID_INPUT")


@pytest.mark.clause("GOV-22")
async def test_a_work_note_has_a_correlation_id_and_is_undone_by_another_note(now: ServiceNowDouble) -> None:
    backend = ConnectorDriver(ServiceNowConnector(link=link(now)))
    sys_id = now.incident("INC0001")
    where, fields = {"sys_id": sys_id}, {"text": "Looks like the switch."}
    now.trouble(drop="after")
    assert (await backend.fault("incident.note", where, fields)).outcome == "unknown"
    found = await backend.found("incident.note", where, fields)
    assert await backend.found("incident.note", where, fields, key="k9") is None
    assert now.notes(sys_id)[0].startswith("Looks like the switch.\n\nCorrelation id: tenure-")
    assert await backend.reverse(backend.connector.reverse("incident.note", where, fields, None, found))
    assert "is retracted" in now.notes(sys_id)[1]


async def test_servicenow_accepts_a_user_and_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "robot:pass word")
    with ServiceNowDouble(user="robot", token="pass word") as double:
        backend = ConnectorDriver(ServiceNowConnector(link=link(double), auth="basic"))
        sys_id = double.incident("INC0001")
        await backend.do("incident.update", {"sys_id": sys_id}, {"state": "2"})
        assert double.incidents[sys_id]["state"] == "2"
        fault = await backend.fault("incident.update", {"sys_id": "0" * 32}, {"state": "2"})
        assert "No Record found" in fault.message


# ------------------------------------------------------------------------------------- what people see


def test_approvers_are_shown_the_fields() -> None:
    sly = "ok\u202e\u2066 evil\x00\x1b[31m\u200b"
    for connector, operation, target, fields in (
        (GitHubConnector(), "comment.create", ISSUE, {"body": f"{sly}\nApproved by: everyone"}),
        (GitHubConnector(), "label.add", ISSUE, {"labels": [sly]}),
        (GitHubConnector(), "status.set", {"repo": "a/b", "sha": SHA}, {"state": "success", "context": sly}),
        (GitHubConnector(), "check.update", {"repo": "a/b", "check": 5}, {"details_url": sly}),
        (SlackConnector(), "message.post", {"channel": "C0123"}, {"text": sly, "blocks": [{"text": sly}]}),
        (ServiceNowConnector(), "incident.note", {"sys_id": "0" * 32}, {"text": sly}),
        (ServiceNowConnector(), "incident.update", {"sys_id": "0" * 32}, {"short_description": sly}),
    ):
        rendered = Connectors([connector])[connector.name].render(operation, target, fields)
        whole = "\n".join(rendered)
        assert "<U+202E>" in whole, operation
        assert all(char.isprintable() or char == "\n" for char in whole), operation
        assert all("\n" not in line for line in rendered)
