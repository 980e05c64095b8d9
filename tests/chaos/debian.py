"""Programs of Debian packages, installed into a folder: PostgreSQL of other versions, pgbouncer, Patroni, etcd.

Rules:
1. mmdebstrap downloads and extracts packages from Debian. No package script runs, and nothing on this machine changes
   except one folder (TENURE_PARTS, else one under /var/tmp), which is made once and kept.
2. Programs run outside of a chroot, under any account: patchelf sets their loader and libraries to those of the folder.
3. Downloading needs apt and root, and this is checked first. An existing folder is used without either.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")
"""Up to bookworm, the C library is in another folder than the other libraries."""
LOADER = "ld-linux-x86-64.so.2"
PROGRAMS = ("usr/lib/postgresql/*/bin/*", "usr/sbin/pgbouncer", "usr/bin/python3.*", "usr/bin/etcd*")
DONE = "complete"


class PartsUnavailable(RuntimeError):
    """The packages cannot be installed here. The message says what to do."""


def install(suite: str, packages: Sequence[str]) -> Path:
    """Return the folder with these packages of a Debian suite and their dependencies. Make it if it is missing."""
    wanted = sorted({*packages, "base-files", "patchelf"})
    mark = hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:8]
    folder = _parts_folder() / f"{suite}-{mark}"
    if (folder / DONE).exists():
        return folder
    if os.geteuid() != 0:
        raise PartsUnavailable(
            f"Installing {', '.join(packages)} of Debian {suite} into {folder} needs root: run this once as root."
        )
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise PartsUnavailable(
            "Installing Debian packages into a folder needs apt and dpkg: use a Debian machine."
        )
    print(
        f"installing {', '.join(packages)} of Debian {suite} into {folder} (once, about a minute)", flush=True
    )
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="tenure-parts-", dir="/var/tmp") as work:
        script = [
            *_mmdebstrap(Path(work)),
            "--mode=root",
            "--variant=extract",
            f"--include={','.join(wanted)}",
        ]
        _run([*script, suite, str(folder)], "mmdebstrap")
    _set_loaders(folder)
    folder.chmod(0o755)
    (folder / DONE).touch()
    return folder


def _parts_folder() -> Path:
    """Return the folder for all installations. Other users must not be able to write to it, because we run programs from it."""
    given = os.environ.get("TENURE_PARTS")
    place = Path(given) if given else Path(f"/var/tmp/tenure-parts-{os.geteuid()}")
    place.mkdir(mode=0o755, parents=True, exist_ok=True)
    found = place.stat()
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
        raise PartsUnavailable(
            f"{place} can be written by others: remove it, or set TENURE_PARTS to another folder."
        )
    return place


def _mmdebstrap(work: Path) -> list[str]:
    """Return the command for mmdebstrap, a Perl script: the installed one, else a downloaded one."""
    found = shutil.which("mmdebstrap")
    if found is not None:
        return [found]
    _run(["apt-get", "download", "-q", "mmdebstrap"], "apt-get", cwd=work)
    (package,) = work.glob("mmdebstrap_*.deb")
    _run(["dpkg", "-x", str(package), str(work / "tool")], "dpkg")
    return ["perl", str(work / "tool/usr/bin/mmdebstrap")]


def _set_loaders(folder: Path) -> None:
    libraries = [folder / name for name in LIBRARIES if (folder / name).is_dir()]
    loader = next(str(place / LOADER) for place in libraries if (place / LOADER).exists())
    path = ":".join(map(str, libraries))
    patchelf = [loader, "--library-path", path, str(folder / "usr/bin/patchelf")]
    for pattern in PROGRAMS:
        for program in folder.glob(pattern):
            if program.is_symlink() or not program.is_file() or program.read_bytes()[:4] != b"\x7fELF":
                continue
            # Keep these two steps in this order. Python is linked to a fixed address and does not start after any other order.
            _run([*patchelf, "--force-rpath", "--set-rpath", path, str(program)], "patchelf")
            _run([*patchelf, "--set-interpreter", loader, str(program)], "patchelf")


def _run(command: Sequence[str], name: str, *, cwd: Path | None = None) -> None:
    done = subprocess.run(
        command, cwd=cwd, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise PartsUnavailable(f"{name} failed ({done.returncode}):\n{tail}")
