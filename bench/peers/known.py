"""The systems that can be measured, and what each needs."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class UnknownPeer(ValueError):
    """There is no peer with this name."""


class System(msgspec.Struct, frozen=True, kw_only=True):
    """A system on one store."""

    name: str
    title: str
    """Its name in reports."""
    peer: str
    """Its name on the command line, which is also the name of its environment and module."""
    store: str
    """`postgres`, `sqlite`, or `own` for a system with its own store."""
    unit: str = "steps"
    ours: bool = False
    warm: int = 20
    """Runs before the first sample. Their speed determines the size of the sample."""
    npm: str = ""
    """A pinned npm package whose program it needs, as `name@version`."""
    program: str = ""
    """The path of that program among the installed packages."""
    options: dict[str, str] = {}
    candidates: tuple[dict[str, str], ...] = ({},)
    """Settings that were best on some machine. The bench tries them and takes the best one."""


STANDARD = ("dbos", "restate")
"""The peers that are measured by default."""

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
    """The systems that `dbos,restate`, `standard`, `all` or `none` means."""
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
    """Tenure on the stores that these systems are compared with."""
    stores = {"postgres" if system.store == "own" else system.store for system in systems}
    return [system for system in TENURE if system.store in stores]
