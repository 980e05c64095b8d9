"""Bugs that the simulator cannot show: each is planted into the real code, and a short story must notice it.

A story is an async function that takes an empty folder. It plays on a real store, and asserts what must hold by what
can be seen from outside: the doctor's findings, a ledger of effects kept outside Tenure, an answer to a client.
Bugs that the simulator does show are in `tests/simulation/planted_bugs.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from tenure import canonical
from tenure.govern import act_calls
from tenure.govern.ledger import audit
from tenure.kernel.decide import acts
from tenure.orchestrator import outbox
from tenure.sdk.step_calls import StepCalls
from tenure.store import idempotency
from tenure.store.sqlite.file_clock import FileClock
from tenure.worker.lease_session import LeaseSession
from tenure.worker.work_source import LocalWorkSource
from tests.chaos import (
    stories_drain,
    stories_equal_values,
    stories_fences,
    stories_governance,
    stories_many_children,
    stories_separation_of_duties,
)
from tests.chaos.stories_databases import BUGS as DATABASE_BUGS
from tests.simulation.planted_bugs import Change

Story = Callable[[Path], Awaitable[None]]


class PlantedBug(NamedTuple):
    """A bug, and the story that must fail while it is there."""

    what: str
    changes: tuple[Change, ...]
    story: Story
    noticed: str
    """What the story says when it fails (a pattern): any other failure, as of its set-up, notices nothing."""


PLANTED_BUGS: dict[str, PlantedBug] = {
    **{name: PlantedBug(*bug) for name, bug in stories_fences.BUGS.items()},
    **{name: PlantedBug(*bug) for name, bug in stories_separation_of_duties.BUGS.items()},
    **{name: PlantedBug(*bug) for name, bug in DATABASE_BUGS.items()},
    **{name: PlantedBug(*bug) for name, bug in stories_many_children.BUGS.items()},
    "outdated-verdict": PlantedBug(
        "a call is intended although a fact that its verdict relied on has changed",
        (Change(acts._still_holds, "if relied is None:", "if True:"),),
        stories_governance.five_acts_under_one_write,
        r"I58 verdict 3: relied on 0 to 0 writes; the run had made 1",
    ),
    "unchecked-payloads": PlantedBug(
        "the check of a ledger passes over payloads that are not what the histories name",
        (Change(audit._Runs._one, "for code, compare in _COMPARED:", "for code, compare in _COMPARED[:3]:"),),
        stories_governance.payloads_replaced_under_a_checkpoint,
        r"the check found \[\]",
    ),
    "loose-base64": PlantedBug(
        "bits of a proof or a checkpoint that stand for nothing may be anything",
        (
            Change(
                canonical.decode_base64,
                "return body if encode_base64(body) == text else None",
                "return body",
            ),
        ),
        stories_governance.a_padding_bit_is_flipped,
        "two texts are one checkpoint",
    ),
    "rounded-integers": PlantedBug(
        "digests write integers as doubles, so that two amounts beyond 2^53 are one",
        (Change(canonical.canonical_number, "str(int(value))", "str(int(float(value)))"),),
        stories_equal_values.a_key_stands_for_one_amount,
        "another amount was answered with",
    ),
    "refused-input-forgotten": PlantedBug(
        "what owes a step its input is forgotten when that is refused for good: the step waits for ever",
        (Change(outbox._failure, 'row.topic == "resolve"', "False"),),
        stories_equal_values.a_step_whose_input_is_refused_fails,
        "the step is pending",
    ),
    "drain-begins-steps": PlantedBug(
        "a worker that was asked to end begins the next step of its run",
        (
            Change(
                StepCalls._run,
                "if self._lease_port.draining:\n            await waits.park()",
                "if False:\n            await waits.park()",
            ),
            Change(LeaseSession.check_begin, "if self.draining:", "if False:"),
        ),
        stories_drain.ends_between_steps,
        "a worker that ends began another step",
    ),
    "lease-counts-from-its-answer": PlantedBug(
        "a lease counts from the moment at which its answer was read, however long that lay in the socket",
        (
            Change(
                LocalWorkSource._claim, "lease.asked_at = asked_at", "lease.asked_at = clock.boot_seconds()"
            ),
        ),
        stories_drain.begins_nothing_after_its_lease,
        "a step began under a lease that had ended",
    ),
    "late-for-good": PlantedBug(
        "a call that was certainly not made, because its time was over, fails for good",
        (Change(act_calls.ActCaller._retry_after, " and fault.code != LATE:", ":"),),
        stories_governance.a_call_is_late_more_often_than_its_retries,
        "the act ended with not done",
    ),
    "fastest-clock-wins": PlantedBug(
        "a clock that is far from what the time of a SQLite file should be is believed",
        (Change(FileClock.read, "if abs(apart) <= DOUBT_US:", "if True:"),),
        stories_governance.a_worker_an_hour_ahead,
        "approvals of half an hour have not expired",
    ),
    "lock-of-the-dead": PlantedBug(
        "the lock of a request stands although the server that holds it is silent",
        (Change(idempotency._is_silent, "if holder is None:", "if True:"),),
        stories_governance.a_server_dies_with_a_request_in_process,
        "it would answer 202 for five minutes",
    ),
}
"""By name."""
