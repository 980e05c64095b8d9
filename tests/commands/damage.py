"""A command that tries to change its worker's installation. Run as `python damage.py PLACE LAUNCHER FOLDER...`; prints what it could do, as JSON.

FOLDER are folders of the installation. Every change that it can make lets the worker's next launcher create PLACE/free/escaped.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

PLACE, LAUNCHER, *FOLDERS = sys.argv[1:]
PAYLOAD = f"open({PLACE + '/free/escaped'!r}, 'w').close()\n"
SCRIPT = f'#!/bin/sh\ntouch {PLACE}/free/escaped\nexec {os.path.realpath(sys.executable)} "$@"\n'


def write(path: str, text: str) -> None:
    """Change the file in place."""
    with open(path, "r+") as file:
        was = file.read()
        file.seek(0)
        file.write(text + was)


def replace(path: str, text: str) -> None:
    """Replace the file by another one."""
    made = f"{path}-made"
    make(made, text)
    os.chmod(made, 0o755)
    os.replace(made, path)


def make(path: str, text: str) -> None:
    """Create a new file."""
    with open(path, "w") as file:
        file.write(text)


def move(folder: str) -> None:
    """Move the folder away and back."""
    os.rename(folder, f"{folder}-moved")
    os.rename(f"{folder}-moved", folder)


def append(path: str) -> None:
    """Open for appending, and write nothing: this is the machine's own interpreter, and being able to open it is enough."""
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND))


def main() -> None:
    """Try everything, first directly and then after trying to undo the mounts."""
    with open(LAUNCHER) as file:
        source = file.read()
    tries: dict[str, Callable[[], None]] = {
        "write the launcher": lambda: write(LAUNCHER, PAYLOAD),
        "replace the launcher": lambda: replace(LAUNCHER, PAYLOAD + source),
        "chmod the launcher": lambda: os.chmod(LAUNCHER, 0o777),
        "append to the standard library": lambda: append(os.__file__),
        "append to the interpreter": lambda: append(os.path.realpath(sys.executable)),
    }
    for folder in FOLDERS:
        tries[f"make a file in {folder}"] = partial(make, f"{folder}/evil.pth", "import os\n")
        above = folder
        while above != PLACE:
            tries[f"move {above}"] = partial(move, above)
            above = os.path.dirname(above)
        if os.path.islink(f"{folder}/python"):
            tries["replace the venv's python"] = partial(replace, f"{folder}/python", SCRIPT)
    done: list[str] = []
    for way in ("", "umount", "unshare -Urm umount", "unshare -Urm mount -o remount,rw,bind"):
        for folder in FOLDERS if way else ():
            os.system(f"{way} {folder} >/dev/null 2>&1")
        for name, work in tries.items():
            with suppress(OSError):
                work()
                done.append(f"{name} {way}".strip())
    sys.stdout.write(json.dumps(done))


if __name__ == "__main__":
    main()
