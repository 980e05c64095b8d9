"""A command that looks for its worker's secrets. Run as `python attack.py WORKER_PID MARKER PATH...`; prints what it found, as JSON.

It imports only the standard library, because it runs as the user of commands.
"""

import ctypes
import json
import os
import stat
import sys
from contextlib import suppress

PTRACE_ATTACH, PTRACE_DETACH = 16, 17


def reads(path: str, marker: bytes) -> bool:
    """Whether a file can be read and contains the marker."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            if stat.S_ISREG(os.fstat(handle).st_mode):  # reading a pipe would block
                return marker in file.read(1 << 22)
    return False


def memory_has(pid: str, marker: bytes) -> bool:
    """Whether the marker can be read from a process's memory."""
    with suppress(OSError), open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            where, mode = line.split()[:2]
            begin, end = (int(each, 16) for each in where.split("-"))
            if "rw" not in mode or end - begin > 1 << 28:
                continue
            with suppress(OSError, OverflowError):
                memory.seek(begin)
                if marker in memory.read(end - begin):
                    return True
    return False


def main() -> None:
    """Try everything on every visible process."""
    worker, marker, paths = (
        sys.argv[1],
        sys.argv[2][::-1].encode(),
        sys.argv[3:],
    )  # reversed, so that the marker is not in our own memory
    own = str(os.getpid())
    got: set[str] = set()
    listed = {each for each in os.listdir("/proc") if each.isdigit()}
    pids = {worker, str(os.getppid())} | (
        listed if len(listed) < 20 else set()
    )  # every process of a namespace, but not of a whole machine
    for pid in sorted(pids - {own}):
        if reads(f"/proc/{pid}/environ", marker):
            got.add("environ")
        with suppress(OSError):
            for handle in os.listdir(f"/proc/{pid}/fd"):
                if reads(f"/proc/{pid}/fd/{handle}", marker):
                    got.add("fds")
        for root in ("root", "cwd"):
            if any(reads(f"/proc/{pid}/{root}{path}", marker) for path in paths):
                got.add("files")
    if memory_has(worker, marker):
        got.add("mem")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(PTRACE_ATTACH, int(worker), None, None) == 0:
        os.waitpid(int(worker), 0x40000000)  # __WALL
        libc.ptrace(PTRACE_DETACH, int(worker), None, None)
        got.add("ptrace")
    for path in paths:
        for way in (f"umount {path}", f"unshare -Urm umount {path}"):
            os.system(f"{way} >/dev/null 2>&1")
        below = [path]
        with suppress(OSError):
            below += [os.path.join(path, name) for name in os.listdir(path)]
        if any(reads(each, marker) for each in below):
            got.add("files")
    for number in range(3, 256):
        if reads(f"/proc/self/fd/{number}", marker):
            got.add("inherited")
    sys.stdout.write(json.dumps(sorted(got)))


if __name__ == "__main__":
    main()
