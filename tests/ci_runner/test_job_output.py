"""The log of a job that prints too much."""

from pathlib import Path

import pytest

from tenure.ci_runner.job_output import JobOutput
from tenure.limits import JOB_OUTPUT_BYTES_MAX, LOG_BYTES_PER_ATTEMPT_MAX
from tests.ci_runner.folder_storage import FolderStorage


async def test_a_log_above_its_limit_ends_with_a_line_that_servers_still_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.ci_runner.job_output.JOB_OUTPUT_BYTES_MAX", 1_000)
    output = JobOutput(FolderStorage(tmp_path, "lease"), 5_000)
    for _ in range(10):
        await output.note("x" * 300)
    stored = (tmp_path / "lease" / "log").read_bytes()
    assert stored.endswith(b"\n# the log ends here: it has 1000 bytes\n")
    assert 1_000 < len(stored) <= 1_000 + LOG_BYTES_PER_ATTEMPT_MAX - JOB_OUTPUT_BYTES_MAX
