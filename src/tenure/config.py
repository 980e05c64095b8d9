"""Which database to use: what was given, else TENURE_DB, else `tenure.db` in the current folder.

Of PostgreSQL also: where wake-ups are listened for (TENURE_LISTEN_DB), and how long commands wait for a server that fails
over or restarts (TENURE_DB_PATIENCE). And where a user's own profiles are: the folder that TENURE_PROFILES names, else nowhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
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

_POSTGRES = ("postgresql://", "postgres://")
_MEMORY = re.compile(r":memory:|[?&]mode=memory(?:&|$)")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


class Database(msgspec.Struct, frozen=True):
    """An address of a database."""

    kind: Literal["sqlite", "postgres"]
    address: str
    """A path, or a DSN."""

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
                f"{found[1]}:// is no database of ours; use sqlite:PATH or postgresql://",
            )
        else:
            path = text
        if not path:
            raise TenureError("STORE_NOT_A_DATABASE", "the path of the database is empty")
        if path == ":memory:" or (path.startswith("file:") and _MEMORY.search(path)):
            raise TenureError(
                "INVALID_INPUT",
                "a database in memory lives inside one process's store and ends with it; use a file",
            )
        return cls("sqlite", path)

    def __str__(self) -> str:
        """The address as it may be shown: without a password. Where it is unclear, too much is hidden."""
        if self.kind == "sqlite":
            return self.address
        shown = re.sub(r"^(\w+://[^:/?@]*):.*@", r"\1:***@", self.address)
        return re.sub(r"([?&][^=&]*password)=[^&]*", r"\1=***", shown)


def choose_database(given: str | None = None, environment: Mapping[str, str] | None = None) -> Database:
    """The database to use: the one given, else the environment's, else the default."""
    found = os.environ if environment is None else environment
    return Database.parse(given or found.get(DATABASE_VARIABLE) or DATABASE_DEFAULT)


def choose_listen(given: str | None = None, environment: Mapping[str, str] | None = None) -> str | None:
    """The DSN to listen for wake-ups at, where the database itself is behind a pooler; None: the database's own."""
    found = os.environ if environment is None else environment
    chosen = given or found.get(LISTEN_VARIABLE) or None
    if chosen is not None and not chosen.startswith(_POSTGRES):
        raise TenureError(
            "STORE_NOT_A_DATABASE", f"--listen-db and {LISTEN_VARIABLE} take a postgresql:// DSN"
        )
    return chosen


def choose_patience(environment: Mapping[str, str] | None = None) -> float:
    """How many seconds a command waits for a database that is away, fails over or is locked."""
    found = os.environ if environment is None else environment
    text = found.get(PATIENCE_VARIABLE)
    if not text:
        return COMMAND_SECONDS_MAX
    length = parse_duration(text)
    if not PATIENCE_SECONDS_MIN <= length <= PATIENCE_SECONDS_MAX:
        raise TenureError(
            "INVALID_INPUT",
            f"{PATIENCE_VARIABLE}={text}: it is {PATIENCE_SECONDS_MIN:g} s to {PATIENCE_SECONDS_MAX:g} s",
        )
    return length


def choose_profiles(environment: Mapping[str, str] | None = None) -> str | None:
    """The folder of the user's own profiles; None where there are none."""
    found = os.environ if environment is None else environment
    return found.get(PROFILES_VARIABLE) or None
