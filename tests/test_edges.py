"""The gate behind the suite: every edge of the lifecycle was walked by some test. Runs last, with the whole suite.

What is counted is what the kernel itself did in the processes of the suite: moves of step, attempt and lease from each
place they start at, paths by which a run's derived status changed, edges of approvals and receipts; and
edges of idempotency records, which `store/idempotency.py` takes.
Where the suite is divided over several processes, conftest.py puts together what each has walked and asks `missing`.
"""

from tests.edge_coverage import missing, walked_here


def test_every_edge_was_walked_and_no_other() -> None:
    assert missing(walked_here()) == []
