"""The gate behind the suite: every edge of the lifecycle was walked by some test. Runs last, with the whole suite.

What is counted is what the kernel itself did in this process: moves of step, attempt and lease from each place
they start at, paths by which a run's derived status changed, edges of approvals. The machines of receipts and
idempotency records have no kernel behind them yet; their tables are tested edge by edge in kernel/test_machines.
"""

from tenure.kernel import draft
from tenure.kernel.decide import waits
from tenure.kernel.machines import APPROVAL, MOVES, RUN_PATHS
from tests.kernel.test_moves import NEVER


def test_every_move_was_made() -> None:
    walked = draft.walked_moves
    assert walked is not None
    assert sorted(f"{name} from {place}" for name, place in MOVES.keys() - walked) == []


def test_every_path_of_a_run_was_taken_and_no_other() -> None:
    walked = draft.walked_paths
    assert walked is not None
    assert sorted(f"{old} -> {new}" for old, new in RUN_PATHS.keys() - walked - NEVER.keys()) == []
    assert sorted(walked - (RUN_PATHS.keys() - NEVER.keys())) == []


def test_every_edge_of_an_approval_was_taken() -> None:
    walked = vars(waits)["APPROVAL"].walked  # conftest.py put a noting machine there
    assert [edge for edge in APPROVAL.edges if edge not in walked] == []
