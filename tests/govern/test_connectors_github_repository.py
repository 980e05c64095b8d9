"""Branches, commits, pull requests and reviews at GitHub: expected heads, diff digests, lost answers and undos."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tenure
from tenure.govern.connectors.github import GitHubConnector
from tenure.govern.connectors.github_repository import commit_digest, diff_digest
from tenure.sdk import Workflow
from tenure.testing import Lab
from tenure.testing.doubles import GitHubDouble
from tests.govern.test_connectors_services import TOKEN, ConnectorDriver, link

REPO = "acme/app"
BRANCH = {"repo": REPO, "branch": "agent/fix-1"}
MAIN = {"repo": REPO, "branch": "main"}
FILES: list[dict[str, Any]] = [
    {"path": "src/app.py", "content": "print('fixed')\n"},
    {"path": "old.txt", "content": None},
]


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", TOKEN)


@pytest.fixture
def github() -> Iterator[GitHubDouble]:
    with GitHubDouble(token=TOKEN) as double:
        double.git.repository(REPO, {"src/app.py": "print('broken')\n", "old.txt": "old"})
        yield double


@pytest.fixture
def driver(github: GitHubDouble) -> ConnectorDriver:
    return ConnectorDriver(GitHubConnector(link=link(github)))


def base_of(github: GitHubDouble) -> str:
    return str(github.git.head(REPO, "main"))


async def make_commit(driver: ConnectorDriver, github: GitHubDouble) -> dict[str, Any]:
    """A branch with one commit."""
    base = base_of(github)
    await driver.do("branch.create", BRANCH, {"sha": base})
    made: dict[str, Any] = await driver.do(
        "commit.create", BRANCH, {"base": base, "message": "Fix it", "files": FILES}
    )
    return made


def pull_fields(made: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "head": BRANCH["branch"],
        "base": "main",
        "title": "Fix",
        "body": "It was broken.",
        "sha": made["sha"],
        "diff": made["diff"],
        **more,
    }


async def test_a_branch_is_created_once_and_deleted_only_where_it_was_left(
    github: GitHubDouble, driver: ConnectorDriver
) -> None:
    base = base_of(github)
    github.trouble(drop="after")
    assert (await driver.fault("branch.create", BRANCH, {"sha": base})).outcome == "unknown"
    way = await driver.do_and_get_reversal("branch.create", BRANCH, {"sha": base})
    assert way is None, "it was there before: an undo must not delete it"
    way = driver.connector.reverse("branch.create", BRANCH, {"sha": base}, {"head": None}, {})
    github.git.push(REPO, "agent/fix-1", {"a": "b"})
    assert not await driver.reverse(way), "somebody has committed to it"
    github.git.repositories[REPO].branches["agent/fix-1"] = base
    assert await driver.reverse(way)
    assert github.git.head(REPO, "agent/fix-1") is None
    assert way is not None
    await driver.do(way.operation, way.target, way.fields)  # deleting a missing branch succeeds

    other = github.git.push(REPO, "main", {"c": "d"})
    await driver.do("branch.create", BRANCH, {"sha": base})
    refused = await driver.fault("branch.create", BRANCH, {"sha": other})
    assert (refused.outcome, refused.code) == ("not_done", "CONNECTOR_REJECTED")
    restore = await driver.do_and_get_reversal("branch.delete", BRANCH, {"sha": base})
    assert await driver.reverse(restore)
    assert github.git.head(REPO, "agent/fix-1") == base


async def test_a_commit_is_made_only_on_the_expected_head(
    github: GitHubDouble, driver: ConnectorDriver
) -> None:
    base = base_of(github)
    await driver.do("branch.create", BRANCH, {"sha": base})
    fields = {"base": base, "message": "Fix it\n\nBecause it was broken.", "files": FILES}
    moved = github.git.push(REPO, "agent/fix-1", {"x": "y"})
    refused = await driver.fault("commit.create", BRANCH, fields)
    assert (refused.outcome, refused.code) == ("not_done", "CONNECTOR_REJECTED")
    assert "STALE_DATA" in refused.message
    assert github.git.head(REPO, "agent/fix-1") == moved, "nothing was written"

    github.git.repositories[REPO].branches["agent/fix-1"] = base
    assert await driver.found("commit.create", BRANCH, fields) is None
    github.trouble(drop="after")
    assert (await driver.fault("commit.create", BRANCH, fields)).outcome == "unknown"
    found = await driver.found("commit.create", BRANCH, fields)
    assert found["sha"] == github.git.head(REPO, "agent/fix-1")
    assert found["diff"] == commit_digest(base, FILES)
    again = await driver.do("commit.create", BRANCH, fields)
    assert again["sha"] == found["sha"], "a repeated call finds its own commit"
    assert len(github.git.log(REPO, "agent/fix-1")) == 2
    assert github.git.files(REPO, "agent/fix-1") == {"src/app.py": "print('fixed')\n"}
    assert await driver.found("commit.create", BRANCH, fields, key="another") is None
    for odd in ("../x", "/etc/passwd", "a//b", ".git/config"):
        fault = await driver.fault(
            "commit.create", BRANCH, {**fields, "files": [{"path": odd, "content": "x"}]}
        )
        assert (fault.outcome, fault.code) == ("not_done", "INVALID_INPUT")


async def test_a_commit_is_undone_by_moving_its_branch_back_or_by_a_revert(
    github: GitHubDouble, driver: ConnectorDriver
) -> None:
    base = base_of(github)
    await driver.do("branch.create", BRANCH, {"sha": base})
    fields = {"base": base, "message": "Fix it", "files": FILES}
    back = await driver.do_and_get_reversal("commit.create", BRANCH, fields)
    assert back is not None
    assert back.operation == "branch.move"
    pushed = github.git.push(REPO, "agent/fix-1", {"x": "y"})
    assert not await driver.reverse(back), "the branch no longer ends with our commit"
    assert github.git.head(REPO, "agent/fix-1") == pushed
    # The connector's check and the call are two requests: GitHub itself refuses a branch that moved between them.
    refused = await driver.fault(back.operation, back.target, back.fields)
    assert (refused.outcome, "STALE_DATA" in refused.message) == ("not_done", True)
    github.git.repositories[REPO].branches["agent/fix-1"] = back.fields["expected"]
    assert await driver.reverse(back)
    assert github.git.head(REPO, "agent/fix-1") == base

    protected = await driver.do_and_get_reversal("commit.create", MAIN, fields)
    assert protected is not None
    assert protected.operation == "commit.revert"
    assert await driver.reverse(protected)
    assert github.git.files(REPO, "main") == {"src/app.py": "print('broken')\n", "old.txt": "old"}
    assert len(github.git.log(REPO, "main")) == 3, "the history stays"
    github.git.repositories[REPO].protected.clear()
    default = await driver.do_and_get_reversal("commit.create", MAIN, {**fields, "base": base_of(github)})
    assert default is not None
    assert default.operation == "commit.revert", "that of the default branch, too"


async def test_a_pull_request_is_opened_for_exactly_the_approved_diff(
    github: GitHubDouble, driver: ConnectorDriver
) -> None:
    made = await make_commit(driver, github)
    target, fields = {"repo": REPO}, pull_fields(made)
    wrong = await driver.fault("pull.open", target, {**fields, "diff": "0" * 64})
    assert (wrong.outcome, wrong.code) == ("not_done", "CONNECTOR_REJECTED")
    pushed = github.git.push(REPO, "agent/fix-1", {"backdoor.py": "evil"})
    assert "what was approved" in (await driver.fault("pull.open", target, fields)).message
    sneaky = {**fields, "sha": pushed}
    assert "diff" in (await driver.fault("pull.open", target, sneaky)).message
    assert github.git.pulls(REPO) == []

    github.git.repositories[REPO].branches["agent/fix-1"] = made["sha"]
    github.git.push(REPO, "main", {"other.txt": "main goes on"})  # the merge base stays
    github.trouble(drop="after")
    assert (await driver.fault("pull.open", target, fields)).outcome == "unknown"
    found = await driver.found("pull.open", target, fields)
    again = await driver.do("pull.open", target, fields)
    assert (again["number"], len(github.git.pulls(REPO))) == (found["number"], 1)
    way = driver.connector.reverse("pull.open", target, fields, None, found)
    assert await driver.reverse(way)
    [pull] = github.git.pulls(REPO)
    assert (pull.state, pull.merge_commit) == ("closed", None)
    reopen = driver.connector.reverse("pull.close", way.target, {}, {"state": "open"}, {}) if way else None
    assert await driver.reverse(reopen)
    assert pull.state == "open"


async def test_a_merge_happens_once_at_the_expected_head_and_is_undone_by_a_revert(
    github: GitHubDouble, driver: ConnectorDriver
) -> None:
    made = await make_commit(driver, github)
    number = (await driver.do("pull.open", {"repo": REPO}, pull_fields(made)))["number"]
    target, fields = {"repo": REPO, "number": number}, {"sha": made["sha"], "diff": made["diff"]}
    pushed = github.git.push(REPO, "agent/fix-1", {"backdoor.py": "evil"})
    refused = await driver.fault("pull.merge", target, fields)
    assert (refused.outcome, refused.code) == ("not_done", "CONNECTOR_REJECTED")
    assert "409" in refused.message, "GitHub compares the head itself"
    changed = await driver.fault("pull.merge", target, {**fields, "sha": pushed})
    assert "diff" in changed.message
    assert github.git.pulls(REPO)[0].merge_commit is None

    github.git.repositories[REPO].branches["agent/fix-1"] = made["sha"]
    before = await driver.connector.state(driver.order("pull.merge", target, fields))
    github.trouble(drop="after")
    assert (await driver.fault("pull.merge", target, fields)).outcome == "unknown"
    found = await driver.found("pull.merge", target, fields)
    assert found["merge_commit"] == base_of(github)
    assert (await driver.do("pull.merge", target, fields)) == found, "a repeated merge is the same merge"
    assert await driver.found("pull.merge", target, fields, key="another") is None, "not that of another run"
    with pytest.raises(Exception, match="somebody else has merged"):
        await driver.do("pull.merge", target, fields, key="another")

    way = driver.connector.reverse("pull.merge", target, fields, before, found)
    assert await driver.reverse(way)
    _, revert = github.git.pulls(REPO)
    assert (revert.base, revert.state) == ("main", "open")
    assert github.git.files(REPO, revert.head)["src/app.py"] == "print('broken')\n"


async def test_a_changed_pull_request_is_restored(github: GitHubDouble, driver: ConnectorDriver) -> None:
    made = await make_commit(driver, github)
    number = (await driver.do("pull.open", {"repo": REPO}, pull_fields(made)))["number"]
    target = {"repo": REPO, "number": number}
    [pull] = github.git.pulls(REPO)
    way = await driver.do_and_get_reversal("pull.update", target, {"title": "Better", "base": "main"})
    assert pull.title == "Better"
    pull.title = "Best"
    assert not await driver.reverse(way)
    pull.title = "Better"
    assert await driver.reverse(way)
    assert pull.title == "Fix"


async def test_a_review_is_found_and_undone_by_its_dismissal(
    github: GitHubDouble, driver: ConnectorDriver
) -> None:
    made = await make_commit(driver, github)
    number = (await driver.do("pull.open", {"repo": REPO}, pull_fields(made)))["number"]
    target = {"repo": REPO, "number": number}
    fields = {"event": "REQUEST_CHANGES", "sha": made["sha"], "body": "A test is missing."}
    stale = await driver.fault("review.submit", target, {**fields, "sha": base_of(github)})
    assert (stale.outcome, stale.code) == ("not_done", "CONNECTOR_REJECTED")
    github.trouble(drop="after")
    assert (await driver.fault("review.submit", target, fields)).outcome == "unknown"
    found = await driver.found("review.submit", target, fields)
    assert found["state"] == "CHANGES_REQUESTED"
    way = driver.connector.reverse("review.submit", target, fields, None, found)
    assert await driver.reverse(way)
    assert github.git.pulls(REPO)[0].reviews[found["id"]]["state"] == "DISMISSED"
    assert not await driver.reverse(way), "it is dismissed already"
    spoken = await driver.do("review.submit", target, {**fields, "event": "COMMENT"}, key="k3")
    assert driver.connector.reverse("review.submit", target, fields, None, spoken) is None


def test_a_diff_digest_covers_base_paths_and_contents() -> None:
    whole = commit_digest("1" * 40, FILES)
    assert whole != commit_digest("2" * 40, FILES)
    assert whole != commit_digest("1" * 40, FILES[:1])
    assert whole != commit_digest("1" * 40, [{**FILES[0], "content": "print('Fixed')\n"}, FILES[1]])
    assert whole == commit_digest("1" * 40, FILES[::-1])
    empty = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"  # git's own name of the empty file
    assert commit_digest("1" * 40, [{"path": "a", "content": ""}]) == diff_digest("1" * 40, {"a": empty})


def test_approvers_see_base_diff_and_contents() -> None:
    fields = {"base": "1" * 40, "message": "Fix it", "files": FILES}
    shown = "\n".join(GitHubConnector().render("commit.create", BRANCH, fields))
    for part in (
        f"{REPO}:agent/fix-1",
        "1" * 40,
        commit_digest("1" * 40, FILES),
        "print('fixed')",
        "delete old.txt",
    ):
        assert part in shown


async def test_a_rate_limit_of_graphql_is_waited_for(github: GitHubDouble, driver: ConnectorDriver) -> None:
    base = base_of(github)
    fields = {"base": base, "message": "Fix it", "files": FILES}
    limited = {"errors": [{"type": "RATE_LIMITED", "message": "slow down"}]}
    github.trouble(status=200, json=limited)
    fault = await driver.fault("commit.create", MAIN, fields)
    assert (fault.outcome, fault.code, fault.retryable) == ("not_done", "CONNECTOR_RATE_LIMITED", True)
    github.trouble(status=200, json={"errors": [{"message": "Something went wrong"}]})
    assert (await driver.fault("commit.create", MAIN, fields)).outcome == "unknown"


POLICY = """
version: 1
rules:
  - name: drafts
    connector: github
    operation: [branch.create, branch.delete, branch.move, pull.close]
    allow: true
  - {name: writes, connector: github, operation: [commit.create, pull.open], approval: {tier: low, within: 1h}}
"""


async def _propose(base: str) -> Any:
    await tenure.act("github.branch.create", target=BRANCH, fields={"sha": base})
    made = await tenure.act(
        "github.commit.create", target=BRANCH, fields={"base": base, "message": "Fix", "files": FILES}
    )
    return await tenure.act("github.pull.open", target={"repo": REPO}, fields=pull_fields(made))


async def test_an_approval_is_for_one_base_and_one_diff(github: GitHubDouble) -> None:
    """The branch moves after the approval: the approved commit is refused, and nothing else is written."""
    flow = Workflow(_propose, name="propose")
    service = link(github)
    service.tokens["default"] = service.tokens["acme"]
    async with Lab(flow, connectors=[GitHubConnector("github", service)], policy=POLICY) as lab:
        run = await lab.start(flow, base_of(github))
        await run.reaches("waiting_approval")
        moved = github.git.push(REPO, "agent/fix-1", {"x": "y"})
        await lab.approve(run)
        await run.reaches("failed")
        assert github.git.head(REPO, "agent/fix-1") == moved
        assert github.git.pulls(REPO) == []
