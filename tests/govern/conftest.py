"""`ledger_place`: an empty database of each kind."""

from pathlib import Path

import pytest

from tests.conformance.stores import KINDS
from tests.govern.ledger_databases import LedgerPlace


@pytest.fixture(params=KINDS)
def ledger_place(request: pytest.FixtureRequest, tmp_path: Path) -> LedgerPlace:
    dsn = "" if request.param == "sqlite" else request.getfixturevalue("migrated_dsn")
    return LedgerPlace(request.param, tmp_path, dsn)
