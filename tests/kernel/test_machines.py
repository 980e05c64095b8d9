"""The machines as tables: every pair of state and input, and every kind of broken table."""

import pytest

from tenure.errors import TenureError
from tenure.kernel import refinement
from tenure.kernel.machines import LIVE_LEASE, MACHINES, MOVES, RUN, RUN_PATHS, STEP, JointState, Move
from tenure.kernel.state_machine import ORCHESTRATOR, RUNNER, BrokenMachine, Edge, Machine, parse_edges

PAIRS = [
    (m, state, given)
    for m in MACHINES.values()
    for state in m.states
    for given in sorted({e.input for e in m.edges})
]


@pytest.mark.parametrize(
    ("machine", "state", "given"), PAIRS, ids=[f"{m.name}-{s}-{g}".replace(" ", "_") for m, s, g in PAIRS]
)
def test_every_state_accepts_exactly_its_inputs(machine: Machine, state: str, given: str) -> None:
    written = [edge for edge in machine.edges if (edge.state, edge.input) == (state, given)]
    before = (machine.edges, machine.states, machine.terminal)
    if written:
        assert [machine.take(state, given)] == written
    else:
        with pytest.raises(TenureError) as refused:
            machine.take(state, given)
        expected = "RUN_TERMINAL_STATE" if state in machine.terminal else "RUN_INVALID_TRANSITION"
        assert refused.value.code == expected
        assert state in refused.value.message
        assert given in refused.value.message
    assert (machine.edges, machine.states, machine.terminal) == before


@pytest.mark.parametrize("machine", MACHINES.values(), ids=lambda m: m.name.replace(" ", "_"))
def test_an_unknown_input_is_refused_in_every_state(machine: Machine) -> None:
    for state in machine.states:
        with pytest.raises(TenureError):
            machine.take(state, "no such input")


def test_a_table_row_has_states_input_next_and_owner() -> None:
    assert parse_edges("""
        # a comment
        created, queued: cancel -> canceled

        running: upload -> uploading [runner]
    """) == [
        Edge("created", "cancel", "canceled", ORCHESTRATOR),
        Edge("queued", "cancel", "canceled", ORCHESTRATOR),
        Edge("running", "upload", "uploading", RUNNER),
    ]


@pytest.mark.parametrize(
    ("problem", "terminal", "table"),
    [
        ("two rows for", ["done"], "new: go -> done\n new: go -> new"),
        ("terminal states with a way out", ["done"], "new: go -> done\n done: back -> new"),
        ("dead ends", ["done"], "new: go -> done\n new: stray -> lost"),
        ("unreachable states", ["done"], "new: go -> done\n island: go -> done"),
        ("can never end", ["done"], "new: go -> done\n new: stray -> a\n a: on -> b\n b: on -> a"),
        ("no edge leads to", ["done", "gone"], "new: go -> done"),
    ],
)
def test_a_broken_table_is_refused(problem: str, terminal: list[str], table: str) -> None:
    with pytest.raises(BrokenMachine, match=problem):
        Machine("broken", "new", terminal, parse_edges(table))


# ------------------------------------------------------------------------------------------- run paths


def test_a_change_of_status_is_a_path_of_the_run_table() -> None:
    for (old, new), path in RUN_PATHS.items():
        assert 1 <= len(path) <= 2
        here = old
        for edge in path:
            assert RUN.take(here, edge.input) == edge
            here = edge.next
        assert here == new


def test_no_status_follows_a_terminal_one() -> None:
    assert {old for old, _ in RUN_PATHS} & RUN.terminal == set()


def test_waiting_states_are_entered_only_from_running() -> None:
    waits = {"waiting_approval", "waiting_external", "retry_wait"}
    assert {edge.state for edge in RUN.edges if edge.next in waits} == {"running"}


def test_a_cancel_always_passes_through_canceling() -> None:
    for (old, new), path in RUN_PATHS.items():
        if new == "canceled":
            assert path[-1].state == "canceling", f"from {old}"


def test_every_open_run_can_be_canceled() -> None:
    for status in (
        set(RUN.states) - RUN.terminal - {"canceling", "plan_failed"}
    ):  # plan_failed is never left open
        assert (status, "canceled") in RUN_PATHS


# ------------------------------------------------------------------------------------------------ moves


def test_the_joint_machine_of_step_attempt_and_lease_is_sound() -> None:
    assert refinement.kernel_problems() == []


def test_a_step_that_has_ended_holds_no_lease() -> None:
    ended = [here for here in refinement.joint_states() if here.step in STEP.terminal]
    assert ended
    assert [here for here in ended if here.lease in LIVE_LEASE] == []


def test_only_a_leased_or_canceling_step_has_a_live_lease() -> None:
    holders = {here.step for here in refinement.joint_states() if here.lease in LIVE_LEASE}
    assert holders == {"leased", "starting", "running", "uploading", "canceling"}


Moves = dict[tuple[str, JointState], Move]


def problems_of(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(refinement, "MOVES", moves)
    return "\n".join(refinement.kernel_problems())


def test_a_state_without_an_exit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = {key: move for key, move in MOVES.items() if key[1].step != "retry_wait"}
    assert "retry_wait/failed/completed is a dead end" in problems_of(fewer, monkeypatch)


def test_an_unreachable_move_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = {key: move for key, move in MOVES.items() if not key[0].startswith("claim")}
    assert "the move ack starts in leased/leased/granted, which nothing reaches" in problems_of(
        fewer, monkeypatch
    )


def test_an_unused_edge_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = {key: move for key, move in MOVES.items() if key[0] != "cancel_ack"}
    assert "no move takes the edge active -cancel_ack-> canceled of lease" in problems_of(fewer, monkeypatch)


def test_a_lease_that_outlives_its_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    running = JointState("running", "running", "active")
    forgotten = JointState("succeeded", "running", "active")
    more = {**MOVES, ("complete", running): Move("complete", running, forgotten, (forgotten,), ())}
    found = problems_of(more, monkeypatch)
    assert "succeeded/running/active has ended with a live lease" in found
    assert "succeeded/running/active has ended with an open attempt" in found


def test_an_attempt_replaced_while_it_runs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    running, replaced = JointState("running", "running", "active"), JointState("ready", "created")
    more = {**MOVES, ("expire", running): Move("expire", running, replaced, (replaced,), ())}
    found = problems_of(more, monkeypatch)
    assert "the move expire replaces an attempt that is running" in found
    assert "the move expire replaces a lease that is active" in found


def test_a_cycle_without_an_exit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = JointState("waiting_external")
    circle = {key: move for key, move in MOVES.items() if key[1] != gate}
    circle["settle", gate] = Move("settle", gate, gate, (gate,), ())
    assert "waiting_external/-/- can never end" in problems_of(circle, monkeypatch)
