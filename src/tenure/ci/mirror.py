"""Mirrors: a bare repository for each URL, in a cache folder of this host. Plans and jobs share it.

Laws:
1. A mirror only grows: nothing deletes objects while jobs borrow them. To begin again, delete its folder while nothing runs.
2. Processes take turns to fetch into a mirror (a lock on a file). Reads need no lock.
3. A commit that is there is not fetched again.
4. Credentials are read for each fetch, passed to git in its environment and stored nowhere. A mirror has no remote, no hook and no config of its own.
5. The owner of the host decides what is fetched there at most (`GitSettings`): with which protocols, how much, for how long, with which credentials. The
   settings of a repository, which come from a server, can only ask for less. Both are asked before a commit is used, even if it is there.
6. Other users can read the objects, if somebody shows them the folder: jobs in a sandbox. The mirror's folder itself is closed.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from urllib.parse import urlsplit

import msgspec

from tenure import private_files, secrets
from tenure.ci.git_commands import (
    COMMIT,
    GitCommandFailed,
    GitCommandTimedOut,
    GitProgram,
    LocalRepository,
    check_commit,
    check_ref,
)
from tenure.ci.settings import RepositorySettings, find_url_problem, url_protocol
from tenure.errors import TenureError

DEFAULT_PROTOCOLS = ("https", "ssh")
LOCK_POLL_SECONDS = 0.05
NAME_CHARS_MAX = 60
LISTED_BYTES_MAX = 1 << 20
PACKS_INDEXED = 16
"""After so many new packs, all packs are indexed together."""
_REFUSED = re.compile(
    r"not found|does not exist|does not appear to be a git repository|authentication failed|could not read (?:username|password)"
    r"|permission denied|access denied|not allowed|\b40[13]\b|redirect|dubious ownership|host key verification failed|repository .* is empty",
    re.IGNORECASE,
)
_BAD_OBJECT = re.compile(r"fsck|object of unexpected type|corrupt|bad object", re.IGNORECASE)


class GitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner of a host allows to be fetched there (law 5)."""

    protocols: tuple[str, ...] = DEFAULT_PROTOCOLS
    config_file: str = ""
    """The owner's git configuration, for credentials. It is used for fetching only."""
    credentials: tuple[str, ...] = ()
    """The references that the settings of a repository may name as their `fetch.credential`."""
    timeout_seconds: float = 600.0
    size_bytes: int = 10 << 30
    """The most that one fetch may bring."""


class GitMirror:
    """The mirror of one URL."""

    def __init__(
        self,
        cache: Path,
        settings: RepositorySettings,
        owner: GitSettings,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        """`stop` says whether a fetch that runs must be ended."""
        self._settings = settings
        self._owner = owner
        self._stop = stop
        self._size_bytes = min(settings.fetch.size_bytes, owner.size_bytes)
        self.folder = cache / f"{_name_folder(settings.url)}.git"
        self.repository = LocalRepository(self.folder)

    def fetch_change(self, ref: str, head: str = "", *wanted: str, seconds: float | None = None) -> str:
        """Fetch a ref, and further commits or refs if they are missing. Returns the head's id. COMMIT_NOT_FOUND if the head is not in the
        remote repository any more. A head that is known needs no ref."""
        if ref or not head:
            check_ref(ref)
        if head:
            check_commit(head)
        for name in wanted:
            (check_ref if name.startswith("refs/") else check_commit)(name)
        self._check_allowed()
        limits = (self._settings.fetch.timeout_seconds, self._owner.timeout_seconds, seconds)
        limit = min(one for one in limits if one is not None)
        if head and self._is_complete(head, wanted):
            return head
        until = monotonic() + limit
        with self._lock(until):
            if head and self._is_complete(head, wanted):
                return head
            if ref and (not head or not self.repository.has_commit(head)):
                self._fetch(until, f"+{ref}:{_local(ref)}", required=not head)
            if not head:
                head = self.repository.find_commit(_local(ref))
            elif not self.repository.has_commit(head):
                self._fetch(until, head)  # the ref has moved on, or there is none
            for name in wanted:
                if name.startswith("refs/"):
                    self._fetch(until, f"+{name}:{_local(name)}", required=False)
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

    def _check_allowed(self) -> None:
        """Law 5, or REPOSITORY_REFUSED."""
        settings, owner = self._settings, self._owner
        problem = find_url_problem(settings.url, settings.protocols)
        protocol, credential = url_protocol(settings.url), settings.fetch.credential
        if not problem and protocol not in owner.protocols:
            problem = f"uses {protocol}; this host fetches with {', '.join(owner.protocols)} (--git-protocol)"
        if not problem and credential and credential not in owner.credentials:
            problem = f"needs {credential}, which this host does not give: name it in its file of secrets (--secrets)"
        if problem:
            raise TenureError("REPOSITORY_REFUSED", f"{settings.name}: {settings.url[:300]} {problem}")

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
                    if monotonic() > until or (self._stop is not None and self._stop()):
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
        settings, owner = self._settings, self._owner
        git = GitProgram(
            git_dir=str(self.folder),
            # The owner's configuration may lead a URL elsewhere.
            protocols=owner.protocols if owner.config_file else (url_protocol(settings.url),),
            config=_credentials(settings),
            owner_config=owner.config_file,
            stop=self._stop,
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
                file_bytes_max=self._size_bytes,
            )
        except GitCommandTimedOut as late:
            self._remove_rest()
            raise TenureError(
                "NETWORK_FETCH_FAILED", f"{settings.name} could not be fetched: {late}"
            ) from late
        except GitCommandFailed as fault:
            error = _explain(settings, fault, what, self._remove_rest(), self._size_bytes)
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
    settings: RepositorySettings,
    fault: GitCommandFailed,
    what: str,
    largest: int = 0,
    size_bytes: int = 1 << 62,
) -> TenureError:
    """The error of a failed fetch, by what git said and left behind."""
    name, said = settings.name, " ".join(fault.stderr.split())[-500:]
    if re.search(r"not our ref|couldn't find remote ref|unadvertised object", said):
        shown = what.partition(":")[0].lstrip("+")
        return TenureError(
            "COMMIT_NOT_FOUND",
            f"{name} has no {shown}; a force push or a deleted branch may have removed it",
        )
    if largest >= size_bytes // 512 * 512:
        return TenureError(
            "REPOSITORY_TOO_LARGE",
            f"a fetch of {name} brings more than the {size_bytes} bytes that its settings and this host allow",
        )
    if _BAD_OBJECT.search(said):
        return TenureError("REPOSITORY_REFUSED", f"{name} has an object that git refuses: {said}")
    code = "REPOSITORY_REFUSED" if _REFUSED.search(said) else "NETWORK_FETCH_FAILED"
    return TenureError(code, f"{name} could not be fetched: {said or 'git said nothing'}")


def _name_folder(url: str) -> str:
    """The name of a URL's mirror, which begins with something that people know."""
    last = url.rstrip("/").removesuffix(".git").rstrip("/").rpartition("/")[2]
    shown = re.sub(r"[^A-Za-z0-9_-]", "-", last)[:NAME_CHARS_MAX]
    return f"{shown}-{hashlib.sha256(url.encode()).hexdigest()[:32]}"


def _local(ref: str) -> str:
    """Where a mirror keeps a ref of the remote repository."""
    return f"refs/mirror/{ref.removeprefix('refs/')}"
