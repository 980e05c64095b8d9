"""Where commands of workflow files run, so that they cannot see their worker: its environment, memory, files and secrets.

Laws:
1. `namespaces`: the command has process ids, a /proc and mounts of its own, in which the hidden paths (`private_files.hidden`) cannot
   be seen, also when they are made or replaced later. Root has no capabilities in it; with a user named, the command is that user.
   Linux, where the kernel allows it. In the folders that commands work in (`shared_folders`) that holds for what is there when a
   command starts; what lies directly in one is named in the worker's log. A folder above a secret that is itself replaced is not held back.
2. `user`: only root can have this: the command is another user, who cannot read the hidden paths. Where they could, it is refused.
3. `none` has to be asked for. The worker at least cannot be looked into by others of its user, where the kernel knows that
   (PR_SET_DUMPABLE); its files are as readable to the command as to itself.
4. What is to be had is found out by trying, once for each user in a process.
5. The launcher is what this process read when it imported this module, executed by the real file of its interpreter; no variable of a command
   is one of the launcher's. What it and the worker are made of (`kept_paths`) cannot be changed by a command: with `namespaces` it is read-only and stays in
   its place, with `user` it is refused where the command's user could change it.
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
"""Who commands are where root starts them and nobody is named."""
FLAG = "--allow-unconfined-commands"
_PACKAGE = Path(__file__).parents[1]
_LAUNCHER = (_PACKAGE / "declared" / "command_launcher.py").read_text(encoding="utf-8")
"""Read once: the file could be another by the time that the next command starts."""
_COMMANDS_OWN = "COMMAND_"
_TRY_SECONDS = 20.0
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")
_PR_SET_DUMPABLE = 4


class CommandUser(msgspec.Struct, frozen=True):
    """Somebody of this machine."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


class Confinement(msgspec.Struct, frozen=True, kw_only=True):
    """How commands are kept apart; see the laws above."""

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
        """What to execute instead of a command; where it cannot be started, `report` (a file descriptor) says why."""
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
        paths = (*hide, *keep)
        python = _installation(sys.executable, sys.prefix, sys.base_prefix).python
        return [python, "-I", "-S", "-c", _LAUNCHER, msgspec.json.encode(plan).decode(), *paths, *argv]

    def environment(self, given: dict[str, str]) -> dict[str, str]:
        """The environment of a launcher, for a command that is to have the given one: its home is its user's."""
        env = given if self.user is None else {**given, "HOME": self.user.home}
        return {f"{_COMMANDS_OWN}{name}": value for name, value in env.items()}


UNCONFINED = Confinement(kind="none")


def named_user(name: str) -> CommandUser:
    """A user of this machine by name or number; INVALID_INPUT where there is none, or where that takes root."""
    if os.geteuid() != 0:
        raise TenureError(
            "INVALID_INPUT", f"only root can run commands as {name!r}: start the worker as that user"
        )
    try:
        found = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError as unknown:
        raise TenureError("INVALID_INPUT", f"there is no user {name!r} on this machine") from unknown
    groups = tuple(os.getgrouplist(found.pw_name, found.pw_gid)) if found.pw_uid else ()
    home = found.pw_dir if Path(found.pw_dir).is_dir() else "/tmp"
    return CommandUser(found.pw_name, found.pw_uid, found.pw_gid, groups, home)


def shared_folders(user: CommandUser | None = None, cwd: str | None = None) -> list[str]:
    """The folders that commands work in, and may put files into: working folders, homes, and those for temporary files."""
    homes = [str(Path.home()), *([] if user is None else [user.home])]
    given = [os.environ[name] for name in ("HOME", "TMPDIR") if os.environ.get(name)]
    working = [] if cwd is None else [cwd]
    with suppress(FileNotFoundError):  # it may be gone
        working.append(os.getcwd())
    return sorted({os.path.realpath(each) for each in (*working, *homes, *given, *_TEMPORARY)})


class _Installation(msgspec.Struct, frozen=True):
    """What this process is made of."""

    python: str
    """The interpreter's real file: it reads no `pyvenv.cfg`."""
    paths: tuple[str, ...]


@lru_cache(maxsize=8)
def _installation(executable: str, prefix: str, base_prefix: str) -> _Installation:
    """Found out once, before there are commands: they could change where a link leads."""
    python = os.path.realpath(executable)
    environment = [prefix, *(os.path.join(prefix, name) for name in ("bin", "lib", "lib64", "pyvenv.cfg"))]
    programs = [python, os.path.dirname(python), os.path.dirname(executable)]
    libraries = [base_prefix, os.path.dirname(os.__file__), str(Path(msgspec.__file__).parents[1])]
    ours = [str(_PACKAGE), str(_PACKAGE / "declared" / "command_launcher.py")]
    found = {os.path.realpath(each) for each in (*environment, *programs, *libraries, *ours)}
    return _Installation(python, tuple(sorted(found)))


def kept_paths(user: CommandUser | None = None) -> list[str]:
    """What no command may change: this Python and this Tenure, without folders that commands of this worker work in. (The `cwd` of a step does not
    count: whoever writes a workflow would choose what is kept.)"""
    working = shared_folders(user)
    return [
        path
        for path in _installation(sys.executable, sys.prefix, sys.base_prefix).paths
        if path != "/" and not any(f"{each}/".startswith(f"{path}/") for each in working)
    ]


def hidden_in_shared_folders(user: CommandUser | None = None) -> list[str]:
    """Hidden paths that a command could read if somebody made or replaced them while it runs: they lie in a shared folder."""
    shared = set(shared_folders(user))
    return [path for path in hidden() if os.path.realpath(os.path.dirname(path)) in shared]


def describe_commands(confinement: Confinement) -> dict[str, Any]:
    """What a worker's log says of its commands."""
    shared = hidden_in_shared_folders(confinement.user) if confinement.kind == "namespaces" else []
    return {"how": str(confinement), **({"hidden_in_shared_folders": shared} if shared else {})}


def choose_confinement(user: str | None = None, *, allow_none: bool = False) -> Confinement:
    """The strongest that is to be had here; COMMANDS_UNCONFINED where there is none and that was not allowed.

    `user`: who commands are, where root starts them; None: the same user, kept apart by namespaces, or else `nobody`."""
    hide_configured()
    wanted = None if user is None else named_user(user)
    if wanted is not None and wanted.uid == 0:
        wanted = None
    tried: list[Confinement] = []
    if sys.platform == "linux":
        tried.append(Confinement(kind="namespaces", user=wanted))
    if os.geteuid() == 0:
        tried.append(Confinement(kind="user", user=wanted or named_user(NOBODY)))
    problems: list[str] = []
    for one in tried:
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
    """Why this cannot be had here; None: it can. (`paths`, because what can be read or changed may change.)"""
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
        told = os.read(reading, 1000).decode(errors="replace").partition(" ")[2]
        return None if ended.returncode == 0 and not told else told or f"exit code {ended.returncode}"
    except (OSError, subprocess.SubprocessError) as fault:
        return str(fault)
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)


def _be_undumpable() -> None:
    """Let nobody of the same user read this process's environment, memory and files by way of /proc or ptrace."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
