"""The check at the end of the suite: some test has taken every edge of the lifecycle. It runs last, with the whole suite.

It counts what the kernel itself did in the processes of the suite: moves of step, attempt and lease from each state in
which they start, paths by which a run's derived status changed, and edges of approvals and receipts; and the edges of
idempotency records, which `store/idempotency.py` takes.
If the suite runs in several processes, conftest.py merges their edges and calls `missing`.
"""

from tests.edge_coverage import missing, walked_here


def test_every_edge_was_walked_and_no_other() -> None:
    assert missing(walked_here()) == []
