"""Git as a program that reads what nobody trusts.

Laws:
1. Nothing that a commit, a config file or the environment says makes git start another program: no hooks, no filters, no file system monitor,
   no credential helpers, no pagers, no submodules, no LFS, no lazy fetches. Only plumbing commands are used, and none makes a work tree.
   The one exception is a config file of the host's owner (`owner_config`), whose credential helpers and ssh command are used.
2. Only the protocols that the caller names are allowed.
3. Every command has a time limit and a limit on its output; a file that it writes has a limit, too.
4. Names from outside never become options: revisions follow `--end-of-options`, paths follow `--`.
5. Everybody who asks which files of a commit match a glob gets the same answer, because paths become text in one way (`_to_text`).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

import msgspec

from tenure.ci.globs import PathIndex
from tenure.ci.planner import CommitFile
from tenure.errors import TenureError
from tenure.limits import CI_CHANGED_FILES_MAX, CI_FILES_MAX

OUTPUT_BYTES_MAX = 256 << 20
ERROR_CHARS_MAX = 2_000
READ_SECONDS = 60.0
STOP_POLL_SECONDS = 0.1
COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_FULL_REF = re.compile(r"refs/[A-Za-z0-9._/@+#=,%-]{1,240}")
_CONFIG = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.askPass": "",
    "core.pager": "cat",
    "core.symlinks": "false",
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "credential.helper": "",
    "diff.external": "",
    "fetch.fsckObjects": "true",
    "transfer.fsckObjects": "true",
    "fetch.fsck.zeroPaddedFilemode": "warn",  # old commits of well-known repositories have these
    "fetch.fsck.missingSpaceBeforeDate": "warn",
    "fetch.fsck.badTimezone": "warn",
    "fetch.recurseSubmodules": "false",
    "submodule.recurse": "false",
    "fetch.unpackLimit": "1",  # one pack file, whose size can be limited
    "fetch.writeCommitGraph": "false",
    "filter.lfs.process": "",
    "filter.lfs.smudge": "",
    "filter.lfs.required": "false",
    "gc.auto": "0",  # jobs borrow the objects: nothing may be deleted beneath them
    "maintenance.auto": "false",
    "http.followRedirects": "false",
    "http.lowSpeedLimit": "1",
    "http.lowSpeedTime": "60",
    "protocol.allow": "never",
    "protocol.ext.allow": "never",
    "safe.directory": "*",  # reading is safe whoever owns it: nothing of it is executed
    "uploadpack.packObjectsHook": "",
}


class GitCommandFailed(Exception):
    """Git ended with an error."""

    def __init__(self, arguments: Sequence[str], status: int, stderr: str) -> None:
        self.status = status
        self.stderr = stderr.strip()[-ERROR_CHARS_MAX:]
        super().__init__(f"git {arguments[0]} ended with {status}: {self.stderr}")


class GitCommandTimedOut(Exception):
    """Git took too long, or was asked to stop."""


class GitProgram(msgspec.Struct, frozen=True, kw_only=True):
    """Git, confined to one repository and a few protocols."""

    git_dir: str = ""
    """Empty: git finds the repository itself."""
    protocols: tuple[str, ...] = ()
    config: Mapping[str, str] = {}
    """Further settings. They are passed in the environment, where other users cannot read them."""
    owner_config: str = ""
    """A config file of the host's owner, for credentials. What is set here overrides it."""
    stop: Callable[[], bool] | None = None
    """Whether a command that runs must be ended. It is asked again and again."""

    def environment(self) -> dict[str, str]:
        settings = {
            **_CONFIG,
            **{f"protocol.{protocol}.allow": "always" for protocol in self.protocols},
            **self.config,
        }
        if self.owner_config:
            del settings["credential.helper"]
        own_account = "ssh" in self.protocols or bool(self.owner_config)
        variables = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C",
            "HOME": os.environ.get("HOME", "/") if own_account else "/nonexistent",
            **({"GIT_DIR": self.git_dir} if self.git_dir else {}),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_SYSTEM": "/dev/null",
            "GIT_CONFIG_GLOBAL": self.owner_config or "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "",
            "SSH_ASKPASS": "",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_CONFIG_COUNT": str(len(settings)),
        }
        if not self.owner_config:  # it may have a command of its own
            variables["GIT_SSH_COMMAND"] = "ssh -oBatchMode=yes -oStrictHostKeyChecking=yes"
        if own_account and "SSH_AUTH_SOCK" in os.environ:
            variables["SSH_AUTH_SOCK"] = os.environ["SSH_AUTH_SOCK"]
        for i, (key, value) in enumerate(settings.items()):
            variables[f"GIT_CONFIG_KEY_{i}"] = key
            variables[f"GIT_CONFIG_VALUE_{i}"] = value
        return variables

    def run(
        self,
        *arguments: str,
        data: bytes = b"",
        seconds: float = READ_SECONDS,
        output_bytes_max: int = OUTPUT_BYTES_MAX,
        file_bytes_max: int | None = None,
    ) -> bytes:
        """What a command of git prints. Neither that nor a file that it writes may be longer than allowed. GitCommandFailed and GitCommandTimedOut say why there is nothing."""
        # The shell sets the limit of written files, which git's helper programs inherit; the arguments are not part of its script. Jobs,
        # which have other users, read the objects of a mirror; its folder is closed for everybody else.
        blocks = max(1, (output_bytes_max if file_bytes_max is None else file_bytes_max) // 512)
        command = ["sh", "-c", f'umask 022 && ulimit -f {blocks} && exec git "$@"', "git", *arguments]
        # Files instead of pipes: nothing blocks, whatever git reads or prints.
        with (
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as printed,
            tempfile.TemporaryFile() as problems,
        ):
            given.write(data)
            given.seek(0)
            process = subprocess.Popen(
                command,
                stdin=given,
                stdout=printed,
                stderr=problems,
                env=self.environment(),
                cwd="/",
                start_new_session=True,
            )
            try:
                self._wait(process, arguments[0], seconds)
            finally:
                _kill_group(process)
            problems.seek(0)
            text = problems.read(1 << 20).decode(errors="replace")
            if process.returncode == -signal.SIGXFSZ and file_bytes_max is None:
                raise TenureError(
                    "REPOSITORY_TOO_LARGE",
                    f"git {arguments[0]} prints more than the {output_bytes_max} bytes that are read",
                )
            if process.returncode != 0:
                raise GitCommandFailed(arguments, process.returncode, text)
            printed.seek(0)
            return printed.read()

    def _wait(self, process: subprocess.Popen[bytes], verb: str, seconds: float) -> None:
        until = monotonic() + seconds
        while True:
            left = max(0.0, until - monotonic())
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=left if self.stop is None else min(left, STOP_POLL_SECONDS))
                return
            if self.stop is not None and self.stop():
                raise GitCommandTimedOut(f"git {verb} was stopped")
            if monotonic() >= until:
                raise GitCommandTimedOut(f"git {verb} took longer than {seconds:g} seconds")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End git and its helper programs."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def check_ref(ref: str) -> str:
    """A full ref, or INVALID_INPUT."""
    if (
        not _FULL_REF.fullmatch(ref)
        or ".." in ref
        or "//" in ref
        or "@{" in ref
        or ref.endswith((".lock", "/", "."))
    ):
        raise TenureError("INVALID_INPUT", f"{ref[:100]!r} is not a full ref such as refs/heads/main")
    return ref


def check_commit(commit: str) -> str:
    """The full id of a commit, or INVALID_INPUT."""
    if not COMMIT.fullmatch(commit):
        raise TenureError("INVALID_INPUT", f"{commit[:80]!r} is not the id of a commit")
    return commit


def find_repository(folder: Path) -> LocalRepository:
    """The repository that a folder belongs to: a checkout, a folder inside one, or a bare repository."""
    try:
        found = GitProgram().run("-C", str(folder.absolute()), "rev-parse", "--absolute-git-dir")
    except GitCommandFailed as fault:
        raise TenureError(
            "INVALID_INPUT",
            f"{folder} is not in a git repository; name one with --repo: {fault.stderr[:200]}",
        ) from fault
    return LocalRepository(Path(found.decode().rstrip("\n")))


class LocalRepository:
    """Reads of one repository. Nothing here talks to another host."""

    def __init__(self, git_dir: Path) -> None:
        self.git_dir = git_dir
        self._git = GitProgram(git_dir=str(git_dir))

    def find_commit(self, revision: str) -> str:
        """The id of a commit by any name; COMMIT_NOT_FOUND if there is none."""
        if not revision or not revision.isprintable() or len(revision) > 250:
            raise TenureError("COMMIT_NOT_FOUND", f"{revision[:100]!r} is not the name of a commit")
        try:
            found = self._git.run(
                "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
            )
        except GitCommandFailed as fault:
            why = f": {fault.stderr}" if fault.stderr else ""
            raise TenureError(
                "COMMIT_NOT_FOUND", f"there is no commit {revision!r}; a force push may have removed it{why}"
            ) from fault
        return found.decode().strip()

    def current_branch(self) -> str:
        """The branch that is checked out; empty if none is."""
        try:
            return self._git.run("symbolic-ref", "--quiet", "--short", "HEAD").decode().strip()
        except GitCommandFailed:
            return ""

    def has_commit(self, commit: str) -> bool:
        try:
            self._git.run("cat-file", "-e", f"{commit}^{{commit}}")
        except GitCommandFailed:
            return False
        return True

    def find_merge_base(self, base: str, head: str) -> str | None:
        """The commit where two histories part; None if they have nothing in common."""
        try:
            return self._git.run("merge-base", base, head).decode().split()[0]
        except GitCommandFailed as fault:
            if fault.status == 1 and not fault.stderr:
                return None
            raise

    def list_changed(self, base: str, head: str) -> list[str]:
        """The paths that differ between two commits. A renamed file counts with both of its paths."""
        listed = self._git.run(
            "diff-tree", "-r", "-z", "--name-only", "--no-renames", "--no-commit-id", base, head
        )
        paths = _split(listed)
        if len(paths) > CI_CHANGED_FILES_MAX:
            raise TenureError(
                "REPOSITORY_TOO_LARGE",
                f"{len(paths)} files changed between {base[:12]} and {head[:12]}; at most {CI_CHANGED_FILES_MAX} are compared",
            )
        return paths

    def list_files(self, commit: str) -> list[CommitFile]:
        """All files of a commit, with symbolic links (mode 120000) and submodules (mode 160000)."""
        entries = _split(self._git.run("ls-tree", "-r", "-z", "--full-tree", commit))
        if len(entries) > CI_FILES_MAX:
            raise TenureError(
                "REPOSITORY_TOO_LARGE",
                f"commit {commit[:12]} has {len(entries)} files; at most {CI_FILES_MAX} are read",
            )
        made = []
        for entry in entries:
            facts, _, path = entry.partition("\t")
            mode, _, blob = facts.split(" ")
            made.append(CommitFile(path, mode, blob))
        return made

    def find_paths(self, commit: str, globs: Sequence[str]) -> list[bytes]:
        """The paths of the files of a commit that match globs, as git has them."""
        listed = self._git.run("ls-tree", "-r", "-z", "--name-only", "--full-tree", commit)
        paths = {_to_text(one): one for one in listed.split(b"\0") if one}
        index = PathIndex(paths)
        return [paths[index.paths[at]] for at in index.find_all(globs)]

    def find_file(self, commit: str, path: str) -> CommitFile | None:
        """One entry of a commit: a file, a link, a submodule or a folder (mode 040000)."""
        entries = _split(
            self._git.run("--literal-pathspecs", "ls-tree", "-z", "--full-tree", commit, "--", path)
        )
        for entry in entries:
            facts, _, found = entry.partition("\t")
            mode, _, blob = facts.split(" ")
            if found == path:
                return CommitFile(found, mode, blob)
        return None

    def read_blobs(self, blobs: Iterable[str], bytes_max: int) -> dict[str, bytes]:
        """The contents of blobs. REPOSITORY_TOO_LARGE if they have more bytes than allowed."""
        wanted = list(blobs)
        if not wanted:
            return {}
        names = "".join(f"{blob}\n" for blob in wanted).encode()
        sizes = self._git.run(
            "cat-file", "--batch-check=%(objectname) %(objecttype) %(objectsize)", data=names
        )
        total = 0
        for line in sizes.decode().splitlines():
            words = line.split()
            if len(words) != 3 or words[1] != "blob":
                raise TenureError("COMMIT_NOT_FOUND", f"the repository lacks the file content {line}")
            total += int(words[2])
        if total > bytes_max:
            raise TenureError(
                "REPOSITORY_TOO_LARGE",
                f"{len(wanted)} files have {total} bytes; at most {bytes_max} are read",
            )
        return dict(_split_batch(self._git.run("cat-file", "--batch", data=names)))


def _split(listed: bytes) -> list[str]:
    return [_to_text(one) for one in listed.split(b"\0") if one]


def _to_text(path: bytes) -> str:
    """A path as text. Bytes that are not UTF-8 become escapes, and a backslash becomes two, so that two paths stay two."""
    return path.replace(b"\\", b"\\\\").decode(errors="backslashreplace")


def _split_batch(output: bytes) -> Iterator[tuple[str, bytes]]:
    at = 0
    while at < len(output):
        end = output.index(b"\n", at)
        name, _, size = output[at:end].decode().split(" ")
        yield name, output[end + 1 : end + 1 + int(size)]
        at = end + 2 + int(size)
