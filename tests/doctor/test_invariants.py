"""Each invariant is violated by its damage: healthy runs are clean, damaged runs are not."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenure import limits
from tenure.clock import us
from tenure.doctor import INVARIANTS, DatabaseSummary, RunDump, check_database, check_run
from tenure.doctor.database_checks import DATABASE_CHECKS, LeaseCount, RatedStart, WriteCount
from tenure.kernel.act_rows import ReceiptRow
from tenure.kernel.ci_rows import LogChunkRow
from tenure.kernel.governance_rows import EvidenceRow
from tenure.kernel.run_rows import AttemptRow, Cap, OutboxRow, PayloadRow, StepRow
from tenure.kernel.server_rows import ArtifactRow
from tests.doctor import healthy_runs
from tests.doctor.healthy_runs import Body, rechain, rewrite
from tests.kernel.story import BEGIN_US, Story

LATER_US = BEGIN_US + us(1e6)

Damage = Callable[[RunDump], None]
CASES: list[Any] = []


def breaks(number: str, story: Callable[[], Story]) -> Callable[[Damage], Damage]:
    """Register a damage to a healthy run, and the invariant that must report it."""

    def register(damage: Damage) -> Damage:
        CASES.append(pytest.param(number, story, damage, id=f"{number}-{damage.__name__}"))
        return damage

    return register


@pytest.mark.parametrize("story", healthy_runs.ALL, ids=lambda story: story.__name__)
def test_a_healthy_run_is_clean(story: Callable[[], Story]) -> None:
    assert story().violations() == []


@pytest.mark.parametrize(("number", "story", "damage"), CASES)
def test_damage_to_a_run_is_found(number: str, story: Callable[[], Story], damage: Damage) -> None:
    bundle = story().bundle().copied()
    damage(bundle)
    found = check_run(bundle, settled=INVARIANTS[number].scope == "eventual", now=LATER_US)
    assert number in {violation.number for violation in found}, found
    assert all(violation.row and violation.text for violation in found)
    assert all(violation.run_id == bundle.run.id for violation in found)


def step(bundle: RunDump, name: str) -> StepRow:
    return next(row for row in bundle.steps if row.name == name)


def attempt(bundle: RunDump, name: str, n: int) -> AttemptRow:
    idx = step(bundle, name).idx
    return next(row for row in bundle.attempts if (row.idx, row.n) == (idx, n))


# ---------------------------------------------------------------------------------------------- states


@breaks("I1", healthy_runs.working)
def an_unknown_status(bundle: RunDump) -> None:
    bundle.run.status = "sleeping"


@breaks("I1", healthy_runs.working)
def an_unknown_step_state(bundle: RunDump) -> None:
    step(bundle, "one").state = "sleeping"


@breaks("I1", healthy_runs.working)
def an_unknown_kind(bundle: RunDump) -> None:
    step(bundle, "one").kind = "play"


@breaks("I1", healthy_runs.working)
def an_unknown_lease(bundle: RunDump) -> None:
    attempt(bundle, "one", 1).lease = "rented"


@breaks("I1", healthy_runs.working)
def an_unknown_attempt(bundle: RunDump) -> None:
    attempt(bundle, "one", 1).state = "trying"


@breaks("I1", healthy_runs.asking)
def an_unknown_approval(bundle: RunDump) -> None:
    bundle.approvals[0].status = "perhaps"


@breaks("I1", healthy_runs.asking)
def an_unknown_wait(bundle: RunDump) -> None:
    bundle.waits[0].state, bundle.waits[0].outcome = "ajar", "maybe"


@breaks("I1", healthy_runs.asking)
def an_unknown_child(bundle: RunDump) -> None:
    bundle.children[0].state = "grown"


@breaks("I1", healthy_runs.retried)
def an_unknown_checkpoint(bundle: RunDump) -> None:
    bundle.checkpoints[0].state = "half"


@breaks("I2", healthy_runs.retried)
def an_edge_that_is_in_no_table(bundle: RunDump) -> None:
    def change(body: Body) -> None:
        body["edges"][0]["edges"][0] = ["step", "running", "pending", "orchestrator"]

    rewrite(bundle, "complete", change)


@breaks("I2", healthy_runs.retried)
def an_edge_with_another_owner(bundle: RunDump) -> None:
    def change(body: Body) -> None:
        body["edges"][0]["edges"][0][3] = "person"

    rewrite(bundle, "complete", change)


@breaks("I2", healthy_runs.retried)
def edges_that_do_not_connect(bundle: RunDump) -> None:
    rewrite(bundle, "complete", lambda body: body["edges"][0]["edges"].pop(0))


@breaks("I2", healthy_runs.retried)
def an_edge_without_a_step(bundle: RunDump) -> None:
    rewrite(bundle, "complete", lambda body: body["edges"][0].pop("step"))


@breaks("I2", healthy_runs.working)
def a_new_attempt_before_the_last_one_ended(bundle: RunDump) -> None:
    created = ["attempt", "created", "queued", "orchestrator"]
    rewrite(bundle, "claim", lambda body: body["edges"][0]["edges"].append(created))


@breaks("I2", healthy_runs.retried)
def a_state_other_than_the_last_in_the_history(bundle: RunDump) -> None:
    step(bundle, "test").state = "failed"


@breaks("I2", healthy_runs.lease_expired)
def a_lease_state_other_than_the_last_in_the_history(bundle: RunDump) -> None:
    attempt(bundle, "build", 1).lease = "revoked"


@breaks("I2", healthy_runs.lease_expired)
def a_claim_without_its_attempt(bundle: RunDump) -> None:
    bundle.attempts.pop()


@breaks("I2", healthy_runs.gated)
def an_approval_that_changes_after_its_decision(bundle: RunDump) -> None:
    def change(body: Body) -> None:
        body["set"]["approval"] = {"1": {"status": "rejected"}}

    rewrite(bundle, "complete", change, nth=1)


@breaks("I2", healthy_runs.gated)
def a_wait_that_ends_twice(bundle: RunDump) -> None:
    def change(body: Body) -> None:
        body["set"]["wait"] = {"1": {"state": "closed"}}

    rewrite(bundle, "complete", change, nth=1)


@breaks("I4", healthy_runs.retried)
def a_move_after_the_end(bundle: RunDump) -> None:
    event = copy.copy(bundle.events[1])
    event.seq, event.at = len(bundle.events) + 1, bundle.run.event_at
    bundle.events.append(event)
    bundle.run.version = event.seq
    rechain(bundle)


@breaks("I4", healthy_runs.working)
def a_move_of_a_closed_step(bundle: RunDump) -> None:
    def change(body: Body) -> None:
        body["edges"].append({"step": 2, "move": "drop", "edges": [["step", "ready", "canceled", "x"]]})
        body["edges"].append({"step": 2, "move": "claim", "edges": [["step", "ready", "leased", "x"]]})

    rewrite(bundle, "claim", change, nth=1)


@breaks("I5", healthy_runs.retried)
def an_end_without_a_time(bundle: RunDump) -> None:
    bundle.run.finished_at = None


@breaks("I5", healthy_runs.retried)
def a_step_without_a_reason(bundle: RunDump) -> None:
    step(bundle, "build").reason = None


@breaks("I5", healthy_runs.retried)
def an_attempt_without_a_reason(bundle: RunDump) -> None:
    attempt(bundle, "build", 1).reason = None


@breaks("I5", healthy_runs.working)
def an_open_run_with_a_reason(bundle: RunDump) -> None:
    bundle.run.reason = "done"


@breaks("I5", healthy_runs.lease_expired)
def a_live_lease_of_an_ended_attempt(bundle: RunDump) -> None:
    attempt(bundle, "build", 1).lease = "active"


@breaks("I5", healthy_runs.asking)
def an_open_wait_with_an_outcome(bundle: RunDump) -> None:
    bundle.waits[0].outcome = "approved"


@breaks("I5", healthy_runs.asking)
def an_open_question_with_a_date(bundle: RunDump) -> None:
    bundle.approvals[0].decided_at = BEGIN_US


@breaks("I6", healthy_runs.retried)
def a_start_before_the_creation(bundle: RunDump) -> None:
    bundle.run.started_at = bundle.run.created_at - 1


@breaks("I6", healthy_runs.retried)
def a_duration_that_does_not_agree(bundle: RunDump) -> None:
    assert bundle.run.duration_us is not None
    bundle.run.duration_us += 1


@breaks("I6", healthy_runs.retried)
def a_run_that_ends_before_it_starts(bundle: RunDump) -> None:
    bundle.run.finished_at = bundle.run.created_at - 1


@breaks("I6", healthy_runs.retried)
def a_step_that_ends_before_it_was_made(bundle: RunDump) -> None:
    row = step(bundle, "build")
    row.finished_at = row.created_at - 1


@breaks("I6", healthy_runs.retried)
def a_step_older_than_its_run(bundle: RunDump) -> None:
    step(bundle, "build").created_at -= 1


@breaks("I6", healthy_runs.lease_expired)
def an_attempt_that_ends_before_it_begins(bundle: RunDump) -> None:
    row = attempt(bundle, "build", 1)
    row.ended_at = row.granted_at - 1


@breaks("I6", healthy_runs.lease_expired)
def an_attempt_older_than_its_run(bundle: RunDump) -> None:
    attempt(bundle, "build", 1).granted_at = bundle.run.created_at - 1


@breaks("I6", healthy_runs.gated)
def a_wait_that_ends_before_it_opens(bundle: RunDump) -> None:
    bundle.waits[0].settled_at = bundle.waits[0].opened_at - 1


@breaks("I9", healthy_runs.planning)
def planning_without_a_plan_step(bundle: RunDump) -> None:
    bundle.steps.clear()


@breaks("I9", healthy_runs.planned)
def a_plan_step_that_counts(bundle: RunDump) -> None:
    bundle.run.steps_total += 1


@breaks("I9", healthy_runs.planned)
def a_plan_from_a_plan_step_that_failed(bundle: RunDump) -> None:
    step(bundle, "$plan").state = "failed"


@breaks("I9", healthy_runs.planned)
def a_second_plan_step(bundle: RunDump) -> None:
    step(bundle, "test").kind = "plan"


@breaks("I9", healthy_runs.planned)
def a_plan_step_that_others_need(bundle: RunDump) -> None:
    step(bundle, "$plan").dependents = "1"


@breaks("I9", healthy_runs.planning)
def a_plan_step_in_the_place_of_another_step(bundle: RunDump) -> None:
    step(bundle, "$plan").idx = 0


@breaks("I9", healthy_runs.unplanned)
def failed_planning_that_is_shown_as_planning(bundle: RunDump) -> None:
    bundle.run.status = "planning"


@breaks("I10", healthy_runs.planning)
def planning_without_a_timer(bundle: RunDump) -> None:
    bundle.run.wake_at = None


@breaks("I10", healthy_runs.delayed)
def delayed_without_a_timer(bundle: RunDump) -> None:
    bundle.run.wake_at = None


@breaks("I10", healthy_runs.working)
def a_deadline_without_a_timer(bundle: RunDump) -> None:
    bundle.run.wake_at = None


@breaks("I10", healthy_runs.working)
def a_lease_without_a_timer(bundle: RunDump) -> None:
    step(bundle, "one").wake_at = None


@breaks("I10", healthy_runs.working)
def a_lease_with_a_late_timer(bundle: RunDump) -> None:
    step(bundle, "one").wake_at = attempt(bundle, "one", 1).expires_at + 1


@breaks("I10", healthy_runs.working)
def a_leased_step_without_an_attempt(bundle: RunDump) -> None:
    bundle.attempts = []


@breaks("I10", healthy_runs.working)
def ready_but_not_claimable(bundle: RunDump) -> None:
    step(bundle, "three").claimable = False


@breaks("I10", healthy_runs.working)
def claimable_although_paused(bundle: RunDump) -> None:
    bundle.run.paused = True


@breaks("I10", healthy_runs.working)
def a_pending_step_with_too_many_needs_left(bundle: RunDump) -> None:
    step(bundle, "four").needs_left = 2


@breaks("I10", healthy_runs.working)
def a_pending_step_without_open_needs(bundle: RunDump) -> None:
    step(bundle, "three").dependents = ""
    step(bundle, "four").needs_left = 0


@breaks("I10", healthy_runs.canceling)
def canceling_without_a_timer(bundle: RunDump) -> None:
    step(bundle, "one").cancel_by = None


@breaks("I10", healthy_runs.backing_off)
def backing_off_without_a_timer(bundle: RunDump) -> None:
    step(bundle, "build").wake_at = None


@breaks("I10", healthy_runs.asking)
def suspended_on_no_wait(bundle: RunDump) -> None:
    bundle.steps[0].waits_on = ""


@breaks("I10", healthy_runs.asking)
def suspended_on_a_settled_wait(bundle: RunDump) -> None:
    news = next(wait for wait in bundle.waits if wait.label == "news")
    news.state, news.outcome, news.settled_at, news.wake_at = "settled", "received", BEGIN_US, None


@breaks("I10", healthy_runs.asking)
def a_wait_without_a_timer(bundle: RunDump) -> None:
    bundle.waits[0].wake_at = None


@breaks("I10", healthy_runs.asking)
def a_wait_without_its_approval(bundle: RunDump) -> None:
    bundle.approvals = []


@breaks("I10", healthy_runs.asking)
def a_wait_without_its_child(bundle: RunDump) -> None:
    bundle.children = []


@breaks("I10", healthy_runs.asking)
def a_sleep_without_an_end(bundle: RunDump) -> None:
    nap = next(wait for wait in bundle.waits if wait.label == "nap")
    nap.expires_at = nap.wake_at = None


# --------------------------------------------------------------------------------------------- history


@breaks("I3", healthy_runs.retried)
def a_column_changed_by_hand(bundle: RunDump) -> None:
    step(bundle, "build").last_error = "OTHER"


@breaks("I3", healthy_runs.retried)
def a_checkpoint_that_vanished(bundle: RunDump) -> None:
    bundle.checkpoints = []


@breaks("I3", healthy_runs.retried)
def a_spec_changed_by_hand(bundle: RunDump) -> None:
    assert bundle.spec is not None
    bundle.spec.priority = 9


@breaks("I3", healthy_runs.retried)
def labels_changed_by_hand(bundle: RunDump) -> None:
    assert bundle.spec is not None
    bundle.spec.labels = '{"vip": true}'


@breaks("I3", healthy_runs.retried)
def a_spec_that_vanished(bundle: RunDump) -> None:
    bundle.spec = None


@breaks("I3", healthy_runs.retried)
def a_payload_changed_by_hand(bundle: RunDump) -> None:
    bundle.payloads[0].body = b"another source"


@breaks("I3", healthy_runs.retried)
def a_payload_without_an_event(bundle: RunDump) -> None:
    bundle.payloads.append(PayloadRow(bundle.run.id, 99, b"", b""))


@breaks("I3", healthy_runs.retried)
def a_payload_number_skipped(bundle: RunDump) -> None:
    bundle.run.next_ref += 1


@breaks("I3", healthy_runs.retried)
def an_event_that_cannot_be_read(bundle: RunDump) -> None:
    bundle.events[2].body = b"{not json"


@breaks("I3", healthy_runs.retried)
def an_event_that_changes_a_payload(bundle: RunDump) -> None:
    rewrite(bundle, "complete", lambda body: body["set"].update(payload={"1": {"body": "x"}}))


def test_an_erased_payload_is_not_damage() -> None:
    bundle = healthy_runs.retried().bundle().copied()
    bundle.payloads = []
    assert check_run(bundle) == []


@breaks("I7", healthy_runs.retried)
def a_missing_event(bundle: RunDump) -> None:
    del bundle.events[3]


@breaks("I7", healthy_runs.retried)
def a_missing_last_event(bundle: RunDump) -> None:
    bundle.events.pop()


@breaks("I8", healthy_runs.retried)
def an_event_without_an_actor(bundle: RunDump) -> None:
    bundle.events[0].actor = ""


@breaks("I8", healthy_runs.retried)
def an_event_with_an_unknown_initiator(bundle: RunDump) -> None:
    bundle.events[0].initiator = "fate"


@breaks("I8", healthy_runs.retried)
def an_event_without_a_cause(bundle: RunDump) -> None:
    bundle.events[0].cause = ""


@breaks("I8", healthy_runs.retried)
def a_claim_without_a_cause(bundle: RunDump) -> None:
    next(event for event in bundle.events if event.kind == "claim").cause = ""


@breaks("I8", healthy_runs.lease_expired)
def an_expiry_without_a_cause(bundle: RunDump) -> None:
    next(event for event in bundle.events if event.initiator == "timeout").cause = ""


@breaks("I8", healthy_runs.retried)
def an_event_without_a_kind(bundle: RunDump) -> None:
    bundle.events[0].kind = ""


@breaks("I8", healthy_runs.retried)
def an_event_older_than_the_last_one(bundle: RunDump) -> None:
    bundle.events[3].at = 1


@breaks("I8", healthy_runs.retried)
def a_run_with_another_time_than_its_last_event(bundle: RunDump) -> None:
    bundle.run.event_at += 1


@breaks("I39", healthy_runs.parent)
def an_outbox_row_without_its_event(bundle: RunDump) -> None:
    bundle.outbox.append(OutboxRow(bundle.run.id, 99, 0, "cancel", 77, b"", BEGIN_US))


@breaks("I39", healthy_runs.parent)
def an_outbox_row_with_another_time(bundle: RunDump) -> None:
    bundle.outbox[0].created_at += 1


@breaks("I51", healthy_runs.retried)
def a_byte_of_history_changed(bundle: RunDump) -> None:
    body = bundle.events[2].body
    bundle.events[2].body = body.replace(b'"tries"', b'"tri3s"') if b'"tries"' in body else body + b" "


@breaks("I51", healthy_runs.retried)
def an_actor_replaced(bundle: RunDump) -> None:
    bundle.events[0].actor = "u_mallory"


@breaks("I51", healthy_runs.retried)
def another_hash_as_head(bundle: RunDump) -> None:
    bundle.run.head = b"\0" * 32


@breaks("I52", healthy_runs.retried)
def evidence_that_no_seal_names(bundle: RunDump) -> None:
    last = bundle.events[-1]
    row = EvidenceRow(
        bundle.run.id, 0, bundle.run.tenant, b"s" * 32, 1, last.hash, last.seq, None, b"r", b"e", BEGIN_US
    )
    bundle.evidence.append(row)


# ------------------------------------------------------------------------------------ runs and attempts


@breaks("I9", healthy_runs.working)
def a_counter_that_is_off(bundle: RunDump) -> None:
    bundle.run.steps_ready += 1


@breaks("I9", healthy_runs.asking)
def waits_that_are_not_counted(bundle: RunDump) -> None:
    bundle.run.waits_open = 0


@breaks("I9", healthy_runs.asking)
def events_that_are_not_counted(bundle: RunDump) -> None:
    bundle.run.inbox_buffered = 0


@breaks("I9", healthy_runs.working)
def a_status_that_does_not_follow(bundle: RunDump) -> None:
    bundle.run.status = "waiting_external"


@breaks("I9", healthy_runs.planning)
def a_status_without_a_plan(bundle: RunDump) -> None:
    bundle.run.status = "running"


@breaks("I9", healthy_runs.failed)
def a_timeout_before_the_deadline(bundle: RunDump) -> None:
    bundle.run.status = "timed_out"


@breaks("I9", healthy_runs.retried)
def an_unsafe_checkpoint_that_is_not_counted(bundle: RunDump) -> None:
    bundle.checkpoints[0].idempotent, bundle.checkpoints[0].resumable = False, False


@breaks("I9", healthy_runs.retried)
def a_step_that_denies_its_checkpoints(bundle: RunDump) -> None:
    step(bundle, "build").recorded = False


@breaks("I9", healthy_runs.retried)
def a_step_that_claims_missing_checkpoints(bundle: RunDump) -> None:
    step(bundle, "test").recorded = True


@breaks("I11", healthy_runs.retried)
def succeeded_with_a_failed_step(bundle: RunDump) -> None:
    step(bundle, "test").state = "failed"


@breaks("I11", healthy_runs.retried)
def succeeded_with_an_open_step(bundle: RunDump) -> None:
    step(bundle, "test").state = "running"


@breaks("I11", healthy_runs.retried)
def done_but_not_succeeded(bundle: RunDump) -> None:
    bundle.run.status = "running"


@breaks("I11", healthy_runs.retried)
def succeeded_without_a_plan(bundle: RunDump) -> None:
    bundle.run.planned = False


@breaks("I12", healthy_runs.retried)
def failed_without_a_failed_step(bundle: RunDump) -> None:
    bundle.run.status = "failed"


@breaks("I13", healthy_runs.canceled)
def canceled_without_a_request(bundle: RunDump) -> None:
    bundle.run.cancel_at = bundle.run.cancel_reason = None


@breaks("I13", healthy_runs.canceled)
def a_cancel_request_without_an_event(bundle: RunDump) -> None:
    rewrite(bundle, "cancel", lambda body: body["set"]["run"][""].pop("cancel_at"))


@breaks("I13", healthy_runs.canceled)
def a_step_canceled_by_another_move(bundle: RunDump) -> None:
    rewrite(bundle, "cancel_ack", lambda body: body["edges"][0].update(move="complete"))


@breaks("I13", healthy_runs.canceled)
def a_step_force_canceled_too_early(bundle: RunDump) -> None:
    rewrite(bundle, "cancel_ack", lambda body: body["edges"][0].update(move="force_cancel"))


@breaks("I14", healthy_runs.failed)
def an_ended_run_with_a_timer(bundle: RunDump) -> None:
    bundle.run.wake_at = LATER_US


@breaks("I14", healthy_runs.failed)
def an_open_step_in_an_ended_run(bundle: RunDump) -> None:
    step(bundle, "two").state = "pending"


@breaks("I14", healthy_runs.failed)
def a_step_timer_in_an_ended_run(bundle: RunDump) -> None:
    step(bundle, "two").wake_at = LATER_US


@breaks("I14", healthy_runs.failed)
def a_live_lease_in_an_ended_run(bundle: RunDump) -> None:
    attempt(bundle, "one", 1).lease = "active"


@breaks("I14", healthy_runs.gated)
def an_open_wait_in_an_ended_run(bundle: RunDump) -> None:
    bundle.waits[0].state = "open"


@breaks("I14", healthy_runs.gated)
def an_open_approval_in_an_ended_run(bundle: RunDump) -> None:
    bundle.approvals[0].status = "requested"


@breaks("I15", healthy_runs.working)
def a_step_that_started_too_early(bundle: RunDump) -> None:
    step(bundle, "three").dependents = "0"


@breaks("I16", healthy_runs.lease_expired)
def a_missing_attempt(bundle: RunDump) -> None:
    del bundle.attempts[0]


@breaks("I16", healthy_runs.lease_expired)
def attempts_that_overlap(bundle: RunDump) -> None:
    attempt(bundle, "build", 2).granted_at = BEGIN_US


@breaks("I16", healthy_runs.lease_expired)
def more_charged_than_allowed(bundle: RunDump) -> None:
    step(bundle, "build").charged = 4


@breaks("I16", healthy_runs.lease_expired)
def an_attempt_without_a_step(bundle: RunDump) -> None:
    bundle.attempts.append(copy.copy(bundle.attempts[0]))
    bundle.attempts[-1].idx = 9


@breaks("I17", healthy_runs.lease_expired)
def an_attempt_after_the_one_that_succeeded(bundle: RunDump) -> None:
    attempt(bundle, "build", 1).state = "succeeded"


@breaks("I17", healthy_runs.retried)
def a_failed_step_with_a_succeeded_attempt(bundle: RunDump) -> None:
    step(bundle, "build").state = "failed"


@breaks("I18", healthy_runs.backing_off)
def an_uncharged_claim(bundle: RunDump) -> None:
    step(bundle, "build").charged = 0


@breaks("I18", healthy_runs.backing_off)
def a_claim_beyond_the_maximum(bundle: RunDump) -> None:
    step(bundle, "build").max_attempts = 0


@breaks("I19", healthy_runs.retried)
def a_claim_before_the_backoff_ended(bundle: RunDump) -> None:
    def change(body: Body) -> None:
        body["set"]["step"]["0"]["eligible_at"] = LATER_US

    rewrite(bundle, "fail", change)


@breaks("I19", healthy_runs.backing_off)
def a_backoff_without_an_end(bundle: RunDump) -> None:
    rewrite(bundle, "fail", lambda body: body["set"]["step"]["0"].pop("eligible_at"))


@breaks("I19", healthy_runs.canceled)
def a_retry_while_canceling(bundle: RunDump) -> None:
    rewrite(bundle, "cancel_ack", lambda body: body["edges"][0].update(move="fail_retry"))


@breaks("I20", healthy_runs.retried)
def a_wrong_count_of_done_steps(bundle: RunDump) -> None:
    bundle.run.steps_done += 1


@breaks("I20", healthy_runs.retried)
def a_count_of_done_steps_that_shrinks(bundle: RunDump) -> None:
    rewrite(bundle, "complete", lambda body: body["set"]["run"][""].update(steps_done=0))


@breaks("I21", healthy_runs.failed)
def a_run_failed_by_an_optional_step(bundle: RunDump) -> None:
    for row in bundle.steps:
        row.required = False


# ----------------------------------------------------------------------------------------------- leases


@breaks("I22", healthy_runs.lease_expired)
def two_live_leases(bundle: RunDump) -> None:
    row = attempt(bundle, "build", 1)
    row.state, row.lease, row.ended_at = "running", "active", None


@breaks("I22", healthy_runs.working)
def a_leased_step_without_a_lease(bundle: RunDump) -> None:
    attempt(bundle, "one", 1).lease = "expired"


@breaks("I22", healthy_runs.working)
def a_lease_of_a_step_that_is_ready(bundle: RunDump) -> None:
    step(bundle, "one").state = "ready"


@breaks("I22", healthy_runs.working)
def an_attempt_ahead_of_its_step(bundle: RunDump) -> None:
    attempt(bundle, "one", 1).state = "uploading"


@breaks("I23", healthy_runs.lease_expired)
def a_fence_used_twice(bundle: RunDump) -> None:
    rewrite(bundle, "claim", lambda body: body["edges"][0].update(attempt=1), nth=1)


@breaks("I23", healthy_runs.lease_expired)
def a_fence_moved_by_a_checkpoint(bundle: RunDump) -> None:
    rewrite(bundle, "checkpoint", lambda body: body["set"].update(step={"0": {"attempt": 3}}))


@breaks("I23", healthy_runs.lease_expired)
def a_fence_moved_by_hand(bundle: RunDump) -> None:
    step(bundle, "build").attempt = 1


@breaks("I23", healthy_runs.worker_proven_dead)
def a_lease_that_expired_before_its_moment(bundle: RunDump) -> None:
    rewrite(bundle, "lease_expired", lambda body: body.pop("context"))


@breaks("I23", healthy_runs.worker_proven_dead)
def a_proof_about_another_holder(bundle: RunDump) -> None:
    rewrite(bundle, "lease_expired", lambda body: body["context"]["dead"].update(attempt=2))


@breaks("I23", healthy_runs.worker_proven_dead)
def a_proven_death_without_its_proof(bundle: RunDump) -> None:
    next(event for event in bundle.events if event.kind == "lease_expired").cause = ""
    rechain(bundle)


@breaks("I24", healthy_runs.lease_expired)
def a_message_with_an_old_fence(bundle: RunDump) -> None:
    rewrite(bundle, "checkpoint", lambda body: body["set"]["checkpoint"]["0/b"].update(n=1), nth=1)


@breaks("I24", healthy_runs.retried)
def a_message_after_the_expiry(bundle: RunDump) -> None:
    row = attempt(bundle, "build", 2)
    row.expires_at = row.granted_at


@breaks("I25", healthy_runs.lease_expired)
def a_stale_message_that_counted(bundle: RunDump) -> None:
    rewrite(bundle, "checkpoint", lambda body: body["set"]["checkpoint"]["0/b"].update(n=1), nth=1)


@breaks("I26", healthy_runs.working)
def a_lease_past_its_timeout(bundle: RunDump) -> None:
    row = attempt(bundle, "one", 1)
    assert row.timeout_at is not None
    row.expires_at = row.timeout_at + 1


@breaks("I26", healthy_runs.working)
def a_lease_longer_than_its_length(bundle: RunDump) -> None:
    row = attempt(bundle, "two", 1)
    row.expires_at = row.beat_at + step(bundle, "two").lease_us + 1


@breaks("I26", healthy_runs.working)
def a_lease_that_shrank(bundle: RunDump) -> None:
    row = attempt(bundle, "one", 1)
    row.expires_at = row.granted_at - 1


@breaks("I26", healthy_runs.working)
def a_heartbeat_before_the_lease(bundle: RunDump) -> None:
    row = attempt(bundle, "one", 1)
    row.beat_at = row.granted_at - 1


@breaks("I26", healthy_runs.working)
def a_timeout_moved_by_hand(bundle: RunDump) -> None:
    attempt(bundle, "one", 1).timeout_at = LATER_US


@breaks("I27", healthy_runs.retried)
def a_message_newer_than_the_newest(bundle: RunDump) -> None:
    attempt(bundle, "build", 2).seq = 0


@breaks("I27", healthy_runs.retried)
def a_message_without_its_answer(bundle: RunDump) -> None:
    attempt(bundle, "build", 2).answer = b""


@breaks("I28", healthy_runs.retried)
def a_lease_completed_by_a_timer(bundle: RunDump) -> None:
    next(event for event in bundle.events if event.kind == "complete").kind = "lease_expired"
    rechain(bundle)


@breaks("I28", healthy_runs.canceled)
def a_lease_canceled_without_an_ack(bundle: RunDump) -> None:
    rewrite(bundle, "cancel_ack", lambda body: body["edges"][0].update(move="close"))


@breaks("I28", healthy_runs.retried)
def a_success_whose_lease_expired(bundle: RunDump) -> None:
    attempt(bundle, "build", 2).lease = "expired"


@breaks("I28", healthy_runs.lease_expired)
def a_lost_attempt_whose_lease_was_completed(bundle: RunDump) -> None:
    attempt(bundle, "build", 1).lease = "completed"


@breaks("I28", healthy_runs.lease_expired)
def a_lost_attempt_whose_lease_was_canceled(bundle: RunDump) -> None:
    attempt(bundle, "build", 1).lease = "canceled"


@breaks("I29", healthy_runs.working)
def a_lease_that_was_not_swept(bundle: RunDump) -> None:
    assert attempt(bundle, "one", 1).expires_at < LATER_US


@breaks("I30", healthy_runs.working)
def a_lease_of_another_tenant(bundle: RunDump) -> None:
    attempt(bundle, "one", 1).tenant = "umbrella"


@breaks("I30", healthy_runs.working)
def a_lease_that_counts_for_another_workflow(bundle: RunDump) -> None:
    attempt(bundle, "one", 1).workflow = "other"


# -------------------------------------------------------------------------------------------- approvals


@breaks("I42", healthy_runs.gated)
def approved_too_late(bundle: RunDump) -> None:
    bundle.approvals[0].decided_at = LATER_US


@breaks("I42", healthy_runs.gated)
def approved_by_too_few(bundle: RunDump) -> None:
    bundle.approvals[0].votes = "u_bob"


@breaks("I42", healthy_runs.gated)
def a_wait_with_another_outcome_than_its_approval(bundle: RunDump) -> None:
    bundle.approvals[0].status = "rejected"


@breaks("I42", healthy_runs.gated)
def a_gate_that_opened_without_an_approval(bundle: RunDump) -> None:
    bundle.approvals[0].status = "canceled"


@breaks("I42", healthy_runs.gated)
def an_approval_without_a_wait(bundle: RunDump) -> None:
    bundle.waits = []


@breaks("I42", healthy_runs.asking)
def another_expiry_than_the_wait_has(bundle: RunDump) -> None:
    bundle.approvals[0].expires_at = LATER_US


@breaks("I42", healthy_runs.asking)
def votes_that_outlived_a_revision(bundle: RunDump) -> None:
    rewrite(bundle, "revise_approval", lambda body: body["set"]["approval"]["1"].update(votes="u_bob"))


@breaks("I42", healthy_runs.asking)
def another_question_under_the_same_revision(bundle: RunDump) -> None:
    rewrite(bundle, "revise_approval", lambda body: body["set"]["approval"]["1"].pop("revision"))


@breaks("I43", healthy_runs.gated)
def approved_by_the_requester(bundle: RunDump) -> None:
    bundle.approvals[0].votes = "u_alice u_bob"


@breaks("I43", healthy_runs.gated)
def decided_by_the_requester(bundle: RunDump) -> None:
    bundle.approvals[0].decided_by = "u_alice"


@breaks("I43", healthy_runs.gated)
def one_person_counted_twice(bundle: RunDump) -> None:
    bundle.approvals[0].votes = "u_bob u_bob"


@breaks("I59", healthy_runs.signaled)
def decided_by_the_sender_of_an_event(bundle: RunDump) -> None:
    rewrite(
        bundle,
        "deliver_event",
        lambda body: next(iter(body["set"]["inbox"].values())).update(senders="u_bob"),
    )


@breaks("I59", healthy_runs.signaled)
def decided_by_the_person_who_changed_the_labels(bundle: RunDump) -> None:
    [event] = [one for one in bundle.events if one.kind == "metadata"]
    event.actor = "u_bob"
    rechain(bundle)


@breaks("I44", healthy_runs.gated)
def decided_twice(bundle: RunDump) -> None:
    def change(body: Body) -> None:
        body["set"]["approval"] = {"1": {"status": "approved"}}

    rewrite(bundle, "complete", change, nth=1)


@breaks("I44", healthy_runs.gated)
def decided_without_a_decider(bundle: RunDump) -> None:
    bundle.approvals[0].decided_by = None


@breaks("I45", healthy_runs.gated)
def a_gate_that_can_be_claimed(bundle: RunDump) -> None:
    step(bundle, "gate").claimable = True


@breaks("I61", healthy_runs.conditional)
def a_skipped_step_that_was_leased(bundle: RunDump) -> None:
    step(bundle, "label").attempt = 1


@breaks("I61", healthy_runs.conditional)
def a_run_with_a_wrong_count_of_skipped_steps(bundle: RunDump) -> None:
    bundle.run.steps_skipped = 0


@breaks("I61", healthy_runs.conditional)
def a_skipped_step_with_an_attempt(bundle: RunDump) -> None:
    other = attempt(bundle, "send", 1)
    bundle.attempts.append(msgspec.structs.replace(other, idx=step(bundle, "label").idx))


@breaks("I61", healthy_runs.conditional)
def a_skipped_step_without_its_reason(bundle: RunDump) -> None:
    step(bundle, "label").reason = "done"


@breaks("I61", healthy_runs.conditional)
def a_skipped_step_without_a_condition(bundle: RunDump) -> None:
    step(bundle, "label").condition = None


@breaks("I61", healthy_runs.conditional)
def a_claimable_step_without_its_resolution(bundle: RunDump) -> None:
    step(bundle, "send").claimable = True


@breaks("I61", healthy_runs.gated)
def a_succeeded_step_without_an_attempt(bundle: RunDump) -> None:
    step(bundle, "write").attempt = 0
    bundle.attempts = [row for row in bundle.attempts if row.idx != step(bundle, "write").idx]


@breaks("I61", healthy_runs.planned)
def a_reused_step_that_was_leased(bundle: RunDump) -> None:
    step(bundle, "build").attempt = 1


@breaks("I61", healthy_runs.planned)
def a_reused_step_without_a_link(bundle: RunDump) -> None:
    step(bundle, "build").reused_run = step(bundle, "build").reused_step = None


@breaks("I61", healthy_runs.planned)
def a_reused_step_without_a_key(bundle: RunDump) -> None:
    step(bundle, "build").reuse_key = None


@breaks("I61", healthy_runs.planned)
def a_link_of_a_step_that_ran(bundle: RunDump) -> None:
    step(bundle, "test").reused_run, step(bundle, "test").reused_step = 7, "test"


@breaks("I10", healthy_runs.conditional)
def a_step_without_a_pending_resolution(bundle: RunDump) -> None:
    bundle.outbox = [row for row in bundle.outbox if row.topic != "resolve"]


@breaks("I45", healthy_runs.gated)
def a_gate_that_was_leased(bundle: RunDump) -> None:
    step(bundle, "gate").attempt = 1


# --------------------------------------------------------------------------- cancel, time, tenants, limits


@breaks("I47", healthy_runs.canceling)
def a_claim_after_the_cancel(bundle: RunDump) -> None:
    claim = next(event for event in bundle.events if event.kind == "claim")
    late = copy.copy(claim)
    late.seq, late.at = len(bundle.events) + 1, bundle.run.event_at
    bundle.events.append(late)
    bundle.run.version = late.seq
    rechain(bundle)


@breaks("I47", healthy_runs.canceling)
def claimable_after_the_cancel(bundle: RunDump) -> None:
    step(bundle, "two").claimable = True


@breaks("I48", healthy_runs.canceled)
def a_step_without_a_lease_left_open_by_a_cancel(bundle: RunDump) -> None:
    rewrite(bundle, "cancel", lambda body: body["edges"].pop(1))


@breaks("I49", healthy_runs.canceling)
def a_cancel_that_is_not_final(bundle: RunDump) -> None:
    assert bundle.run.cancel_at is not None


@breaks("I49", healthy_runs.working)
def a_run_past_its_deadline(bundle: RunDump) -> None:
    assert bundle.run.deadline_at is not None


@breaks("I49", healthy_runs.asking)
def a_wait_past_its_expiry(bundle: RunDump) -> None:
    assert bundle.waits[0].expires_at is not None


@breaks("I50", healthy_runs.working)
def a_step_of_another_tenant(bundle: RunDump) -> None:
    step(bundle, "one").tenant = "umbrella"


@breaks("I50", healthy_runs.working)
def a_step_of_another_workspace(bundle: RunDump) -> None:
    step(bundle, "one").workspace = "elsewhere"


@breaks("I50", healthy_runs.working)
def an_attempt_of_another_tenant(bundle: RunDump) -> None:
    attempt(bundle, "one", 1).tenant = "umbrella"


@breaks("I50", healthy_runs.working)
def a_spec_of_another_tenant(bundle: RunDump) -> None:
    assert bundle.spec is not None
    bundle.spec.tenant = "umbrella"


@breaks("I50", healthy_runs.asking)
def an_approval_of_another_tenant(bundle: RunDump) -> None:
    bundle.approvals[0].tenant = "umbrella"


@breaks("I50", healthy_runs.asking)
def rows_of_a_missing_step(bundle: RunDump) -> None:
    bundle.waits[0].idx = bundle.children[0].idx = 9


@breaks("I50", healthy_runs.retried)
def a_checkpoint_of_a_missing_step(bundle: RunDump) -> None:
    bundle.checkpoints[0].idx = 9


@breaks("I54", healthy_runs.retried)
def a_payload_over_the_limit(bundle: RunDump) -> None:
    bundle.payloads[0].body = b"x" * (limits.PAYLOAD_BYTES_MAX + 1)


@breaks("I54", healthy_runs.retried)
def metadata_over_the_limit(bundle: RunDump) -> None:
    assert bundle.spec is not None
    bundle.spec.metadata = "{" + " " * limits.METADATA_BYTES_MAX + "}"


@breaks("I54", healthy_runs.asking)
def too_many_open_waits(bundle: RunDump) -> None:
    bundle.run.waits_open = limits.OPEN_WAITS_PER_RUN_MAX + 1


@breaks("I55", healthy_runs.working)
def a_run_that_waits_for_nothing(bundle: RunDump) -> None:
    assert bundle.run.status == "running"


def test_a_waiting_run_is_healthy() -> None:
    for story in (healthy_runs.asking, healthy_runs.backing_off, healthy_runs.delayed, healthy_runs.failed):
        assert story().violations(settled=True) == []
    paused = healthy_runs.working()
    paused.release("one")
    paused.release("two")
    paused.pause()
    assert paused.violations(settled=True) == []


def test_unreadable_rows_are_a_finding_not_a_crash() -> None:
    bundle = healthy_runs.working().bundle().copied()
    step(bundle, "three").dependents = "four"
    rewrite(bundle, "claim", lambda body: body["edges"][0].update(edges=[["step"]]))
    found = {violation.number: violation.text for violation in check_run(bundle)}
    assert found["I15"].startswith("cannot be checked (ValueError")
    assert found["I2"].startswith("cannot be checked (ValueError")


# ------------------------------------------------------------------------------------------- all together


def test_all_runs_together_are_clean() -> None:
    view = DatabaseSummary(
        caps=[Cap("acme", "", 1, 2, 2), Cap("acme", "wf:flow", 1, 1, None), Cap("acme", "ws:default")],
        usage=[
            LeaseCount("acme", "flow", 1),
            LeaseCount("acme", "other", 1),
            LeaseCount("umbrella", "flow", 9),
        ],
        starts=[RatedStart(us(at), at, "acme", "flow") for at in (0, 10, 60, 70, 120)],
    )
    assert check_database(view) == []


WHOLE: list[tuple[str, DatabaseSummary, str]] = [
    ("I31", DatabaseSummary(same_key=[(7, "push-1")]), "run 7"),
    ("I32", DatabaseSummary(other_request=[(7, "api:cli_1:k")]), "run 7"),
    ("I33", DatabaseSummary(other_answer=[(7, "api:cli_1:k")]), "run 7"),
    (
        "I46",
        DatabaseSummary(
            caps=[Cap("acme", "", 1, 1)], usage=[LeaseCount("acme", "a", 1), LeaseCount("acme", "b", 1)]
        ),
        "cap acme/",
    ),
    (
        "I46",
        DatabaseSummary(caps=[Cap("acme", "wf:a", 1, 1)], usage=[LeaseCount("acme", "a", 2)]),
        "cap acme/wf:a",
    ),
    (
        "I46",
        DatabaseSummary(
            caps=[Cap("acme", "", 1, None, 2)],
            starts=[RatedStart(us(at), at, "acme", "a") for at in (3, 30, 62)],
        ),
        "run 62",
    ),
    (
        "I46",
        DatabaseSummary(
            caps=[Cap("acme", "wf:a", 1, None, 1)],
            starts=[
                RatedStart(us(1), 1, "acme", "b"),
                RatedStart(us(2), 2, "acme", "a"),
                RatedStart(us(3), 3, "acme", "a"),
            ],
        ),
        "run 3",
    ),
    ("I35", DatabaseSummary(same_slot=[(7, "nightly@2026-01-01T00:00:00Z")]), "run 7"),
    ("I39", DatabaseSummary(not_in_feed=[(11, 3)]), "run 11"),
    ("I39", DatabaseSummary(feed_without_event=[(12, 3)]), "run 12"),
    ("I51", DatabaseSummary(broken_chains=[("acme", 3)]), "tenant acme"),
    ("I53", DatabaseSummary(inline_secrets=[("acme", "hook h_1")]), "tenant acme"),
    ("I51", DatabaseSummary(broken_ledgers=[("acme", "leaf 3", "it is not there")]), "tenant acme"),
    ("I46", DatabaseSummary(key_holders_twice=[8]), "run 8"),
    ("I37", DatabaseSummary(same_act=[(13, "sn:1")]), "run 13"),
    (
        "I46",
        DatabaseSummary(
            caps=[Cap("acme", "", max_writes_per_run=2)],
            wrote=[WriteCount(14, "acme", "a", 3), WriteCount(15, "b", "a", 3)],
        ),
        "run 14",
    ),
    (
        "I46",
        DatabaseSummary(
            caps=[Cap("acme", "wf:a", max_writes_per_run=2)],
            wrote=[WriteCount(14, "acme", "b", 3), WriteCount(16, "acme", "a", 3)],
        ),
        "run 16",
    ),
    ("I50", DatabaseSummary(orphans=[9]), "run 9"),
    ("I50", DatabaseSummary(lost_specs=[10]), "run 10"),
]


@pytest.mark.parametrize(("number", "view", "row"), WHOLE)
def test_damage_across_runs_is_found(number: str, view: DatabaseSummary, row: str) -> None:
    assert [(violation.number, violation.row) for violation in check_database(view)] == [(number, row)]


# ------------------------------------------------------------------------------------------------- acts


def receipt(bundle: RunDump, label: str, nth: int = 0) -> ReceiptRow:
    return [row for row in bundle.receipts if row.label == label][nth]


@breaks("I1", healthy_runs.acted)
def an_unknown_receipt(bundle: RunDump) -> None:
    receipt(bundle, "a#1").state = "abandoned"


@breaks("I2", healthy_runs.acted)
def a_receipt_state_other_than_the_last_in_the_history(bundle: RunDump) -> None:
    receipt(bundle, "b#1").state = "failed"


@breaks("I2", healthy_runs.acted)
def an_edge_that_is_not_in_the_receipt_table(bundle: RunDump) -> None:
    def change(body: Body) -> None:
        body["edges"][0]["edges"][0][2] = "reversed"

    rewrite(bundle, "settle_act", change)


@breaks("I3", healthy_runs.acted)
def a_verdict_that_was_changed(bundle: RunDump) -> None:
    bundle.verdicts[0].rules = '[["other","allow"]]'


@breaks("I3", healthy_runs.acted)
def a_spend_that_was_changed(bundle: RunDump) -> None:
    bundle.run_spends[0].spent = 7


@breaks("I3", healthy_runs.with_costs)
def a_cost_that_was_changed(bundle: RunDump) -> None:
    bundle.cost_lines[0].micros -= 40


@breaks("I3", healthy_runs.with_costs)
def costs_that_differ_from_the_run_spend(bundle: RunDump) -> None:
    def change(body: Body) -> None:
        body["set"]["run_spend"][""]["spent"] = 40

    rewrite(bundle, "complete", change)
    bundle.run_spends[0].spent = 40


@breaks("I5", healthy_runs.acted)
def a_settled_receipt_without_its_time(bundle: RunDump) -> None:
    receipt(bundle, "b#1").settled_at = None


@breaks("I14", healthy_runs.acted)
def an_intent_that_outlived_its_run(bundle: RunDump) -> None:
    receipt(bundle, "d#1").state = "intent"


@breaks("I36", healthy_runs.acted)
def a_receipt_that_was_never_intended(bundle: RunDump) -> None:
    event = next(event for event in bundle.events if event.kind == "intend_act")
    event.kind = "settle_act"
    rechain(bundle)


@breaks("I36", healthy_runs.acted)
def a_receipt_settled_in_the_commit_of_its_intent(bundle: RunDump) -> None:
    def change(body: Body) -> None:
        no = int(next(iter(body["set"]["receipt"])))
        edge = ["receipt", "intent", "succeeded", "orchestrator"]
        body.setdefault("edges", []).append({"receipt": no, "move": "succeed", "edges": [edge]})

    rewrite(bundle, "intend_act", change)


@breaks("I36", healthy_runs.acted)
def a_call_after_its_lease(bundle: RunDump) -> None:
    receipt(bundle, "a#1").call_by = LATER_US


@breaks("I36", healthy_runs.acted)
def a_receipt_that_is_gone(bundle: RunDump) -> None:
    bundle.receipts.pop()


@breaks("I37", healthy_runs.acted)
def two_receipts_of_one_key(bundle: RunDump) -> None:
    receipt(bundle, "b#1").name = receipt(bundle, "a#1", 1).name


@breaks("I38", healthy_runs.acted)
def a_call_that_was_repeated_without_being_safe(bundle: RunDump) -> None:
    receipt(bundle, "b#1").repeats = "none"


@breaks("I38", healthy_runs.acted)
def a_call_repeated_without_a_persons_decision(bundle: RunDump) -> None:
    def change(body: Body) -> None:
        body["edges"][0]["move"] = "repeat"

    rewrite(bundle, "settle_receipt", change)


def _relied_on(bundle: RunDump, kept: str) -> None:
    no = receipt(bundle, "d#1").verdict_no
    next(row for row in bundle.verdicts if row.no == no).relied = kept


@breaks("I58", healthy_runs.acted)
def a_verdict_that_counted_other_writes(bundle: RunDump) -> None:
    _relied_on(bundle, '{"writes":[0,2]}')


@breaks("I58", healthy_runs.acted)
def a_verdict_that_counted_other_costs(bundle: RunDump) -> None:
    _relied_on(bundle, '{"spent":7}')


@breaks("I58", healthy_runs.acted)
def a_verdict_of_an_earlier_time(bundle: RunDump) -> None:
    _relied_on(bundle, f'{{"since":0,"until":{receipt(bundle, "d#1").intent_at}}}')


@breaks("I58", healthy_runs.acted)
def a_verdict_of_a_later_time(bundle: RunDump) -> None:
    _relied_on(bundle, f'{{"since":{receipt(bundle, "d#1").intent_at + 1}}}')


@breaks("I58", healthy_runs.acted)
def facts_that_cannot_be_read(bundle: RunDump) -> None:
    _relied_on(bundle, "{")


@breaks("I58", healthy_runs.acted)
def a_fixed_fact_that_changes(bundle: RunDump) -> None:
    rewrite(
        bundle,
        "claim",
        lambda body: body["set"].setdefault("run", {}).setdefault("", {}).update(workflow="other"),
    )


@breaks("I40", healthy_runs.acted)
def a_verdict_of_another_action(bundle: RunDump) -> None:
    receipt(bundle, "b#1").digest = b"x" * 32


@breaks("I40", healthy_runs.acted)
def a_verdict_that_is_gone(bundle: RunDump) -> None:
    bundle.verdicts.pop()


@breaks("I40", healthy_runs.acted)
def an_intent_that_was_denied(bundle: RunDump) -> None:
    no = receipt(bundle, "b#1").verdict_no
    next(row for row in bundle.verdicts if row.no == no).outcome = "deny"


@breaks("I40", healthy_runs.acted)
def an_approval_that_was_not_asked_for(bundle: RunDump) -> None:
    receipt(bundle, "a#1").approval_no = None


@breaks("I41", healthy_runs.denied)
def an_error_that_allows(bundle: RunDump) -> None:
    bundle.verdicts[0].error, bundle.verdicts[0].outcome = "POLICY_ERROR", "allow"


@breaks("I41", healthy_runs.denied)
def a_denial_that_did_not_end_the_step(bundle: RunDump) -> None:
    rewrite(bundle, "propose_act", lambda body: body.pop("edges"))


@breaks("I42", healthy_runs.acted)
def an_approval_of_another_action(bundle: RunDump) -> None:
    bundle.approvals[0].digest = b"x" * 32


@breaks("I42", healthy_runs.acted)
def an_action_before_its_approval(bundle: RunDump) -> None:
    receipt(bundle, "a#1").intent_at = bundle.run.created_at - 1


@breaks("I42", healthy_runs.acted)
def an_action_after_its_approval_expired(bundle: RunDump) -> None:
    bundle.approvals[0].expires_at = bundle.waits[0].expires_at = receipt(bundle, "a#1").intent_at


@breaks("I42", healthy_runs.acted)
def an_approval_by_fewer_than_its_policy_wants(bundle: RunDump) -> None:
    for row in bundle.verdicts:
        row.people = 2


@breaks("I42", healthy_runs.acted)
def an_approval_used_twice(bundle: RunDump) -> None:
    receipt(bundle, "b#1").approval_no = bundle.approvals[0].no


@breaks("I42", healthy_runs.acted)
def an_approval_used_by_a_receipt_that_does_not_name_it(bundle: RunDump) -> None:
    bundle.approvals[0].used_no = receipt(bundle, "b#1").no


@breaks("I43", healthy_runs.acted)
def approved_by_an_involved_person(bundle: RunDump) -> None:
    rewrite(bundle, "create", lambda body: body["set"]["run_spec"][""].update(involved="person:bob"))


@breaks("I43", healthy_runs.acted)
def settled_by_an_involved_person(bundle: RunDump) -> None:
    def change(body: Body) -> None:
        for columns in body["set"]["receipt"].values():
            columns["settled_by"] = "u_alice"

    rewrite(bundle, "settle_receipt", change)


@breaks("I46", healthy_runs.acted)
def writes_that_were_not_counted(bundle: RunDump) -> None:
    bundle.run_spends[0].writes -= 1


@breaks("I50", healthy_runs.acted)
def a_receipt_of_another_tenant(bundle: RunDump) -> None:
    receipt(bundle, "a#1").tenant = "beta"


# ---------------------------------------------------------------------------------------------- artifacts


def artifact(bundle: RunDump, n: int, *, late: bool, events: int, seconds: float) -> ArtifactRow:
    """An artifact of an attempt of `build`, recorded when the run had this many events."""
    held, run = attempt(bundle, "build", n), bundle.run
    row = ArtifactRow(
        run.id, "app.tar", held.idx, n, late, run.tenant, "build", held.owner, 1, "sha256:" + "0" * 64, "text/plain",
        BEGIN_US + us(seconds), events,
    )  # fmt: skip
    bundle.artifacts.append(row)
    return row


def test_timely_and_late_files_are_healthy() -> None:
    bundle = healthy_runs.retried().bundle().copied()
    last = bundle.run.version
    artifact(bundle, 1, late=False, events=2, seconds=1)
    artifact(bundle, 1, late=True, events=last, seconds=700)
    artifact(bundle, 2, late=True, events=last, seconds=602)
    assert check_run(bundle, now=LATER_US) == []


@breaks("I56", healthy_runs.retried)
def a_late_file_that_is_not_marked_late(bundle: RunDump) -> None:
    artifact(bundle, 2, late=False, events=bundle.run.version, seconds=601.5)


@breaks("I56", healthy_runs.retried)
def a_timely_file_that_is_marked_late(bundle: RunDump) -> None:
    artifact(bundle, 1, late=True, events=2, seconds=1)


@breaks("I56", healthy_runs.retried)
def a_file_of_a_worker_without_the_lease(bundle: RunDump) -> None:
    artifact(bundle, 1, late=False, events=2, seconds=1).worker = "w_stranger"


@breaks("I56", healthy_runs.retried)
def a_file_of_an_attempt_that_was_never_made(bundle: RunDump) -> None:
    artifact(bundle, 1, late=False, events=2, seconds=1).n = 7


@breaks("I56", healthy_runs.retried)
def a_file_of_another_step(bundle: RunDump) -> None:
    artifact(bundle, 1, late=False, events=2, seconds=1).step = "lint"


def chunk(
    bundle: RunDump, seq: int, first_byte: int, *, late: bool = False, seconds: float = 1
) -> LogChunkRow:
    """A chunk of ten bytes of the log of the first attempt of `build`."""
    events = bundle.run.version if late else 2
    row = LogChunkRow(
        bundle.run.id, attempt(bundle, "build", 1).idx, 1, seq, late, first_byte, 10, 1, "sha256:" + "0" * 64,
        BEGIN_US + us(seconds), events,
    )  # fmt: skip
    bundle.log_chunks.append(row)
    return row


def test_a_log_with_late_chunks_at_its_end_is_healthy() -> None:
    bundle = healthy_runs.retried().bundle().copied()
    chunk(bundle, 1, 0)
    chunk(bundle, 2, 10)
    chunk(bundle, 3, 20, late=True, seconds=700)
    assert check_run(bundle, now=LATER_US) == []


@breaks("I56", healthy_runs.retried)
def a_gap_in_a_log(bundle: RunDump) -> None:
    chunk(bundle, 1, 0)
    chunk(bundle, 2, 11)


@breaks("I56", healthy_runs.retried)
def a_log_without_its_first_chunk(bundle: RunDump) -> None:
    chunk(bundle, 2, 10)


@breaks("I56", healthy_runs.retried)
def a_late_chunk_that_is_not_marked_late(bundle: RunDump) -> None:
    chunk(bundle, 1, 0, late=True, seconds=700).late = False


@breaks("I56", healthy_runs.retried)
def a_chunk_of_an_attempt_that_was_never_made(bundle: RunDump) -> None:
    chunk(bundle, 1, 0).n = 7


@breaks("I56", healthy_runs.retried)
def a_file_whose_parts_are_missing(bundle: RunDump) -> None:
    artifact(bundle, 1, late=False, events=2, seconds=1).upload = "u1"


# ---------------------------------------------------------------------------------------------- the table


def test_every_checked_invariant_catches_a_damage() -> None:
    caught = {case.values[0] for case in CASES} | {number for number, _, _ in WHOLE}
    wanted = {number for number, invariant in INVARIANTS.items() if invariant.scope != "elsewhere"}
    assert sorted(wanted - caught) == []


def test_every_invariant_of_the_specification_is_in_the_table() -> None:
    text = (Path(__file__).parents[2] / "docs/spec/invariants.md").read_text().split("## 2.")[0]
    assert [number for number in INVARIANTS if f"{number} " not in text] == []
    assert len(INVARIANTS) == 65
    assert "I66" not in text


def test_an_invariant_has_a_check_or_names_its_proof() -> None:
    whole = {number for number, _ in DATABASE_CHECKS}
    for number, invariant in INVARIANTS.items():
        if invariant.scope == "elsewhere":
            assert invariant.shown_by, number
            assert not invariant.checks, number
        else:
            assert invariant.checks or number in whole, number
