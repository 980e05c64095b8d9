"""Shared by benches that use other processes: a client of the server, CPU time, and measurements in a fresh process."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TypeVar

import msgspec

from tenure.engine import Engine
from tenure.kernel.identity_rows import ApiKeyRow, ClientRow, TenantRow
from tenure.services.identity.principals import new_key
from tenure.store.identity import AdminChange, Identity

T = TypeVar("T")

TENANT = "acme"


async def create_key(engine: Engine, *roles: str) -> str:
    """Create a tenant and a client with these roles. The result is the client's key."""
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
    """The CPU time of a process since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def run_module(kind: type[T], module: str, *arguments: str) -> T:
    """Run a module in a fresh process. The result is the last line of its output, decoded; other lines go to stderr."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments[1:])} ended with {process.returncode}")
    *others, last = output.splitlines()
    for line in others:
        print(line.decode(), file=sys.stderr)
    return msgspec.json.decode(last, type=kind)
