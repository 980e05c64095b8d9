"""Mirrors: a bare repository for each remote repository, in a cache folder of this host.

Laws:
1. A mirror only grows: nothing deletes objects while jobs borrow them. To begin again, delete its folder while nothing runs.
2. Processes take turns to fetch into a mirror (a lock on a file). Reads need no lock.
3. A commit that is there is not fetched again.
4. Credentials are read for each fetch, passed to git in its environment and stored nowhere. A mirror has no remote, no hook and no config of its own.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from urllib.parse import urlsplit

from tenure import private_files, secrets
from tenure.ci.git_commands import (
    COMMIT,
    GitCommandFailed,
    GitCommandTimedOut,
    GitProgram,
    LocalRepository,
    check_ref,
)
from tenure.ci.settings import RepositorySettings, find_url_problem, url_protocol
from tenure.errors import TenureError

LOCK_POLL_SECONDS = 0.05
LISTED_BYTES_MAX = 1 << 20
PACKS_INDEXED = 16
"""After so many new packs, all packs are indexed together."""
_REFUSED = re.compile(
    r"not found|does not exist|does not appear to be a git repository|authentication failed|could not read (?:username|password)"
    r"|permission denied|access denied|not allowed|\b40[13]\b|redirect|dubious ownership|host key verification failed|repository .* is empty",
    re.IGNORECASE,
)
_BAD_OBJECT = re.compile(r"fsck|object of unexpected type|corrupt|bad object", re.IGNORECASE)


class GitMirror:
    """The mirror of one repository."""

    def __init__(self, cache: Path, settings: RepositorySettings) -> None:
        self._settings = settings
        digest = hashlib.sha256(settings.url.encode()).hexdigest()[:16]
        self.folder = cache / f"{re.sub(r'[^A-Za-z0-9_-]', '-', settings.name)}-{digest}.git"
        self.repository = LocalRepository(self.folder)

    def fetch_change(self, ref: str, head: str = "", *wanted: str, seconds: float | None = None) -> str:
        """Fetch a ref, and further commits or refs if they are missing. Returns the head's id. COMMIT_NOT_FOUND if the head is not in the
        remote repository any more."""
        check_ref(ref)
        limit = (
            self._settings.fetch.timeout_seconds
            if seconds is None
            else min(seconds, self._settings.fetch.timeout_seconds)
        )
        if head and self._is_complete(head, wanted):
            return head
        until = monotonic() + limit
        with self._lock(until):
            if head and self._is_complete(head, wanted):
                return head
            if not head or not self.repository.has_commit(head):
                self._fetch(until, f"+{ref}:{_local(ref)}", required=not head)
            if not head:
                head = self.repository.find_commit(_local(ref))
            elif not self.repository.has_commit(head):
                self._fetch(until, head)  # the ref has moved on
            for name in wanted:
                if name.startswith("refs/"):
                    self._fetch(until, f"+{check_ref(name)}:{_local(name)}", required=False)
                elif not self.repository.has_commit(name):
                    self._fetch(until, name, required=False)
            self._index_packs(until)
        return head

    def find_ref(self, ref: str) -> str | None:
        """The commit that a fetched ref has."""
        try:
            return self.repository.find_commit(_local(ref))
        except TenureError:
            return None

    def contains(self, ref: str, commit: str) -> bool:
        """Whether a commit is part of a fetched ref."""
        tip = self.find_ref(ref)
        return tip is not None and self.repository.find_merge_base(tip, commit) == commit

    def _is_complete(self, head: str, wanted: tuple[str, ...]) -> bool:
        if not self.folder.is_dir() or any(name.startswith("refs/") for name in wanted):
            return False
        return all(self.repository.has_commit(commit) for commit in (head, *wanted))

    @contextmanager
    def _lock(self, until: float) -> Iterator[None]:
        private_files.make_folder(self.folder.parent)
        with private_files.append_file(self.folder.with_suffix(".lock")) as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if monotonic() > until:
                        raise TenureError(
                            "NETWORK_FETCH_FAILED",
                            f"another process has been fetching {self._settings.name} for too long; try again",
                        ) from None
                    sleep(LOCK_POLL_SECONDS)
            if not (self.folder / "HEAD").exists():
                self._make()
            yield

    def _make(self) -> None:
        private_files.make_folder(self.folder)
        GitProgram(git_dir=str(self.folder)).run("init", "--quiet", "--bare", "--template=", str(self.folder))

    def _fetch(self, until: float, what: str, *, required: bool = True) -> None:
        settings = self._settings
        if problem := find_url_problem(settings.url, settings.protocols):
            raise TenureError("REPOSITORY_REFUSED", f"{settings.name}: {settings.url} {problem}")
        git = GitProgram(
            git_dir=str(self.folder), protocols=(url_protocol(settings.url),), config=_credentials(settings)
        )
        try:
            git.run(
                "fetch",
                "--quiet",
                "--no-tags",
                "--no-auto-gc",
                "--no-recurse-submodules",
                "--no-write-fetch-head",
                "--force",
                "--end-of-options",
                settings.url,
                what,
                seconds=max(0.1, until - monotonic()),
                file_bytes_max=settings.fetch.size_bytes,
            )
        except GitCommandTimedOut as late:
            self._remove_rest()
            raise TenureError(
                "NETWORK_FETCH_FAILED", f"{settings.name} could not be fetched: {late}"
            ) from late
        except GitCommandFailed as fault:
            error = _explain(settings, fault, what, self._remove_rest())
            if error.code != "COMMIT_NOT_FOUND" or required:
                raise error from fault

    def _index_packs(self, until: float) -> None:
        """Index all packs together from time to time: git would look into each of them for every object."""
        count = sum(1 for _ in self.folder.glob("objects/pack/*.pack"))
        if count and count % PACKS_INDEXED == 0:
            with suppress(GitCommandFailed, GitCommandTimedOut):  # it only makes reads faster
                GitProgram(git_dir=str(self.folder)).run(
                    "multi-pack-index", "write", "--no-progress", seconds=max(0.1, until - monotonic())
                )

    def _remove_rest(self) -> int:
        """Remove what a failed fetch has left behind. The size of the largest file of it: a pack that reached its limit was cut there."""
        largest = 0
        for file in self.folder.glob("objects/pack/tmp_*"):
            largest = max(largest, file.stat().st_size)
            file.unlink()
        return largest


def find_remote_commit(settings: RepositorySettings, ref: str, seconds: float) -> str:
    """The commit that a ref of the remote repository has now, without a fetch. COMMIT_NOT_FOUND if there is no such ref."""
    check_ref(ref)
    if problem := find_url_problem(settings.url, settings.protocols):
        raise TenureError("REPOSITORY_REFUSED", f"{settings.name}: {settings.url} {problem}")
    git = GitProgram(protocols=(url_protocol(settings.url),), config=_credentials(settings))
    peeled = f"{ref}^{{}}"  # the commit of a tag with a message
    try:
        listed = git.run(
            "ls-remote",
            "--quiet",
            "--end-of-options",
            settings.url,
            ref,
            peeled,
            seconds=seconds,
            output_bytes_max=LISTED_BYTES_MAX,
        )
    except GitCommandTimedOut as late:
        raise TenureError("NETWORK_FETCH_FAILED", f"{settings.name} could not be asked: {late}") from late
    except GitCommandFailed as fault:
        raise _explain(settings, fault, ref) from fault
    rows = [line.partition("\t") for line in listed.decode(errors="replace").splitlines()]
    found = {name: commit for commit, _, name in rows}  # git lists refs that end with the name, too
    commit = found.get(peeled) or found.get(ref, "")
    if not COMMIT.fullmatch(commit):
        raise TenureError("COMMIT_NOT_FOUND", f"{settings.name} has no {ref}; it may have been deleted")
    return commit


def _credentials(settings: RepositorySettings) -> dict[str, str]:
    fetch, url = settings.fetch, settings.url
    if not fetch.credential or url_protocol(url) != "https":
        return {}
    token = secrets.resolve_own(fetch.credential).decode().strip()
    encoded = base64.b64encode(f"{fetch.user}:{token}".encode()).decode()
    host = urlsplit(url)
    return {f"http.{host.scheme}://{host.netloc}/.extraHeader": f"Authorization: Basic {encoded}"}


def _explain(
    settings: RepositorySettings, fault: GitCommandFailed, what: str, largest: int = 0
) -> TenureError:
    """The error of a failed fetch, by what git said and left behind."""
    name, said = settings.name, " ".join(fault.stderr.split())[-500:]
    if re.search(r"not our ref|couldn't find remote ref|unadvertised object", said):
        shown = what.partition(":")[0].lstrip("+")
        return TenureError(
            "COMMIT_NOT_FOUND",
            f"{name} has no {shown}; a force push or a deleted branch may have removed it",
        )
    if largest >= settings.fetch.size_bytes // 512 * 512:
        return TenureError(
            "REPOSITORY_TOO_LARGE",
            f"a fetch of {name} brings more than the {settings.fetch.size_bytes} bytes that its settings allow",
        )
    if _BAD_OBJECT.search(said):
        return TenureError("REPOSITORY_REFUSED", f"{name} has an object that git refuses: {said}")
    code = "REPOSITORY_REFUSED" if _REFUSED.search(said) else "NETWORK_FETCH_FAILED"
    return TenureError(code, f"{name} could not be fetched: {said or 'git said nothing'}")


def _local(ref: str) -> str:
    """Where a mirror keeps a ref of the remote repository."""
    return f"refs/mirror/{ref.removeprefix('refs/')}"
