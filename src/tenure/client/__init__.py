"""A client of a Tenure server.

async with tenure.Client("https://tenure.example.org") as client:   # the key is in TENURE_KEY
    run = await client.submit("release", {"ref": "main"})
    print(await client.result(run, wait=None))
"""

from __future__ import annotations

from tenure.client.client import Client

__all__ = ["Client"]
