"""Confinement of commands: they cannot read their worker's environment, memory, files and secrets.

Laws:
1. `namespaces`: the command has its own process ids, /proc and mounts. Hidden paths (`private_files.hidden`) are invisible in them,
   also when they are created or replaced later. Root has no capabilities; with a named user, the command runs as that user. This
   needs Linux and a kernel that permits it. In folders that commands work in (`shared_folders`) a hidden path is protected only if
   it exists when the command starts; the worker's log names such paths. Replacing a folder above a secret is not prevented.
2. `user` needs root: the command runs as another user who cannot read the hidden paths. It is refused if that user could.
3. `none` must be requested. The worker makes itself undumpable (PR_SET_DUMPABLE) where the kernel supports that, so processes of
   the same user cannot read its memory. The command can read every file that the worker can read.
4. What the system permits is found by trying, once per user and process.
5. The launcher's source is read when this module is imported, and the interpreter's real file executes it. Variables of a command
   do not reach the launcher. A command cannot change the launcher's and the worker's files (`kept_paths`): with `namespaces` they are
   read-only and cannot be moved; `user` is refused if the command's user could change them.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import subprocess
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from tenure.errors import TenureError
from tenure.private_files import hidden, hide_configured

NOBODY = "nobody"
"""The user of commands if root starts them and no user is named."""
_PACKAGE = Path(__file__).parents[1]
_LAUNCHER = (_PACKAGE / "commands" / "launcher.py").read_text(encoding="utf-8")
"""Read once: a command could replace the file before the next command starts."""
_COMMANDS_OWN = "COMMAND_"
_TRY_SECONDS = 20.0
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")
_PR_SET_DUMPABLE = 4


class CommandUser(msgspec.Struct, frozen=True):
    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


class Confinement(msgspec.Struct, frozen=True, kw_only=True):
    kind: Literal["namespaces", "user", "none"]
    user: CommandUser | None = None

    def __str__(self) -> str:
        who = "" if self.user is None else f" as user {self.user.name}"
        return {
            "namespaces": f"in namespaces of their own{who}",
            "user": f"{who.strip()} without namespaces",
            "none": "unconfined: they can read what this worker can read",
        }[self.kind]

    def command(
        self, argv: tuple[str, ...], cwd: str | None, report: int, *, check: bool = False
    ) -> list[str]:
        """The argv of the launcher for a command. The launcher reports a failed start on `report` (a file descriptor)."""
        user, hide, keep = self.user, hidden(), kept_paths(self.user)
        plan = {
            "namespaces": self.kind == "namespaces",
            "uid": None if user is None else user.uid,
            "gid": None if user is None else user.gid,
            "groups": [] if user is None else user.groups,
            "hide": len(hide),
            "keep": len(keep),
            "shared": shared_folders(user, cwd),
            "cwd": cwd,
            "report": report,
            "check": check or self.kind == "user",
        }
        python, encoded = _own_installation().python, msgspec.json.encode(plan).decode()
        return [python, "-I", "-S", "-c", _LAUNCHER, encoded, *hide, *keep, *argv]

    def environment(self, given: dict[str, str]) -> dict[str, str]:
        """The environment of the launcher for a command with the given environment. HOME is the home of the command's user."""
        env = given if self.user is None else {**given, "HOME": self.user.home}
        return {f"{_COMMANDS_OWN}{name}": value for name, value in env.items()}


UNCONFINED = Confinement(kind="none")


def named_user(name: str) -> CommandUser:
    """A user of this machine by name or number; INVALID_INPUT if there is none, or if this process is not root."""
    if os.geteuid() != 0:
        raise TenureError(
            "INVALID_INPUT", f"only root can run commands as {name!r}: start the worker as that user instead"
        )
    try:
        found = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError as unknown:
        raise TenureError("INVALID_INPUT", f"this machine has no user {name!r}") from unknown
    groups = tuple(os.getgrouplist(found.pw_name, found.pw_gid)) if found.pw_uid else ()
    home = found.pw_dir if Path(found.pw_dir).is_dir() else "/tmp"
    return CommandUser(found.pw_name, found.pw_uid, found.pw_gid, groups, home)


def shared_folders(user: CommandUser | None = None, cwd: str | None = None) -> list[str]:
    """The folders in which commands work and create files: working folders, homes and temporary folders."""
    homes = [str(Path.home()), *([] if user is None else [user.home])]
    given = [os.environ[name] for name in ("HOME", "TMPDIR") if os.environ.get(name)]
    working = [] if cwd is None else [cwd]
    with suppress(FileNotFoundError):  # the folder was removed
        working.append(os.getcwd())
    return sorted({os.path.realpath(each) for each in (*working, *homes, *given, *_TEMPORARY)})


class _Installation(msgspec.Struct, frozen=True):
    python: str
    """The interpreter's real file, which reads no `pyvenv.cfg`."""
    paths: tuple[str, ...]


@lru_cache(maxsize=8)
def _installation(executable: str, prefix: str, base_prefix: str) -> _Installation:
    """Cached before the first command runs: commands could redirect links."""
    python = os.path.realpath(executable)
    environment = [prefix, *(os.path.join(prefix, name) for name in ("bin", "lib", "lib64", "pyvenv.cfg"))]
    programs = [python, os.path.dirname(python), os.path.dirname(executable)]
    libraries = [base_prefix, os.path.dirname(os.__file__), str(Path(msgspec.__file__).parents[1])]
    ours = [str(_PACKAGE), str(_PACKAGE / "commands" / "launcher.py")]
    found = {os.path.realpath(each) for each in (*environment, *programs, *libraries, *ours)}
    return _Installation(python, tuple(sorted(found)))


def _own_installation() -> _Installation:
    return _installation(sys.executable, sys.prefix, sys.base_prefix)


def kept_paths(user: CommandUser | None = None) -> list[str]:
    """The paths that no command may change: this Python and this Tenure, except folders that the worker's commands work in. The `cwd` of
    a step is not considered, because the author of a workflow would then choose what is protected.
    """
    working = shared_folders(user)
    return [
        path
        for path in _own_installation().paths
        if path != "/" and not any(f"{each}/".startswith(f"{path}/") for each in working)
    ]


def hidden_in_shared_folders(user: CommandUser | None = None) -> list[str]:
    """Hidden paths that a command could read if they were created or replaced while it runs, because they are in a shared folder."""
    shared = set(shared_folders(user))
    return [path for path in hidden() if os.path.realpath(os.path.dirname(path)) in shared]


def describe_commands(confinement: Confinement) -> dict[str, Any]:
    """The fields of a worker's log line about its commands."""
    shared = hidden_in_shared_folders(confinement.user) if confinement.kind == "namespaces" else []
    return {"how": str(confinement), **({"hidden_in_shared_folders": shared} if shared else {})}


def choose_confinement(user: str | None = None, *, allow_none: bool = False) -> Confinement:
    """The strongest confinement that works here; COMMANDS_UNCONFINED if there is none and `allow_none` is false.

    `user`: the user of commands if this process is root. None: the same user in namespaces, or else `nobody`.
    """
    hide_configured()
    wanted = None if user is None else named_user(user)
    if wanted is not None and wanted.uid == 0:
        wanted = None
    candidates: list[Confinement] = []
    if sys.platform == "linux":
        candidates.append(Confinement(kind="namespaces", user=wanted))
    if os.geteuid() == 0:
        candidates.append(Confinement(kind="user", user=wanted or named_user(NOBODY)))
    problems: list[str] = []
    for one in candidates:
        problem = _problem(one, (*hidden(), *kept_paths(one.user)) if one.kind == "user" else ())
        if problem is None:
            return one
        problems.append(f"{one.kind}: {problem}")
    if not allow_none:
        found = (
            "; ".join(problems)
            or "this system has no namespaces, and only root can run commands as another user"
        )
        raise TenureError(
            "COMMANDS_UNCONFINED",
            f"commands could read this worker's secrets and database, or change its program ({found})",
        )
    _be_undumpable()
    return UNCONFINED


@lru_cache(maxsize=32)
def _problem(confinement: Confinement, paths: tuple[str, ...]) -> str | None:
    """Why a confinement does not work here, or None if it works. `paths` is a part of the cache key: permissions may change."""
    del paths
    reading, writing = os.pipe()
    try:
        ended = subprocess.run(
            confinement.command((), None, writing, check=True),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            pass_fds=(writing,),
            timeout=_TRY_SECONDS,
            check=False,
        )
        os.close(writing)
        writing = -1
        reported = os.read(reading, 1000).decode(errors="replace").partition(" ")[2]
        return reported or (f"exit code {ended.returncode}" if ended.returncode else None)
    except (OSError, subprocess.SubprocessError) as fault:
        return str(fault)
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)


def _be_undumpable() -> None:
    """Keep processes of the same user from reading this process by /proc or ptrace."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
