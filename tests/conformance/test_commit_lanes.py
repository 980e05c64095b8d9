"""Commit lanes: the order of pending commands, and which of them a batch takes."""

import asyncio
from typing import Any

from tenure.kernel.commands import CreateRun, Pause
from tenure.kernel.run_rows import Cap
from tenure.limits import BATCH_COMMANDS_MAX
from tenure.orchestrator.batch import PendingCommand
from tenure.orchestrator.commit_lanes import LONE_COMMANDS_MAX, CommitLane

NONE: dict[str, Cap] = {}


def a_lane(known: dict[str, Cap] | None = NONE) -> CommitLane:
    return CommitLane(0, lambda _: known)


def made(
    run_id: int, tenant: str = "acme", caps: dict[str, Cap] | None = NONE, **given: Any
) -> PendingCommand:
    return PendingCommand(CreateRun(run_id=run_id, tenant=tenant, workflow="build", **given), None, 0.0, caps)


def keyed(run_id: int, tenant: str = "acme") -> PendingCommand:
    return made(run_id, tenant, concurrency_key="one")


def paused(run_id: int) -> PendingCommand:
    return PendingCommand(Pause(run_id=run_id), None, 0.0, NONE)


def take(lane: CommitLane) -> list[int]:
    return [item.run_id for item in lane.take()]


def put(lane: CommitLane, *items: PendingCommand) -> None:
    for item in items:
        lane.put(item)


def test_a_batch_has_at_most_one_gated_command_per_tenant() -> None:
    lane = a_lane()
    put(lane, *(keyed(n) for n in range(1, 4)), keyed(10, "other"), paused(20), paused(21))
    assert take(lane) == [20, 21, 1, 10]
    put(lane, paused(22))
    assert take(lane) == [22, 2]
    assert take(lane) == [3]
    assert not lane


def test_commands_on_one_run_keep_their_order() -> None:
    lane = a_lane()
    first, second = keyed(1), keyed(2)
    after, later = paused(2), paused(2)
    put(lane, first, second, after)
    assert lane.take() == [first]
    put(lane, later)
    assert lane.take() == [second, after, later]
    put(lane, paused(2))
    assert take(lane) == [2]
    assert not lane


def test_a_gated_command_does_not_overtake_earlier_commands() -> None:
    lane = a_lane()
    many = [paused(n) for n in range(BATCH_COMMANDS_MAX + 5)]
    last = many[-1].run_id
    put(lane, keyed(7_001), *many, PendingCommand(keyed(last).command, None, 0.0, NONE))
    assert take(lane) == [*range(BATCH_COMMANDS_MAX), 7_001]
    assert take(lane) == [*range(BATCH_COMMANDS_MAX, last + 1), last]
    assert not lane


def test_a_long_queue_does_not_starve_gated_commands() -> None:
    lane = a_lane()
    put(lane, keyed(1), *(paused(n) for n in range(10, 10 + 2 * BATCH_COMMANDS_MAX)))
    assert take(lane)[-1] == 1


def test_creations_that_waited_for_the_caps_share_a_batch() -> None:
    lane = a_lane(known=NONE)
    put(lane, *(made(n, caps=None) for n in range(1, 4)), keyed(4), keyed(5))
    assert take(lane) == [1, 2, 3, 4]
    assert take(lane) == [5]
    unread = a_lane(known=None)
    put(unread, *(made(n, caps=None) for n in range(1, 4)))
    assert [take(unread), take(unread), take(unread)] == [[1], [2], [3]]


def test_tenants_take_turns_if_a_batch_is_full() -> None:
    lane = a_lane()
    tenants = BATCH_COMMANDS_MAX + 3
    put(
        lane,
        *(keyed(n, f"tenant-{n}") for n in range(tenants)),
        *(keyed(9_000 + n, f"tenant-{n}") for n in range(2)),
    )
    assert take(lane) == list(range(BATCH_COMMANDS_MAX))
    assert take(lane) == [*range(BATCH_COMMANDS_MAX, tenants), 9_000, 9_001]
    assert not lane


def is_alone(lane: CommitLane) -> bool:
    return lane.is_idle


async def test_a_command_is_alone_only_if_nothing_waits_or_is_being_committed() -> None:
    lane = a_lane()
    assert is_alone(lane)
    put(lane, paused(1))
    assert not is_alone(lane), "one command is pending"
    lane.take()
    assert is_alone(lane), "the last batch was one command"
    put(lane, keyed(2))
    assert not is_alone(lane), "one gated command is pending"
    lane.take()
    lane.busy = True
    assert not is_alone(lane), "a batch is being committed"
    lane.busy = False
    put(lane, paused(1), paused(2))
    lane.take()
    assert not is_alone(lane), "the last batch was two commands"
    put(lane, paused(1))
    lane.take()
    loop = asyncio.get_running_loop()
    for _ in range(LONE_COMMANDS_MAX):
        assert is_alone(lane)
        lane.count_lone_command(loop)
    assert not is_alone(lane), "the event loop must turn first"
    await asyncio.sleep(0)
    assert is_alone(lane)
