"""Writes stories to a database."""

from collections.abc import Generator
from typing import Any

from tenure.kernel.run_rows import Row
from tenure.store.port import Query, Save, Saved, Store
from tests.kernel.story import Story


async def put(store: Store, *stories: Story) -> None:
    """Write all rows of these stories."""

    def save() -> Generator[Query | Save, Any, Saved]:
        saved: Saved = yield _save(stories)
        return saved

    saved = await store.transact(save)
    assert saved.ids == {story.run_id for story in stories}


def _save(stories: tuple[Story, ...]) -> Save:
    rows: dict[str, list[Row]] = {}
    for story in stories:
        bundle = story.bundle()
        in_checkpoints = {row.output_ref for row in bundle.checkpoints if row.salt is not None}
        payloads = [row for row in bundle.payloads if row.ref not in in_checkpoints]
        tables: tuple[list[Any], ...] = (
            bundle.steps, bundle.attempts, bundle.checkpoints, bundle.waits, bundle.approvals, bundle.inbox,
            bundle.children, payloads, bundle.events, bundle.outbox, bundle.verdicts, bundle.receipts, bundle.run_spends,
            bundle.cost_lines,
        )  # fmt: skip
        for table in tables:
            for row in table:
                rows.setdefault(row.table, []).append(row)
    return Save(
        new_runs=[story.run for story in stories], new_specs=[story.spec for story in stories], rows=rows
    )
