"""The folder of a demonstration: an empty one that the user names and keeps, or a temporary one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tenure.errors import TenureError
from tenure.private_files import make_folder


@contextmanager
def work_folder(named: str | None, prefix: str) -> Iterator[Path]:
    """An empty folder. A temporary one is removed afterwards."""
    if named is not None:
        place = Path(named).absolute()
        try:
            make_folder(place)
            used = any(place.iterdir())
        except OSError as fault:
            raise TenureError("INVALID_INPUT", f"{named} cannot be used: {fault}") from fault
        if used:
            raise TenureError("INVALID_INPUT", f"{named} is not empty; name a new folder")
        yield place
        return
    made = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
