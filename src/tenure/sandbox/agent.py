"""The first process of a sandbox: it gives up privileges, starts programs and reports how they ended.

    python -I -S agent.py PLAN

Laws:
1. PLAN is JSON without secrets. Programs and their variables arrive on the control socket, one JSON object per line. `{"id", "argv", "cwd",
   "env", "title"}` starts a program, `{"signal": N}` signals all of them, and the end of the socket ends everything.
2. The answers are `{"ready", "landlock"}` once, and `{"id", "status"}` for each program that ended. A failed setup is `{"error"}`.
3. No program starts before all privileges are gone: another user (where the sandbox was made by root), a user namespace without
   capabilities and without further user namespaces, Landlock, limits. Programs get no descriptor besides their standard ones.
4. With `namespaces` this is process 1 of its own process ids, so the kernel ends every program when it ends. Without, it adopts what its
   programs leave behind, and ends that itself.
5. The agent imports nothing of Tenure, so that it starts within milliseconds.
"""

import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any, NoReturn

_NEWUSER = 0x10000000
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_CAPABILITY_VERSION_3 = 0x20080522
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULESET_VERSION = 1
_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
"""The rights that a rule about a file may have."""
_SCOPES = 0b11
"""No abstract Unix sockets and no signals beyond this sandbox."""
_RELAY_BYTES = 64 * 1024
_NOT_FOUND, _NOT_STARTED = 127, 126
_END_ROUNDS = 1_000


def _check_result(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _become(libc: Any, plan: dict[str, Any]) -> None:
    """Become the sandbox's user in a user namespace without capabilities."""
    uid, gid, inner = plan["uid"], plan["gid"], plan["inner_id"]
    # Bubblewrap has made it read-only; the user cannot write to it anyway.
    libc.umount2(b"/proc/sys", _MNT_DETACH)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    _check_result(libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "dumpable")  # to own /proc/self again
    _check_result(libc.unshare(_NEWUSER), "unshare a user namespace")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{inner} {uid} 1"),
        ("gid_map", f"{inner} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    with suppress(OSError), open("/proc/sys/user/max_user_namespaces", "w", encoding="ascii") as file:
        file.write("0")
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check_result(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def _rights(abi: int) -> int:
    known = {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)
    return (1 << known) - 1


def _restrict(libc: Any, plan: dict[str, Any]) -> int:
    """Restrict this process and its programs by Landlock. Returns the version of the kernel's Landlock, or 0."""
    libc.syscall.restype = ctypes.c_long
    abi = int(libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _RULESET_VERSION))
    if abi < 1:
        return 0
    every = _rights(abi)
    attributes = (ctypes.c_uint64 * 3)(every, 0, _SCOPES if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset = int(libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0))
    _check_result(ruleset, "landlock_create_ruleset")
    read = _EXECUTE | _READ_FILE | _READ_DIR
    wanted = [(path, read) for path in plan["readable"]]
    wanted += [(path, read | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV) for path in plan["devices"]]
    wanted += [(path, every & ~(_MAKE_CHAR | _MAKE_BLOCK)) for path in plan["writable"]]
    for path, rights in wanted:
        try:
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        allowed = rights & every if os.path.isdir(path) else rights & every & _FILE_RIGHTS
        rule = allowed.to_bytes(8, sys.byteorder) + handle.to_bytes(4, sys.byteorder, signed=True)
        _check_result(libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0), f"landlock rule of {path}")
        os.close(handle)
    _check_result(libc.syscall(_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)
    return abi


def _limit(plan: dict[str, Any]) -> None:
    for name, value in (
        ("RLIMIT_CORE", 0),
        ("RLIMIT_NPROC", plan["processes"]),
        ("RLIMIT_FSIZE", plan["file_bytes"]),
        ("RLIMIT_AS", plan["memory_bytes"]),
    ):
        which = getattr(resource, name)
        if value is not None:
            hard = resource.getrlimit(which)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(which, (value, value))


def _forward(port: int, path: str) -> NoReturn:
    """Carry connections to a port of this sandbox's loopback to the Unix socket of the proxy outside."""
    import threading

    def carry(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_RELAY_BYTES):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve(inside: socket.socket) -> None:
        with inside, socket.socket(socket.AF_UNIX) as outside:
            try:
                outside.connect(path)
            except OSError:
                return
            back = threading.Thread(target=carry, args=(outside, inside), daemon=True)
            back.start()
            carry(inside, outside)
            back.join()

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        while True:
            with suppress(OSError):
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


class _Agent:
    def __init__(self, plan: dict[str, Any], control: socket.socket) -> None:
        self._plan = plan
        self._control = control
        self._running: dict[int, int] = {}
        """Process id -> id of the program."""
        self._input = b""

    def send(self, **answer: Any) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            self._control.sendall(json.dumps(answer).encode() + b"\n")

    def serve(self) -> None:
        woken, wake = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python's own handler would let a program end the agent
        while True:
            ready, _, _ = select.select([self._control.fileno(), woken], [], [])
            if woken in ready:
                with suppress(BlockingIOError):
                    os.read(woken, 4096)
                self._reap()
            if self._control.fileno() in ready and not self._receive():
                return

    def _receive(self) -> bool:
        """Carry out what has arrived. False: the socket has ended."""
        try:
            data = self._control.recv(1 << 16)
        except ConnectionResetError:
            return False
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "signal" in message:
                self.signal_all(message["signal"])
            else:
                self._start(message)
        return bool(data)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                number = self._running.pop(pid, None)
                if number is not None:
                    self.send(id=number, status=status)

    def _start(self, message: dict[str, Any]) -> None:
        if message.get("title"):
            with suppress(OSError):
                os.write(self._plan["out"], message["title"].encode() + b"\n")
        pid = os.fork()
        if pid == 0:
            self._execute(message)
        self._running[pid] = message["id"]

    def _execute(self, message: dict[str, Any]) -> NoReturn:
        plan, argv = self._plan, message["argv"]
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            for source, target in ((plan["in"], 0), (plan["out"], 1), (plan["err"], 2)):
                os.dup2(source, target)
            os.chdir(message["cwd"])
            os.execvpe(argv[0], argv, message["env"])
        except (OSError, ValueError) as fault:
            why = fault.strerror if isinstance(fault, OSError) else str(fault)
            os.write(2, f"cannot start {argv[0]!r} in {message['cwd']}: {why}\n".encode())
            os._exit(_NOT_FOUND if isinstance(fault, FileNotFoundError) else _NOT_STARTED)
        finally:
            os._exit(_NOT_STARTED)

    def signal_all(self, number: int) -> None:
        with suppress(ProcessLookupError):
            if self._plan["namespaces"]:
                os.kill(-1, number)
                return
        for pid in _descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def end(self) -> NoReturn:
        """Law 4. Without namespaces, new children may appear while the list is read, so it is read again."""
        for _ in range(_END_ROUNDS if not self._plan["namespaces"] else 0):
            if not _descendants(os.getpid()):
                break
            self.signal_all(signal.SIGKILL)
            self._reap()
        os._exit(0)


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            state, parent = file.read().rpartition(b") ")[2].split(b" ")[:2]
            if state != b"Z":
                children.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def main() -> None:
    plan: dict[str, Any] = json.loads(sys.argv[1])
    control = socket.socket(fileno=plan["control"])
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of the list itself
            os.set_inheritable(int(name), int(name) < 3)
    if plan["in"] is None:
        plan["in"] = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    agent = _Agent(plan, control)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")  # a machine without memory ends jobs first
        landlock = 0
        if plan["uid"] is not None:
            _become(libc, plan)
        _check_result(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        if plan["namespaces"]:
            landlock = _restrict(libc, plan)
        else:
            _check_result(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper")
            signal.signal(signal.SIGTERM, lambda *_: agent.end())
            _check_result(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0), "pdeathsig")
        _limit(plan)
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # programs cannot look into the agent
        if plan["forward"] is not None and os.fork() == 0:
            control.close()
            _forward(*plan["forward"])
    except Exception as fault:
        agent.send(error=str(fault))
        os._exit(1)
    agent.send(ready=True, landlock=landlock)
    agent.serve()
    agent.end()


if __name__ == "__main__":
    main()
