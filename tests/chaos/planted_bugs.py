"""Bugs that the simulator cannot show: each is planted into the real code, and a short story must notice it.

A story is an async function that takes an empty folder. It plays on a real store, and asserts what must hold by what
can be seen from outside: the doctor's findings, a ledger of effects kept outside Tenure, an answer to a client.
Bugs that the simulator does show are in `tests/simulation/planted.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from tenure import canonical
from tenure.govern import settling, signing
from tenure.govern.ledger import checking
from tenure.kernel.decide import acts
from tenure.orchestrator import outbox
from tenure.sdk.body import Body
from tenure.store import keys
from tenure.store.sqlite.file_time import FileTime
from tenure.worker.held import Held
from tenure.worker.station import LocalStation
from tests.chaos import (
    stories_drain,
    stories_duties,
    stories_expr,
    stories_fences,
    stories_govern,
    stories_many,
)
from tests.chaos.stories_dbs import BUGS as DATABASE_BUGS
from tests.simulation.planted import Change

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
    **{name: PlantedBug(*bug) for name, bug in stories_duties.BUGS.items()},
    **{name: PlantedBug(*bug) for name, bug in DATABASE_BUGS.items()},
    **{name: PlantedBug(*bug) for name, bug in stories_many.BUGS.items()},
    "outdated-verdict": PlantedBug(
        "a call is intended although a fact that its verdict relied on has changed",
        (Change(acts._still_holds, "if relied is None:", "if True:"),),
        stories_govern.five_acts_under_one_write,
        r"I58 verdict 3: relied on 0 to 0 writes; the run had made 1",
    ),
    "unchecked-payloads": PlantedBug(
        "the check of a ledger passes over payloads that are not what the histories name",
        (
            Change(
                checking._Runs._one, "for code, compare in _COMPARED:", "for code, compare in _COMPARED[:3]:"
            ),
        ),
        stories_govern.payloads_replaced_under_a_checkpoint,
        r"the check found \[\]",
    ),
    "loose-base64": PlantedBug(
        "bits of a proof or a checkpoint that stand for nothing may be anything",
        (Change(signing.unb64, "return body if b64(body) == text else None", "return body"),),
        stories_govern.a_padding_bit_is_flipped,
        "two texts are one checkpoint",
    ),
    "rounded-integers": PlantedBug(
        "digests write integers as doubles, so that two amounts beyond 2^53 are one",
        (Change(canonical.number, "str(int(value))", "str(int(float(value)))"),),
        stories_expr.a_key_stands_for_one_amount,
        "another amount was answered with",
    ),
    "refused-input-forgotten": PlantedBug(
        "what owes a step its input is forgotten when that is refused for good: the step waits for ever",
        (Change(outbox._failure, 'row.topic == "resolve"', "False"),),
        stories_expr.a_step_whose_input_is_refused_fails,
        "the step is pending",
    ),
    "drain-begins-steps": PlantedBug(
        "a worker that was asked to end begins the next step of its run",
        (
            Change(
                Body._carry_out,
                "if self.line.draining:\n            await self.park()",
                "if False:\n            await self.park()",
            ),
            Change(Held.check_begin, "if self.draining:", "if False:"),
        ),
        stories_drain.ends_between_steps,
        "a worker that ends began another step",
    ),
    "lease-counts-from-its-answer": PlantedBug(
        "a lease counts from the moment at which its answer was read, however long that lay in the socket",
        (Change(LocalStation._claim, "lease.asked_at = asked_at", "lease.asked_at = clock.boot_seconds()"),),
        stories_drain.begins_nothing_after_its_lease,
        "a step began under a lease that had ended",
    ),
    "late-for-good": PlantedBug(
        "a call that was certainly not made, because its time was over, fails for good",
        (Change(settling.Settling._retry_after, " and fault.code != LATE:", ":"),),
        stories_govern.a_call_is_late_more_often_than_its_retries,
        "the act ended with not done",
    ),
    "fastest-clock-wins": PlantedBug(
        "a clock that is far from what the time of a SQLite file should be is believed",
        (Change(FileTime.read, "if abs(apart) <= DOUBT_US:", "if True:"),),
        stories_govern.a_worker_an_hour_ahead,
        "approvals of half an hour have not expired",
    ),
    "lock-of-the-dead": PlantedBug(
        "the lock of a request stands although the server that holds it is silent",
        (Change(keys._is_silent, "if holder is None:", "if True:"),),
        stories_govern.a_server_dies_with_a_request_in_process,
        "it would answer 202 for five minutes",
    ),
}
"""By name."""
