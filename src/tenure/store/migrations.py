"""Numbered migrations: where they are read from, and which ones a database still needs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from tenure.errors import TenureError

Migration = tuple[int, str, str]
"""Number, file name and text."""


def read_migrations(database: str) -> list[Migration]:
    """The migrations of `sqlite` or `postgres`, in order."""
    folder = files("tenure.store").joinpath(database, "migrations")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    numbers = [int(name.split("_", 1)[0]) for name in names]
    if numbers != list(range(1, len(names) + 1)):
        raise ValueError(f"{database}: migrations must be numbered from 1 without gaps: {names}")
    return [
        (number, name, folder.joinpath(name).read_text(encoding="utf-8"))
        for number, name in zip(numbers, names, strict=True)
    ]


def checksum(text: str) -> str:
    """The digest that is stored for an applied migration."""
    return hashlib.sha256(text.encode()).hexdigest()


def select_missing(
    migrations: list[Migration], applied: Sequence[Sequence[Any]], database: str
) -> list[Migration]:
    """The migrations that are not among the applied ones (number, name, checksum); `database` names it in errors.
    STORE_TOO_NEW, or STORE_NOT_A_DATABASE if the text of an applied migration has changed."""
    if len(applied) > len(migrations):
        raise TenureError(
            "STORE_TOO_NEW",
            f"{database} has migration {applied[-1][1]}; this version of Tenure knows only {len(migrations)} migrations: upgrade Tenure",
        )
    for (number, name, known), (_, _, text) in zip(applied, migrations, strict=False):
        if known != checksum(text):
            raise TenureError(
                "STORE_NOT_A_DATABASE",
                f"migration {number} ({name}) differs from the one that was applied to {database}",
            )
    return migrations[len(applied) :]
