"""The documents' tables, written here again, compared with the profiles and with the documents.

If a clause says more than its table (what a claim counts, what an event records), other tests with that clause's
mark prove the rest.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.errors import TenureError
from tenure.kernel import profiles, refinement
from tenure.kernel.machines import RUN
from tenure.kernel.profile import DocumentEdge, Entity, IndirectEdge, Profile

SEEDS = Path(__file__).resolve().parents[2] / "docs" / "spec" / "seeds"
Edges = set[tuple[str, str]]


def edges(table: dict[str, str]) -> Edges:
    return {(source, target) for source, targets in table.items() for target in targets.split()}


def listed(profile: Profile, entity: Entity) -> Edges:
    """The document's edges according to the profile: state changes and indirect edges."""
    vocabulary = profile.vocabulary(entity)
    return {pair for row in (*vocabulary.edges, *vocabulary.indirect) for pair in row.pairs()}


def owners(profile: Profile, entity: Entity) -> dict[tuple[str, str], str]:
    rows: list[DocumentEdge | IndirectEdge] = [
        *profile.vocabulary(entity).edges,
        *profile.vocabulary(entity).indirect,
    ]
    return {pair: row.owner for row in rows for pair in row.pairs()}


def shown(profile: Profile, entity: Entity) -> Edges:
    """Every change of word that the kernel can show."""
    return set(refinement.find_word_changes(profile, entity).changes)


def extra_edges(profile: Profile, entity: Entity) -> Edges:
    return {pair for line in profile.vocabulary(entity).extra for pair in line.pairs()}


def seed(name: str) -> str:
    return (SEEDS / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """The part of a document under a heading, up to the next heading of the same or a higher level."""
    rank = len(heading) - len(heading.lstrip("#"))
    tail = text[text.index(f"\n{heading}") + len(heading) + 1 :]
    end = re.search(rf"^#{{1,{rank}}} ", tail, re.MULTILINE)
    return tail[: end.start()] if end else tail


def mermaid(text: str) -> Edges:
    return set(re.findall(r"^\s*(\w+) --> (\w+)", text, re.MULTILINE))


# ------------------------------------------------------------------------------------- Git With Intent

GWI_STATES = [
    "pending",
    "running",
    "awaiting_approval",
    "waiting_external",
    "completed",
    "failed",
    "cancelled",
]
GWI_RUN = edges({
    "pending": "running cancelled failed",
    "running": "completed failed cancelled awaiting_approval waiting_external",
    "awaiting_approval": "running completed failed cancelled",
    "waiting_external": "running completed failed cancelled",
})  # fmt: skip


def test_git_with_intent_matches_its_document() -> None:
    text = section(seed("git-with-intent.md"), "### 2.1")
    table = re.findall(r"^\| `(\w+)` \| (.+?) \|", text, re.MULTILINE)
    assert [state for state, _ in table] == GWI_STATES
    assert {(a, b) for a, targets in table for b in re.findall(r"`(\w+)`", targets)} == GWI_RUN


@pytest.mark.clause("GWI-01")
def test_git_with_intent_has_seven_states_three_of_them_terminal_and_two_that_resume() -> None:
    run = profiles.get("git-with-intent").run
    assert list(run.states) == GWI_STATES
    assert set(run.terminal) == {"completed", "failed", "cancelled"}
    seen = refinement.find_word_changes(profiles.get("git-with-intent"), "run")
    assert {word for _, word in seen.shown} == set(GWI_STATES)
    assert {word for state, word in seen.shown if state in RUN.terminal} == {
        "completed",
        "failed",
        "cancelled",
    }
    resumed = {source for source, target in seen.changes if target == "running" and source != "pending"}
    assert resumed == {"awaiting_approval", "waiting_external"}


@pytest.mark.clause("GWI-02")
def test_git_with_intent_accepts_exactly_its_transitions_and_refuses_every_other_pair() -> None:
    profile = profiles.get("git-with-intent")
    assert listed(profile, "run") == GWI_RUN
    assert extra_edges(profile, "run") == set()
    assert shown(profile, "run") == GWI_RUN
    for state in set(RUN.states) - RUN.terminal:
        for given in {edge.input for edge in RUN.edges}:
            if not any((edge.state, edge.input) == (state, given) for edge in RUN.edges):
                with pytest.raises(TenureError, match="RUN_INVALID_TRANSITION"):
                    RUN.take(state, given)


# --------------------------------------------------------------------------------------- approval runs

APR_STATES = ["PENDING", "RUNNING", "WAITING_APPROVAL", "SUCCEEDED", "FAILED", "CANCELED"]
APR_RUN = edges({
    "PENDING": "RUNNING CANCELED",
    "RUNNING": "WAITING_APPROVAL SUCCEEDED FAILED CANCELED",
    "WAITING_APPROVAL": "RUNNING SUCCEEDED FAILED CANCELED",
})  # fmt: skip
APR_STEP = edges({
    "PENDING": "RUNNING WAITING_APPROVAL CANCELED",
    "RUNNING": "SUCCEEDED PENDING FAILED CANCELED RUNNING",
    "WAITING_APPROVAL": "SUCCEEDED CANCELED",
})  # fmt: skip


def pipe_table(text: str) -> Iterator[tuple[str, str]]:
    for source, target in re.findall(r"^\| (`.+?) \| (`.+?) \|", text, re.MULTILINE):
        for a in re.findall(r"`(\w+)`", source):
            for b in re.findall(r"`(\w+)`", target):
                yield a, b


def test_approval_runs_matches_its_document() -> None:
    text = seed("approval-runs.md")
    for heading in ("### RunStatus", "### StepStatus"):
        assert re.findall(r"^- `(\w+)`", section(text, heading), re.MULTILINE) == APR_STATES
    assert set(pipe_table(section(text, "## Run transitions"))) == APR_RUN
    assert set(pipe_table(section(text, "## Step transitions"))) == APR_STEP


@pytest.mark.clause("APR-01")
def test_approval_runs_has_its_six_statuses_for_runs_and_for_steps() -> None:
    profile = profiles.get("approval-runs")
    for entity in ("run", "step"):
        assert list(profile.vocabulary(entity).states) == APR_STATES
        seen = refinement.find_word_changes(profile, "run" if entity == "run" else "step")
        assert {word for _, word in seen.shown} == set(APR_STATES)


@pytest.mark.clause("APR-02")
def test_approval_runs_shows_its_run_transitions_and_the_run_itself_waits_for_approval() -> None:
    profile = profiles.get("approval-runs")
    assert listed(profile, "run") == APR_RUN
    assert shown(profile, "run") == APR_RUN | {("PENDING", "FAILED")}
    assert profile.word("run", "waiting_approval") == "WAITING_APPROVAL"


def test_approval_runs_shows_its_step_transitions() -> None:
    profile = profiles.get("approval-runs")
    assert listed(profile, "step") == APR_STEP
    assert shown(profile, "step") - extra_edges(profile, "step") == APR_STEP - {("RUNNING", "RUNNING")}
    assert profile.strict_sequence
    assert not profile.optional_steps


# ------------------------------------------------------------------------------------ governed runtime

GOV_RUN = edges({
    "queued": "running canceled",
    "running": "waiting_approval succeeded failed_retryable failed_terminal canceled",
    "waiting_approval": "running failed_terminal",
})  # fmt: skip
GOV_STEP = edges({
    "ready": "running canceled",
    "running": "succeeded waiting_approval failed_retryable failed_terminal canceled",
    "waiting_approval": "ready failed_terminal",
})  # fmt: skip


def test_governed_runtime_matches_its_document() -> None:
    text = seed("governed-runtime.md")
    assert mermaid(section(text, "### 2.1")) == GOV_RUN
    assert mermaid(section(text, "### 2.2")) == GOV_STEP


@pytest.mark.clause("GOV-05")
def test_governed_runtime_has_the_run_machine_of_2_1() -> None:
    profile = profiles.get("governed-runtime")
    assert set(profile.run.states) == {
        "queued", "running", "waiting_approval", "succeeded", "failed_retryable", "failed_terminal", "canceled",
    }  # fmt: skip
    assert listed(profile, "run") == GOV_RUN
    assert shown(profile, "run") == GOV_RUN | extra_edges(profile, "run")


@pytest.mark.clause("GOV-06")
def test_governed_runtime_has_the_step_machine_of_2_2() -> None:
    profile = profiles.get("governed-runtime")
    assert set(profile.step.states) == {
        "ready", "running", "succeeded", "waiting_approval", "failed_retryable", "failed_terminal", "canceled",
    }  # fmt: skip
    assert listed(profile, "step") == GOV_STEP
    assert shown(profile, "step") == GOV_STEP | extra_edges(profile, "step")


# -------------------------------------------------------------------------------------------- Delta CI

ORCHESTRATOR, RUNNER, REPORTER = "Orchestrator", "Runner", "Status Reporter"
DCI_RUN_STATES = {
    "CREATED", "PLANNING", "PLAN_FAILED", "QUEUED", "RUNNING", "CANCEL_REQUESTED", "SUCCESS", "FAILED", "CANCELED",
    "TIMEOUT", "REPORTED",
}  # fmt: skip
DCI_RUN = [
    ("CREATED", "PLANNING", ORCHESTRATOR),
    ("PLANNING", "QUEUED", ORCHESTRATOR),
    ("PLANNING", "PLAN_FAILED", ORCHESTRATOR),
    ("PLAN_FAILED", "FAILED", ORCHESTRATOR),
    ("QUEUED", "RUNNING", ORCHESTRATOR),
    ("RUNNING", "SUCCESS", ORCHESTRATOR),
    ("RUNNING", "FAILED", ORCHESTRATOR),
    ("RUNNING|QUEUED", "CANCEL_REQUESTED", ORCHESTRATOR),
    ("CANCEL_REQUESTED", "CANCELED", ORCHESTRATOR),
    ("RUNNING", "TIMEOUT", ORCHESTRATOR),
    ("SUCCESS|FAILED|CANCELED|TIMEOUT", "REPORTED", REPORTER),
]
DCI_JOB_STATES = {
    "CREATED", "QUEUED", "LEASED", "STARTING", "RUNNING", "UPLOADING", "SUCCEEDED", "FAILED", "CANCEL_REQUESTED",
    "CANCELED", "TIMED_OUT", "STALE",
}  # fmt: skip
DCI_JOB = [
    ("CREATED", "QUEUED", ORCHESTRATOR),
    ("QUEUED", "LEASED", ORCHESTRATOR),
    ("LEASED", "STARTING", ORCHESTRATOR),
    ("STARTING", "RUNNING", ORCHESTRATOR),
    ("RUNNING", "UPLOADING", RUNNER),
    ("UPLOADING", "SUCCEEDED|FAILED", ORCHESTRATOR),
    ("LEASED|STARTING|RUNNING", "QUEUED", ORCHESTRATOR),
    ("RUNNING", "TIMED_OUT", ORCHESTRATOR),
    ("QUEUED|LEASED|STARTING|RUNNING", "CANCEL_REQUESTED", ORCHESTRATOR),
    ("CANCEL_REQUESTED", "CANCELED", ORCHESTRATOR),
    ("FAILED|TIMED_OUT", "QUEUED", ORCHESTRATOR),
]
DCI_LEASE = edges({"GRANTED": "ACTIVE EXPIRED REVOKED", "ACTIVE": "EXPIRED COMPLETED CANCELED REVOKED"})


def owned(lines: list[tuple[str, str, str]]) -> dict[tuple[str, str], str]:
    return {
        (a, b): owner
        for sources, targets, owner in lines
        for a in sources.split("|")
        for b in targets.split("|")
    }


def numbered(text: str) -> list[tuple[str, str, str]]:
    found = re.findall(
        r"^\d+\. `([A-Z_|]+) -> ([A-Z_|]+)`(?:.*\n\s+\*\*Owner:\*\* (\w+(?: Reporter)?))?", text, re.MULTILINE
    )
    return [(source, target, owner) for source, target, owner in found]


def test_delta_ci_matches_its_document() -> None:
    text = seed("delta-ci.md")
    run, job = section(text, "## Run State Machine"), section(text, "## Job State Machine")
    assert set(re.findall(r"^- `(\w+)` —", section(run, "### States"), re.MULTILINE)) == DCI_RUN_STATES
    assert set(re.findall(r"^- `(\w+)` —", section(job, "### Job States"), re.MULTILINE)) == DCI_JOB_STATES
    assert numbered(run) == DCI_RUN
    assert numbered(job) == DCI_JOB
    assert set(owned(numbered(section(text, "## Lease State Machine")))) == DCI_LEASE


def test_delta_ci_has_its_run_transitions_with_their_owners() -> None:
    profile = profiles.get("delta-ci")
    assert set(profile.run.states) == DCI_RUN_STATES
    assert owners(profile, "run") == owned(DCI_RUN)
    reported = {pair for pair in owned(DCI_RUN) if pair[1] == "REPORTED"}
    assert shown(profile, "run") == (set(owned(DCI_RUN)) - reported) | extra_edges(profile, "run")
    assert profile.reported_word == "REPORTED"


def test_delta_ci_has_its_job_transitions_with_their_owners_for_the_job_and_for_the_attempt() -> None:
    profile = profiles.get("delta-ci")
    assert set(profile.attempt.states) == DCI_JOB_STATES
    assert set(profile.step.states) == DCI_JOB_STATES - {"STALE"}
    assert owners(profile, "step") == owned(DCI_JOB)
    assert owners(profile, "attempt") == owned(DCI_JOB)
    assert shown(profile, "step") == set(owned(DCI_JOB)) | extra_edges(profile, "step")
    again = {(a, b) for a, b in owned(DCI_JOB) if b == "QUEUED" and a != "CREATED"}
    assert shown(profile, "attempt") == (set(owned(DCI_JOB)) - again) | extra_edges(profile, "attempt")


@pytest.mark.clause("DCI-09")
def test_delta_ci_has_its_lease_machine_revocation_included() -> None:
    profile = profiles.get("delta-ci")
    assert set(profile.lease.states) == {"GRANTED", "ACTIVE", "EXPIRED", "REVOKED", "COMPLETED", "CANCELED"}
    assert listed(profile, "lease") == DCI_LEASE
    assert shown(profile, "lease") == DCI_LEASE


# ------------------------------------------------------------------------------------------ agent runs

AGR_RUN = edges({"requested": "queued", "queued": "running", "running": "completed failed"})


def test_agent_runs_matches_its_document() -> None:
    text = seed("agent-runs-uk.md")
    assert mermaid(section(text, "### 1.1")) == AGR_RUN
    table = re.findall(r"^\| `(\w+) → (\w+)`", section(text, "### 1.4"), re.MULTILINE)
    assert set(table) == AGR_RUN | {("running", "running")}


def test_agent_runs_only_moves_forward_and_ends_completed_or_failed() -> None:
    profile = profiles.get("agent-runs")
    assert listed(profile, "run") == AGR_RUN | {("running", "running")}
    assert shown(profile, "run") == AGR_RUN | {("requested", "failed"), ("queued", "failed")}
    order = ["requested", "queued", "running", "completed", "failed"]
    assert list(profile.run.states) == order
    assert [pair for pair in shown(profile, "run") if order.index(pair[0]) > order.index(pair[1])] == []
    assert {source for source, _ in shown(profile, "run")} & {"completed", "failed"} == set()


@pytest.mark.clause("AGR-08")
def test_agent_runs_has_the_defaults_of_5_1() -> None:
    timing = profiles.get("agent-runs").timing
    assert timing.retries == 3
    assert [timing.backoff.nominal_seconds(n) for n in (1, 2, 3)] == [1, 2, 4]
    assert timing.step_timeout_seconds == 120
    assert timing.run_timeout_seconds == 600
    text = section(seed("agent-runs-uk.md"), "### 5.1")
    for figure in ("| 3 |", "(1s, 2s, 4s)", "120 секунд", "600 секунд"):
        assert figure in text


def test_git_with_intent_sends_heartbeats_every_30_seconds_and_orphans_after_5_minutes() -> None:
    profile = profiles.get("git-with-intent")
    assert (profile.timing.heartbeat_seconds, profile.timing.lease_seconds) == (30, 300)
    assert profile.recovery == "resume_or_fail"
    text = section(seed("git-with-intent.md"), "### 5.4")
    assert "heartbeat every 30 seconds" in text
    assert "(> 5 minutes)" in text
