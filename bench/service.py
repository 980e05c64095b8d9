"""What the benches of the server share: somebody who may ask, and what a process has used."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec

from tenure.engine import Engine
from tenure.kernel.identity_rows import ApiKeyRow, ClientRow, TenantRow
from tenure.services.identity.principals import new_key
from tenure.store.identity import AdminChange, Identity

TENANT = "acme"


async def a_key(engine: Engine, *roles: str) -> str:
    """A tenant, a client with these roles, and its key."""
    made, listed = new_key(), msgspec.json.encode(sorted(roles)).decode()
    await Identity(engine.store).put_all(
        [
            TenantRow(TENANT, "Acme", "{}", 1),
            ClientRow(TENANT, "cli_bench", "bench", listed, None, 1),
            ApiKeyRow(made.id, TENANT, "client", "cli_bench", "bench", made.hash, None, "bench", 1, None),
        ],
        AdminChange(tenant=TENANT, kind="bench", actor="bench"),
    )
    return made.text


def cpu_seconds(pid: int) -> float:
    """What a process has used, its start included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
