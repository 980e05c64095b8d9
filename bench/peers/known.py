"""The systems that can be measured: what each needs, and what it is compared by."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class UnknownPeer(ValueError):
    """Somebody asked for a peer that is not here."""


class System(msgspec.Struct, frozen=True, kw_only=True):
    """One system in one setting."""

    name: str
    title: str
    """For people."""
    peer: str
    """What one asks for on the command line; also the name of its environment and module."""
    store: str
    """`postgres`, `sqlite`, or `own` for one that brings its store along."""
    unit: str = "steps"
    ours: bool = False
    warm: int = 20
    """Runs before the first sample; the second sample's size is taken from their speed."""
    npm: str = ""
    """A pinned npm package whose program it needs, as `name@version`."""
    program: str = ""
    """That program's place among the installed packages."""
    options: dict[str, str] = {}
    candidates: tuple[dict[str, str], ...] = ({},)
    """Settings that were best somewhere: the bench tries them and takes the one that is best here."""


STANDARD = ("dbos", "restate")
"""Measured unless something else is asked for."""

TENURE = (
    System(name="tenure-postgres", title="Tenure on PostgreSQL", peer="ours", store="postgres", ours=True, warm=400),
    System(name="tenure-sqlite", title="Tenure on SQLite", peer="ours", store="sqlite", ours=True, warm=400),
)  # fmt: skip

PEERS = (
    System(
        name="dbos-postgres",
        title="DBOS on PostgreSQL",
        peer="dbos",
        store="postgres",
        candidates=({"mode": "call", "threads": "4"}, {"mode": "start"}),
    ),
    System(
        name="dbos-sqlite",
        title="DBOS on SQLite",
        peer="dbos",
        store="sqlite",
        candidates=({"threads": "4"}, {"threads": "1"}, {"threads": "8"}),
    ),
    System(
        name="restate",
        title="Restate",
        peer="restate",
        store="own",
        warm=400,
        npm="@restatedev/restate-server@1.7.12",
        program="@restatedev/restate-server-{platform}/bin/restate-server",
        candidates=(
            {"workers": "1", "in_flight": "128"},
            {"workers": "1", "in_flight": "256"},
            {"workers": "2", "in_flight": "256"},
        ),
    ),
    System(
        name="langgraph",
        title="LangGraph on PostgreSQL",
        peer="langgraph",
        store="postgres",
        candidates=({"lanes": "4"}, {"lanes": "1"}),
    ),
    System(name="temporal", title="Temporal dev server", peer="temporal", store="own", warm=5),
    System(
        name="temporal-local",
        title="Temporal dev server, local activities",
        peer="temporal",
        store="own",
        warm=10,
        options={"activities": "local"},
    ),
    System(name="pgqueuer", title="PgQueuer", peer="pgqueuer", store="postgres", unit="jobs", warm=1000),
)


def chosen(asked: str) -> list[System]:
    """The systems behind `dbos,restate`, `standard`, `all` or `none`."""
    names = [name for part in asked.split(",") if (name := part.strip())]
    if names == ["none"]:
        return []
    if names == ["all"]:
        return list(PEERS)
    wanted = {one for name in names for one in (STANDARD if name == "standard" else (name,))}
    known = sorted({system.peer for system in PEERS})
    for name in sorted(wanted):
        if name not in known:
            raise UnknownPeer(
                f"no peer is named {name!r}: choose from {', '.join(known)}; or standard, all, none"
            )
    return [system for system in PEERS if system.peer in wanted]


def tenure_for(systems: Iterable[System]) -> list[System]:
    """Ours, on the stores that these are compared with."""
    stores = {"postgres" if system.store == "own" else system.store for system in systems}
    return [system for system in TENURE if system.store in stores]
