"""Which connectors an engine has.

Most have none: the file's reader, and with it every connector and httpx, are loaded where there is a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tenure.govern.connector import Connector
from tenure.govern.connectors.registry import Connectors

if TYPE_CHECKING:
    from tenure.secrets import Secrets

VARIABLE = "TENURE_CONNECTORS"


def choose_connectors(
    given: Connectors | Iterable[Connector] | str | Path | None = None,
    *,
    secrets: Secrets | None = None,
    environment: Mapping[str, str] | None = None,
) -> Connectors:
    """The connectors to use: those given or of the file given, else of the file that TENURE_CONNECTORS names, else none."""
    if given is None:
        given = (os.environ if environment is None else environment).get(VARIABLE) or ()
    if isinstance(given, str | Path):
        from tenure.govern.connectors.settings import load_connectors

        return load_connectors(given, secrets=secrets)
    return given if isinstance(given, Connectors) else Connectors(given)
