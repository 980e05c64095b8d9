"""A command that looks for secrets that are created or replaced while it runs: `python late_attack.py MARKER PATH...`.

It prints `ready` and waits for a file `go` in its working folder. Then it prints the paths through which it found the marker, as
JSON. It imports only the standard library, because it runs as the user of commands."""

import json
import os
import sys
import time
from contextlib import suppress


def reads(path: str, marker: bytes) -> bool:
    """Whether a file, or a file in a folder, can be read and contains the marker."""
    below = [path]
    with suppress(OSError):
        below += [os.path.join(path, name) for name in os.listdir(path)]
    for each in below:
        with suppress(OSError), open(each, "rb") as file:
            if marker in file.read(1 << 20):
                return True
    return False


def main() -> None:
    """Wait, then try everything."""
    marker, paths = sys.argv[1][::-1].encode(), sys.argv[2:]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not os.path.exists("go"):
        time.sleep(0.005)
    here = os.getcwd()
    roots = ("", "/proc/1/root", "/proc/1/cwd", "/proc/self/root")
    ways = [root + path for path in paths for root in roots]
    ways += [os.path.relpath(path, here) for path in paths]
    ways += [os.path.join("/proc/1/cwd", os.path.relpath(path, here)) for path in paths]
    for path in paths:
        for way in (f"umount {os.path.dirname(path)}", f"unshare -Urm umount {os.path.dirname(path)}"):
            os.system(f"{way} >/dev/null 2>&1")
    sys.stdout.write(json.dumps(sorted({way for way in ways if reads(way, marker)})))


if __name__ == "__main__":
    main()
