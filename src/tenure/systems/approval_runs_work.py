"""The tools of `tenure up approval-runs`: what its workers do between the gates.

Law: `publish` waits at its first attempt until its worker is killed, so that the story can show how another worker reclaims the step. It never
waits again: a file in the folder says that it was there.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import tenure
from tenure.private_files import append_file


@tenure.tool("write_draft")
async def write_draft(title: str) -> dict[str, str]:
    """A draft, as a model would write it."""
    tenure.report_cost("example", "tiny-1", tokens_in=len(title.split()), tokens_out=40, money="0.0004")
    return {"draft": f"About {title}."}


@tenure.tool("publish")
async def publish(draft: str, folder: str) -> dict[str, Any]:
    """Put an article online, here into a file."""
    begun = Path(folder) / "publish.begun"
    if not begun.exists():
        with append_file(begun) as file:
            file.write(b"the first worker was here")
        await asyncio.Event().wait()
    with append_file(Path(folder) / "article.txt") as file:
        file.write(draft.encode())
    return {"published": True}
