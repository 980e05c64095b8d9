"""The environments of the peers. They are made on demand under `.bench/` in the checkout, from the pinned requirements.

pip and npm use the machine's own settings, so that the machine decides where packages come from.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from bench.peers.known import System
from bench.places import ROOT

HOME = ROOT / ".bench"
REQUIREMENTS = Path(__file__).parent / "requirements"
INSTALL_SECONDS_MAX = 300.0
_PLATFORMS = {
    ("Linux", "x86_64"): "linux-x64", ("Linux", "aarch64"): "linux-arm64",
    ("Darwin", "arm64"): "darwin-arm64", ("Darwin", "x86_64"): "darwin-x64",
}  # fmt: skip


class NotMeasured(Exception):
    """A system cannot be measured. The message gives the reason."""


def python_for(system: System, *, home: Path = HOME, install: bool = True) -> Path:
    """The interpreter of a system's environment. Tenure uses the current one."""
    if system.ours:
        return Path(sys.executable)
    listed = REQUIREMENTS / f"{system.peer}.txt"
    folder = home / "venvs" / system.peer
    stamp, wanted = folder / "installed", _digest(listed)
    python = folder / "bin" / "python"
    if stamp.exists() and stamp.read_text() == wanted and python.exists():
        return python
    if not install:
        raise NotMeasured(f"no environment for {system.peer} in {home.name}/, and none may be made")
    make_home(home)
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)], f"no environment for {system.peer}")
    _run(
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(listed)],
        f"{system.peer} cannot be installed",
    )
    stamp.write_text(wanted)
    return python


def tool_for(system: System, *, home: Path = HOME, install: bool = True) -> str:
    """The program of a system's npm package; "" if it has none."""
    if not system.npm:
        return ""
    kind = _PLATFORMS.get((platform.system(), platform.machine()))
    if kind is None:
        raise NotMeasured(f"{system.npm} has no program for {platform.system()} on {platform.machine()}")
    folder = home / "npm" / system.npm.replace("/", "-").replace("@", "")
    program = folder / "node_modules" / system.program.format(platform=kind)
    if not program.exists():
        if not install:
            raise NotMeasured(f"{system.npm} is not in {home.name}/, and may not be fetched")
        npm = shutil.which("npm")
        if npm is None:
            raise NotMeasured(f"npm is not installed, and {system.peer} needs {system.npm}")
        make_home(home)
        folder.mkdir(parents=True, exist_ok=True)
        _run(
            [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts", system.npm],
            f"{system.npm} cannot be installed",
        )  # fmt: skip
    if not program.exists():
        raise NotMeasured(f"{system.npm} has no program for {kind}")
    return str(program)


def make_home(home: Path) -> None:
    """Make the folder, with a .gitignore for all of it."""
    home.mkdir(exist_ok=True)
    (home / ".gitignore").write_text("*\n")


def _digest(listed: Path) -> str:
    return hashlib.sha256(sys.version.encode() + listed.read_bytes()).hexdigest()


def _run(command: list[str], failed: str) -> None:
    try:
        finished = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=INSTALL_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotMeasured(f"{failed}: {error}") from error
    if finished.returncode != 0:
        lines = (finished.stderr or finished.stdout).decode(errors="replace").strip().splitlines()
        raise NotMeasured(f"{failed}: {lines[-1] if lines else 'no reason given'}")
