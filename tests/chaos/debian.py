"""Programs of Debian packages, installed into a folder: PostgreSQL of other versions, pgbouncer, Patroni, etcd.

Laws:
1. Packages come from Debian by mmdebstrap, which only extracts them: no script of a package runs, and nothing of
   this machine is changed but one folder (TENURE_PARTS, else one beneath /var/tmp), which is made once and kept.
2. Programs run outside of a chroot, as any account: their loader and libraries are set to the folder's (patchelf).
3. Fetching needs apt and root; that is said before anything is begun. What is there is used without either.
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
"""Both: up to bookworm the folder of the C library is another than that of the rest."""
LOADER = "ld-linux-x86-64.so.2"
PROGRAMS = ("usr/lib/postgresql/*/bin/*", "usr/sbin/pgbouncer", "usr/bin/python3.*", "usr/bin/etcd*")
DONE = "complete"


class PartsUnavailable(RuntimeError):
    """The packages cannot be had here; the message says what to do about it."""


def install(suite: str, packages: Sequence[str]) -> Path:
    """The folder with these packages of a Debian suite and all they need; made now where it is not there."""
    wanted = sorted({*packages, "base-files", "patchelf"})
    mark = hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:8]
    folder = _place() / f"{suite}-{mark}"
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


def _place() -> Path:
    """Where the folders are. Others can read them and must not be able to write them: we run what is in there."""
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
    """mmdebstrap as it is installed here, else fetched for this once. It is a script in Perl."""
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
            # In two steps and this order: Python, which is at a fixed address, does not start after any other.
            _run([*patchelf, "--force-rpath", "--set-rpath", path, str(program)], "patchelf")
            _run([*patchelf, "--set-interpreter", loader, str(program)], "patchelf")


def _run(command: Sequence[str], name: str, *, cwd: Path | None = None) -> None:
    done = subprocess.run(
        command, cwd=cwd, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise PartsUnavailable(f"{name} failed ({done.returncode}):\n{tail}")
