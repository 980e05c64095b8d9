"""Bare mirrors of the repositories whose jobs a runner executes.

Laws:
1. A mirror is fetched by the runner, with the credentials of the runner's owner. Jobs see its objects, read-only, and nothing else of it.
2. Fetching executes nothing of a repository: no hooks, no filters, no submodules, only the protocols that the owner allows.
3. One process fetches into a mirror at a time. A commit that is there is not fetched again.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from tenure.private_files import append_file, make_folder

FETCH_SECONDS_MAX = 600.0
MESSAGE_BYTES_MAX = 4_000
DEFAULT_PROTOCOLS = ("https", "ssh")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


class GitFailed(Exception):
    """A git command failed; the text is the end of its messages."""

    def __init__(self, what: str, output: bytes) -> None:
        super().__init__(what)
        self.output = output


class GitSettings(msgspec.Struct, frozen=True, kw_only=True):
    protocols: tuple[str, ...] = DEFAULT_PROTOCOLS
    config_file: str | None = None
    """The owner's git configuration, for credentials. It is used for fetching only."""


class ObjectMirrors:
    def __init__(self, folder: Path, settings: GitSettings) -> None:
        self._folder = make_folder(folder)
        self._settings = settings
        self._locks: dict[Path, asyncio.Lock] = {}

    async def fetch(self, url: str, commit: str, ref: str) -> Path:
        """Have a commit of a repository here, and return the mirror. Raises GitFailed."""
        if _COMMIT.fullmatch(commit) is None:
            raise GitFailed(f"{commit[:80]!r} is not a commit id", b"")
        if url.startswith("-") or ref.startswith("-"):
            raise GitFailed("the URL and the ref of a repository do not begin with a dash", b"")
        mirror = self._folder / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.git"
        async with self._lock(mirror):
            if not (mirror / "HEAD").exists():
                await self.git("init", "-q", "--bare", "--template=", str(mirror))
                os.chmod(mirror / "objects", 0o755)
            if not await self.has(mirror, commit):
                await self._fetch(mirror, url, commit, ref)
        return mirror

    async def has(self, mirror: Path, commit: str) -> bool:
        try:
            await self.git("--git-dir", str(mirror), "cat-file", "-e", f"{commit}^{{commit}}")
        except GitFailed:
            return False
        return True

    async def _fetch(self, mirror: Path, url: str, commit: str, ref: str) -> None:
        kept = f"refs/tenure/{hashlib.sha256((ref or commit).encode()).hexdigest()[:32]}"
        wanted = [commit, *([ref] if ref else [])]
        fault: GitFailed | None = None
        for each in wanted:  # some servers give out only the tips of refs
            try:
                await self.git(
                    "--git-dir",
                    str(mirror),
                    "fetch",
                    "-q",
                    "--no-tags",
                    "--no-write-fetch-head",
                    "--no-recurse-submodules",
                    "--end-of-options",
                    url,
                    f"+{each}:{kept}",
                    url=url,
                )
            except GitFailed as failed:
                fault = failed
                continue
            if await self.has(mirror, commit):
                return
        if fault is not None:
            raise fault
        raise GitFailed(f"{url} has no commit {commit} at {ref or 'any ref'}", b"")

    async def list_files(self, mirror: Path, commit: str) -> list[str]:
        """The paths of a commit's files."""
        listed = await self.git(
            "--git-dir", str(mirror), "ls-tree", "-r", "-z", "--name-only", "--full-tree", commit
        )
        return [os.fsdecode(each) for each in listed.split(b"\0") if each]

    async def git(self, *arguments: str, url: str = "") -> bytes:
        settings = ["-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0", "-c", "core.fsmonitor=false"]
        settings += ["-c", "protocol.allow=never", "-c", "fetch.fsckObjects=true"]
        for protocol in self._settings.protocols:
            settings += ["-c", f"protocol.{protocol}.allow=always"]
        process = await asyncio.create_subprocess_exec(
            "git",
            *settings,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment(),
            cwd=self._folder,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(FETCH_SECONDS_MAX):
                out, err = await process.communicate()
        except TimeoutError:
            raise GitFailed(
                f"git did not end within {FETCH_SECONDS_MAX:.0f} s", b"Operation timed out"
            ) from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)  # also the helpers of git
                await process.wait()
        if process.returncode:
            err = err[-MESSAGE_BYTES_MAX:]
            verb = next(each for each in arguments if each in ("init", "cat-file", "fetch", "ls-tree"))
            where = f" of {_without_password(url)}" if url else ""
            raise GitFailed(f"git {verb}{where} failed", err)
        return out

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "SSH_AUTH_SOCK") if name in os.environ}
        return {
            **kept,
            "LC_ALL": "C.UTF-8",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": self._settings.config_file or os.devnull,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "true",
            "GIT_LFS_SKIP_SMUDGE": "1",
        }

    @asynccontextmanager
    async def _lock(self, mirror: Path) -> AsyncIterator[None]:
        async with self._locks.setdefault(mirror, asyncio.Lock()):
            with append_file(f"{mirror}.lock") as held:
                await asyncio.to_thread(fcntl.flock, held, fcntl.LOCK_EX)
                yield


def _without_password(url: str) -> str:
    parsed = urlsplit(url)
    return url if parsed.password is None else url.replace(f":{parsed.password}@", ":***@")


def checkout_script(objects: str, commit: str, paths: Sequence[str] | None) -> str:
    """The script that fills an empty workspace in the sandbox. With `paths`, their names are read from the file `../incoming/paths`, and no
    repository is left: a job that declares its inputs can see nothing else."""
    quiet = "git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c advice.detachedHead=false"
    begin = f"git init -q --template= . && mkdir -p .git/objects/info && echo {objects} > .git/objects/info/alternates"
    if paths is None:
        return f"{begin} && {quiet} checkout -q --detach {commit}"
    return (
        f"{begin} && if test -s ../incoming/paths; then GIT_LITERAL_PATHSPECS=1 {quiet} checkout -q"
        f" --pathspec-from-file=../incoming/paths --pathspec-file-nul {commit}; fi && rm -rf .git ../incoming/paths"
    )
