"""Run one PostgreSQL server and end it together with whoever asked for it.

Started by `tools.postgres_server` as a plain script (standard library only, no import of tenure), with
the server's directory, its account (`uid:gid`, or `-` for our own) and the command line. It is the parent
of the server, so it can never signal a process that is not the server. On its standard input:

- a line with a signal's name ends the server with that signal;
- the end of the input means that the owner died: the server is ended and its directory removed.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

STOP_SECONDS_MAX = 20.0


def main() -> int:
    directory, account, *command = sys.argv[1:]
    uid, gid = (int(part) for part in account.split(":")) if account != "-" else (None, None)
    with Path(directory, "server.log").open("ab") as log:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
            user=uid,
            group=gid,
            extra_groups=None if uid is None else [],
        )
    orphaned = threading.Event()
    threading.Thread(target=_obey, args=(server, orphaned), daemon=True).start()
    code = server.wait()
    if orphaned.is_set():
        shutil.rmtree(directory, ignore_errors=True)
    return code


def _obey(server: "subprocess.Popen[bytes]", orphaned: threading.Event) -> None:
    order = sys.stdin.readline().strip()
    if not order:
        orphaned.set()
    server.send_signal(signal.Signals[order] if order else signal.SIGINT)
    threading.Event().wait(STOP_SECONDS_MAX)
    server.kill()


if __name__ == "__main__":
    # The owner's Ctrl-C is the owner's to handle: it decides when the server ends.
    os.setsid()
    sys.exit(main())
