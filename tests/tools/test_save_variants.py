"""The generated variants of the save queries are up to date, and write no more than the queries that they come from."""

import pytest

from tenure.store.query_registry import load_queries
from tests.test_tidy import UPDATE, UPSERT, assigned_columns
from tools import save_variants
from tools.generated_files import find_stale


def test_the_files_are_up_to_date() -> None:
    assert find_stale(save_variants.texts()) == [], "run `make docs`"


def written(text: str) -> dict[str, set[str]]:
    return {
        found["table"]: assigned_columns(text[found.end() :])
        for pattern in (UPDATE, UPSERT)
        for found in pattern.finditer(text)
    }


@pytest.mark.parametrize(
    ("database", "variants"),
    [("sqlite", save_variants.sqlite_variants()), ("postgres", save_variants.postgres_variants())],
)
def test_a_variant_changes_only_columns_that_its_tables_writer_changes(
    database: str, variants: dict[str, str]
) -> None:
    queries = load_queries(database, variants=False)
    assert load_queries(database).keys() == queries.keys() | variants.keys()
    for name, text in variants.items():
        for table, columns in written(text).items():
            assert columns <= written(queries[f"save_{table}"])[table], name
