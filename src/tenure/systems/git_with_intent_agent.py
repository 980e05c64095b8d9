"""The agent of `tenure up git-with-intent`: it plans, changes a file on a branch of its own, and opens a pull request.

Laws:
1. The model only proposes. Everything that changes GitHub is an action under the tenant's policy.
2. The pull request is opened for one commit and one diff: the approval of `pull.open` covers both, and the connector compares them with
   what GitHub has.
3. The commit is made on the head that the hook reported.
"""

from __future__ import annotations

from typing import Any

import tenure

CHANGED_FILE = "CHANGELOG.md"


@tenure.step(agent="planner")
async def plan_change(title: str) -> dict[str, str]:
    """What to do about a pull request, as a model would say it. (This one does not think, but it reports a cost.)"""
    tenure.report_cost("example", "fake-1", tokens_in=len(title.split()), tokens_out=12, money="0.0003")
    return {"intent": f"Describe {title!r} in the change log", "file": CHANGED_FILE}


@tenure.step(agent="writer")
async def write_file(title: str) -> str:
    """The new content of the file."""
    tenure.report_cost("example", "fake-1", tokens_in=40, tokens_out=20, money="0.0008")
    return f"# Changes\n\n- {title}\n"


@tenure.workflow(name="git-with-intent", profile="git-with-intent", compensate=True, budget="1 USD")
async def assist(repo: str, number: int, title: str, head: str, branch: str) -> dict[str, Any]:
    """Help with pull request `number`, whose branch `branch` ends with `head`."""
    plan = await plan_change(title)
    content = await write_file(title)
    own = {"repo": repo, "branch": f"agent/pr-{number}"}
    await tenure.act("github.branch.create", target=own, fields={"sha": head})
    made = await tenure.act(
        "github.commit.create",
        target=own,
        fields={
            "base": head,
            "message": plan["intent"],
            "files": [{"path": plan["file"], "content": content}],
        },
    )
    added = "".join(f"+{line}\n" for line in content.splitlines())
    opened = await tenure.act(
        "github.pull.open",
        target={"repo": repo},
        fields={
            "head": own["branch"],
            "base": branch,
            "title": plan["intent"],
            "body": f"For #{number}.\n\n```diff\n+++ {plan['file']}\n{added}```",
            "sha": made["sha"],
            "diff": made["diff"],
        },
        why=plan["intent"],
    )
    await tenure.act(
        "github.comment.create",
        target={"repo": repo, "number": number},
        fields={"body": f"I opened #{opened['number']}."},
    )
    return {"pull": opened["number"], "commit": made["sha"], "diff": made["diff"]}
