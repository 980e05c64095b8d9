"""Planted bugs that the simulator cannot find. A story finds each of them.

A story is an async function that takes an empty folder. It uses a real store and checks only what is visible from outside:
findings of the doctor, a log of effects outside Tenure, replies to a client.
Bugs that the simulator finds are in `tests/simulation/planted_bugs.py`.
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
    """A bug, and the story that must fail while the bug is planted."""

    what: str
    changes: tuple[Change, ...]
    story: Story
    noticed: str
    """A pattern for the message of the failed story. A failure with any other message does not count."""


PLANTED_BUGS: dict[str, PlantedBug] = {
    **{name: PlantedBug(*bug) for name, bug in stories_fences.BUGS.items()},
    **{name: PlantedBug(*bug) for name, bug in stories_separation_of_duties.BUGS.items()},
    **{name: PlantedBug(*bug) for name, bug in DATABASE_BUGS.items()},
    **{name: PlantedBug(*bug) for name, bug in stories_many_children.BUGS.items()},
    "outdated-verdict": PlantedBug(
        "an intention is recorded although a fact behind its verdict has changed",
        (Change(acts._still_holds, "if relied is None:", "if True:"),),
        stories_governance.five_concurrent_acts_under_a_limit_of_one_write,
        r"I58 verdict 3: relied on 0 to 0 writes; the run had made 1",
    ),
    "unchecked-payloads": PlantedBug(
        "a ledger check ignores payloads that do not match the histories",
        (Change(audit._Runs._one, "for code, compare in _COMPARED:", "for code, compare in _COMPARED[:3]:"),),
        stories_governance.a_ledger_check_finds_replaced_payloads,
        r"the check found \[\]",
    ),
    "loose-base64": PlantedBug(
        "unused bits in the encoding of a proof or checkpoint can have any value",
        (
            Change(
                canonical.decode_base64,
                "return body if encode_base64(body) == text else None",
                "return body",
            ),
        ),
        stories_governance.a_checkpoint_with_a_flipped_padding_bit_is_refused,
        "a second encoding of the checkpoint was accepted",
    ),
    "rounded-integers": PlantedBug(
        "digests convert integers to doubles, so two different amounts above 2^53 get the same digest",
        (Change(canonical.canonical_number, "str(int(value))", "str(int(float(value)))"),),
        stories_equal_values.one_key_with_two_amounts_is_refused,
        "another amount returned run",
    ),
    "refused-input-forgotten": PlantedBug(
        "after a permanent failure to resolve its input, a step waits forever",
        (Change(outbox._failure, 'row.topic == "resolve"', "False"),),
        stories_equal_values.a_step_with_unresolvable_input_fails,
        "the step is pending",
    ),
    "drain-begins-steps": PlantedBug(
        "a draining worker starts the next step of its run",
        (
            Change(
                StepCalls._run,
                "if self._lease_port.draining:\n            await waits.park()",
                "if False:\n            await waits.park()",
            ),
            Change(LeaseSession.check_begin, "if self.draining:", "if False:"),
        ),
        stories_drain.a_draining_worker_starts_no_step,
        "a draining worker started another step",
    ),
    "lease-counts-from-its-answer": PlantedBug(
        "a worker counts its lease from the moment it read the reply, however long the reply was in the socket",
        (
            Change(
                LocalWorkSource._claim, "lease.asked_at = asked_at", "lease.asked_at = clock.boot_seconds()"
            ),
        ),
        stories_drain.a_paused_worker_starts_nothing_under_an_ended_lease,
        "a step started under an ended lease",
    ),
    "late-for-good": PlantedBug(
        "a call that was never sent because its deadline had passed fails permanently",
        (Change(act_calls.ActCaller._retry_after, " and fault.code != LATE:", ":"),),
        stories_governance.a_call_is_delayed_more_often_than_its_retries,
        "the act ended with not done",
    ),
    "fastest-clock-wins": PlantedBug(
        "a clock that is far from the time of a SQLite file moves that time",
        (Change(FileClock.read, "if abs(apart) <= DOUBT_US:", "if True:"),),
        stories_governance.a_clock_one_hour_ahead,
        "the wrong clock moved the time of the file",
    ),
    "lock-of-the-dead": PlantedBug(
        "the request lock of a dead server is not released",
        (Change(idempotency._is_silent, "if holder is None:", "if True:"),),
        stories_governance.a_server_dies_during_a_request,
        "the request is still locked",
    ),
}
