"""A `JobStorage` in a folder: what a server would keep of each lease, for tests of the runner alone."""

import asyncio
import shutil
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import msgspec

from tenure.ci_runner.job_storage import JobFile, TestHistory, TestReport


class FolderStorage:
    """The log of lease L is `L/log`, its artifacts are in `L/artifacts`. Caches and histories are shared. While a file `hold-attempt.N` exists,
    uploads of Nth attempts wait."""

    def __init__(self, top: Path, lease_id: str) -> None:
        self._top = top
        self._own = top / lease_id
        self._own.mkdir(parents=True, exist_ok=True)

    async def append_log(self, data: bytes) -> None:
        with (self._own / "log").open("ab") as file:
            file.write(data)

    async def close_log(self) -> None:
        (self._own / "closed").touch()

    async def upload(self, name: str, files: Sequence[JobFile], retention_seconds: int | None) -> str:
        hold = self._top / f"hold-attempt{self._own.suffix}"
        while hold.exists():  # noqa: ASYNC110 - the file is another process's
            await asyncio.sleep(0.02)
        for file in files:
            target = self._own / "artifacts" / name / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.local, target)
            target.chmod(file.mode)
        return "sha256:" + sha256(b"".join(file.local.read_bytes() for file in files)).hexdigest()

    async def download(self, job: str, artifact: str, into: Path) -> None:
        (found,) = self._top.glob(f"*/artifacts/{artifact}")
        shutil.copytree(found, into, dirs_exist_ok=True, symlinks=True)

    async def restore_cache(self, key: str, fallback: Sequence[str], into: Path) -> str | None:
        caches = self._top / "caches"
        known = sorted(each.name for each in caches.iterdir()) if caches.exists() else []
        found = key if key in known else next((n for f in fallback for n in known if n.startswith(f)), None)
        if found is not None:
            shutil.copytree(caches / found, into, dirs_exist_ok=True, symlinks=True)
        return found

    async def save_cache(self, key: str, paths: Sequence[Path], root: Path) -> None:
        for path in paths:
            target = self._top / "caches" / key / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if path.is_dir() else shutil.copyfile)(path, target)

    async def send_report(self, report: TestReport) -> None:
        (self._own / "report.json").write_bytes(msgspec.json.encode(report))

    async def failed_before(self, tests: Sequence[str]) -> dict[str, TestHistory]:
        file = self._top / "history.json"
        known = msgspec.json.decode(file.read_bytes(), type=dict[str, TestHistory]) if file.exists() else {}
        return {test: known[test] for test in tests if test in known}
