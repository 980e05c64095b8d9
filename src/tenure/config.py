"""Settings from the environment.

The database is the given one, or TENURE_DB, or `tenure.db` in the current folder. For PostgreSQL, TENURE_LISTEN_DB is the DSN for
listening to wake-ups, and TENURE_DB_PATIENCE is how long commands wait for a server that fails over or restarts. TENURE_PROFILES is the
folder of custom profiles. TENURE_CI is the file with the repositories of CI.
"""

from __future__ import annotations

import os
import re
from typing import Literal

import msgspec

from tenure.durations import parse_duration
from tenure.errors import TenureError
from tenure.limits import COMMAND_SECONDS_MAX

DATABASE_VARIABLE = "TENURE_DB"
DATABASE_DEFAULT = "tenure.db"
LISTEN_VARIABLE = "TENURE_LISTEN_DB"
PATIENCE_VARIABLE = "TENURE_DB_PATIENCE"
PATIENCE_SECONDS_MIN, PATIENCE_SECONDS_MAX = 1.0, 3600.0
PROFILES_VARIABLE = "TENURE_PROFILES"
CI_VARIABLE = "TENURE_CI"

_POSTGRES = ("postgresql://", "postgres://")
_MEMORY = re.compile(r":memory:|[?&]mode=memory(?:&|$)")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


class Database(msgspec.Struct, frozen=True):
    kind: Literal["sqlite", "postgres"]
    address: str

    @classmethod
    def parse(cls, text: str) -> Database:
        """`sqlite:PATH`, `sqlite:///PATH`, a plain path, or `postgresql://...`."""
        if text.startswith(_POSTGRES):
            return cls("postgres", text)
        if text.startswith("sqlite:"):
            path = text.removeprefix("sqlite:").removeprefix("//")
        elif (found := _SCHEME.match(text)) is not None:
            raise TenureError(
                "STORE_NOT_A_DATABASE",
                f"{found[1]}:// is not supported; use sqlite:PATH or postgresql://",
            )
        else:
            path = text
        if not path:
            raise TenureError("STORE_NOT_A_DATABASE", "the path of the database is empty")
        if path == ":memory:" or (path.startswith("file:") and _MEMORY.search(path)):
            raise TenureError(
                "INVALID_INPUT",
                "a database in memory cannot be shared and ends with its process; use a file",
            )
        return cls("sqlite", path)

    def __str__(self) -> str:
        """The address without its password. If the password's end is unclear, more is hidden."""
        if self.kind == "sqlite":
            return self.address
        shown = re.sub(r"^(\w+://[^:/?@]*):.*@", r"\1:***@", self.address)
        return re.sub(r"([?&][^=&]*password)=[^&]*", r"\1=***", shown)


def choose_database(given: str | None = None) -> Database:
    return Database.parse(given or os.environ.get(DATABASE_VARIABLE) or DATABASE_DEFAULT)


def choose_listen(given: str | None = None) -> str | None:
    """The DSN for listening to wake-ups if the database is behind a pooler. None: the database's own DSN."""
    chosen = given or os.environ.get(LISTEN_VARIABLE) or None
    if chosen is not None and not chosen.startswith(_POSTGRES):
        raise TenureError(
            "STORE_NOT_A_DATABASE", f"--listen-db and {LISTEN_VARIABLE} take a postgresql:// DSN"
        )
    return chosen


def choose_patience() -> float:
    """The seconds that a command waits for a database that is unreachable, fails over or is locked."""
    text = os.environ.get(PATIENCE_VARIABLE)
    if not text:
        return COMMAND_SECONDS_MAX
    length = parse_duration(text)
    if not PATIENCE_SECONDS_MIN <= length <= PATIENCE_SECONDS_MAX:
        raise TenureError(
            "INVALID_INPUT",
            f"{PATIENCE_VARIABLE}={text}: it must be {PATIENCE_SECONDS_MIN:g} s to {PATIENCE_SECONDS_MAX:g} s",
        )
    return length


def choose_profiles() -> str | None:
    return os.environ.get(PROFILES_VARIABLE) or None


def choose_ci_file(named: str | None = None) -> str | None:
    """The file with the repositories of CI, or None."""
    return named or os.environ.get(CI_VARIABLE) or None
