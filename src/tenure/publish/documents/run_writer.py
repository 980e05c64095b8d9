"""Writes the documents of runs: every state of a run, in order, each one once.

Laws:
1. For each event of a run: first `steps/N.json` of the steps that it completed, then, if it ends the run, `manifest.json`, then `status.json`.
2. `status.json` carries the number of its event as its mark, and is written only over the version that this writer has seen. So a writer that
   has lost its lease, or repeats events after a crash, writes nothing older over something newer.
3. A terminal `status.json` is never written again.
4. States of one run are written one after the other. Different runs do not wait for each other.
5. A deleted run is not published.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

import msgspec

from tenure import ids
from tenure.artifacts import is_reference
from tenure.clock import to_datetime
from tenure.kernel import profiles
from tenure.kernel.feed import FeedItem
from tenure.kernel.run_rows import CLOSED_RUN, CONDITION_FALSE
from tenure.outbound.document_store import DocumentChanged, DocumentStore
from tenure.reads.payloads import decode_payload, read_payloads
from tenure.reads.status_document import (
    PROFILE,
    RunMoment,
    build_status_document,
    list_completed,
    passed_words,
)
from tenure.shapes.documents import StatusDocument
from tenure.shapes.published import (
    TERMINAL_WORDS,
    ManifestStep,
    PublishedStep,
    RunManifest,
    manifest_path,
    status_path,
    step_path,
)
from tenure.store.port import Store
from tenure.store.publications import FinishedStep, PublicationRepository, PublishedRun, RunRows

T = TypeVar("T")

CONCURRENT_RUNS_MAX = 48
REMEMBERED_RUNS_MAX = 5_000
CONFLICTS_MAX = 5
"""How often one state is compared with a document that somebody else has changed."""

encode_document = msgspec.json.Encoder().encode


class RunEvent(msgspec.Struct, frozen=True, gc=False):
    """A line of the feed, with the position of its commit."""

    pos: int
    item: FeedItem


class WrittenRun(msgspec.Struct):
    """What this writer knows about the published documents of a run."""

    version: str | None = None
    """The version of its status.json; None: there is none."""
    seq: int = 0
    """The event that it shows."""
    word: str = ""
    current: str | None = None
    steps: int = 0
    since: int = 0
    """Steps that ended before this time have been published."""
    seen: set[tuple[int, int]] = msgspec.field(default_factory=set)
    """The steps that have been published, by index and number."""
    skip: int = 0
    """How many completed steps had been published before this writer saw the run."""

    @property
    def is_terminal(self) -> bool:
        return self.word in TERMINAL_WORDS


Outputs = dict[tuple[int, int | None], Any]
"""Payloads by run and reference."""


class _RunWork(msgspec.Struct, frozen=True):
    """What the documents of one run are made from."""

    run: PublishedRun
    known: WrittenRun
    rows: RunRows
    outputs: Outputs
    times: dict[tuple[int, int], int]


class RunWriter:
    def __init__(self, store: Store, documents: DocumentStore) -> None:
        self._store = store
        self._rows = PublicationRepository(store)
        self._documents = documents
        self._written: OrderedDict[int, WrittenRun] = OrderedDict()
        self._slots = asyncio.Semaphore(CONCURRENT_RUNS_MAX)
        self.states = 0
        """How many states were published."""

    def forget(self, run_id: int | None = None) -> None:
        """Forget what was written, of one run or of all: the documents are read again."""
        if run_id is None:
            self._written.clear()
        else:
            self._written.pop(run_id, None)

    async def write(self, events: list[RunEvent]) -> None:
        """Publish events. If it fails, the same events can be given again."""
        if not events:
            return
        by_run: dict[int, list[FeedItem]] = {}
        for event in events:
            by_run.setdefault(event.item.run_id, []).append(event.item)
        known = dict(
            zip(by_run, await _gather(self._find_written(items[0]) for items in by_run.values()), strict=True)
        )
        rows = await self._rows.read_rows({run_id: one.since for run_id, one in known.items()})
        times = await self._rows.event_times([(one.item.run_id, one.item.seq) for one in events])
        outputs = await self._read_outputs(rows, known)
        await _gather(
            self._write_run(_RunWork(rows.runs[run_id], known[run_id], rows, outputs, times), items)
            for run_id, items in by_run.items()
            if run_id in rows.runs
        )
        while len(self._written) > REMEMBERED_RUNS_MAX:
            self._written.popitem(last=False)

    async def _find_written(self, first: FeedItem) -> WrittenRun:
        """Find out what has been published of a run. Of a new run there is nothing."""
        known = self._written.get(first.run_id)
        if known is None:
            async with self._slots:
                known = WrittenRun()
                if first.before is not None:
                    known = await self._read_published(first.tenant, first.run_id)
                self._written[first.run_id] = known
        self._written.move_to_end(first.run_id)
        return known

    async def _read_published(self, tenant: str, run_id: int) -> WrittenRun:
        found = await self._documents.read(status_path(tenant, ids.run_text(run_id)))
        if found is None:
            return WrittenRun()
        document = msgspec.json.decode(found.body, type=StatusDocument)
        return WrittenRun(
            version=found.version,
            seq=found.mark,
            word=document.status,
            current=document.current_step,
            steps=document.steps_completed,
            skip=document.steps_completed,
        )

    async def _read_outputs(self, rows: RunRows, known: dict[int, WrittenRun]) -> Outputs:
        """The payloads that the documents contain: outputs of steps, and of runs that end."""
        wanted: list[tuple[int, int | None]] = []
        for run_id, written in known.items():
            wanted += [
                (run_id, step.output_ref)
                for step in rows.steps.get(run_id, ())
                if step.output is None and (step.idx, step.no) not in written.seen
            ]
            run = rows.runs.get(run_id)
            if run is not None and run.status in CLOSED_RUN:
                wanted += [(run_id, run.output_ref), (run_id, run.error_ref)]
        return await read_payloads(self._store, wanted)

    # ------------------------------------------------------------------------------------------------ one run

    async def _write_run(self, work: _RunWork, items: list[FeedItem]) -> None:
        async with self._slots:
            known, run_id = work.known, work.run.id
            done = list_completed(work.rows.steps.get(run_id, ()))
            if known.skip:  # from now on the steps themselves are remembered
                known.seen |= {(step.idx, step.no) for step in done[: known.skip]}
                known.skip = 0
            completed = [step for step in done if (step.idx, step.no) not in known.seen]
            for item in items:
                if item.seq <= known.seq or known.is_terminal:
                    continue
                # Otherwise the run was not published from its beginning.
                if known.word or item.before is None:
                    await self._write_passed(work, item)
                if item.seq <= known.seq or known.is_terminal:  # another writer has published it
                    continue
                new = max(item.steps - known.steps, 0)
                await self._write_state(work, item, completed[:new])
                del completed[:new]

    async def _write_passed(self, work: _RunWork, item: FeedItem) -> None:
        """Write the states that the run has passed through within one event, with the mark of the event before."""
        run, known, seq = work.run, work.known, item.seq - 1
        for _ in range(CONFLICTS_MAX):
            words = passed_words(known.word, _word(item.status, known.word, run))
            if not words or known.seq > seq:
                return
            moment = RunMoment(words[0], known.steps, work.times.get((run.id, seq), 0), ended=False)
            document = build_status_document(run, work.rows, moment, current=known.current)
            if await self._replace(run, known, seq, encode_document(document)):
                known.word = words[0]
                self.states += 1

    async def _write_state(self, work: _RunWork, item: FeedItem, completed: list[FinishedStep]) -> None:
        run, known, outputs = work.run, work.known, work.outputs
        name = ids.run_text(run.id)
        for number, step in enumerate(completed, start=known.steps + 1):
            output = outputs.get((run.id, step.output_ref))
            body = encode_document(_describe_step(name, number, step, output))
            await self._documents.put(step_path(run.tenant, name, number), body)
        ended = item.status in CLOSED_RUN
        at = work.times.get((run.id, item.seq), run.event_at)
        document = build_status_document(
            run,
            work.rows,
            RunMoment(_word(item.status, known.word, run), item.steps, at, ended),
            current=known.current,
            message=outputs.get((run.id, run.error_ref)) if ended else None,
        )
        if ended:
            manifest = await self._describe_run(run, document, outputs.get((run.id, run.output_ref)))
            await self._documents.put(manifest_path(run.tenant, name), encode_document(manifest))
        for _ in range(CONFLICTS_MAX):
            if known.seq >= item.seq or known.is_terminal:  # another writer has published it
                break
            if await self._replace(run, known, item.seq, encode_document(document)):
                known.seq, known.word, known.current = item.seq, document.status, document.current_step
                self.states += 1
                break
        else:
            raise DocumentChanged(status_path(run.tenant, name))
        known.steps = max(known.steps, item.steps)
        known.seen |= {(step.idx, step.no) for step in completed}
        known.since = max(known.since, at)

    async def _replace(self, run: PublishedRun, known: WrittenRun, seq: int, body: bytes) -> bool:
        """Write status.json over the version that is known (law 2). False: it has another version, which is known now."""
        path = status_path(run.tenant, ids.run_text(run.id))
        try:
            known.version = await self._documents.replace(path, body, expected=known.version, mark=seq)
        except DocumentChanged:
            found = await self._read_published(run.tenant, run.id)
            known.version, known.seq, known.word = found.version, found.seq, found.word
            return False
        return True

    async def _describe_run(self, run: PublishedRun, document: StatusDocument, output: Any) -> RunManifest:
        rows = await self._rows.read_rows({run.id: 0})
        steps = list_completed(rows.steps.get(run.id, ()))
        return RunManifest(
            run_id=document.run_id,
            agent_slug=document.agent_slug,
            status=document.status,
            started_at=document.started_at,
            finished_at=document.finished_at,
            steps=[
                ManifestStep(step=number, name=step.name, path=f"steps/{number}.json")
                for number, step in enumerate(steps, start=1)
            ],
            proposals_created=document.proposals_created,
            output=output if run.status == "succeeded" else None,
        )


def _word(status: str, last: str, run: PublishedRun) -> str:
    """The document's word for a status. Some states have none: the last word stays."""
    word = profiles.get(PROFILE).run.words.get(status, status)
    if isinstance(word, str):
        return word
    return last or ("running" if run.started_at is not None else "queued" if run.planned else "requested")


def _describe_step(run_id: str, number: int, step: FinishedStep, stored: Any) -> PublishedStep:
    output = stored
    if step.output is not None:
        output = None if is_reference(step.output) else decode_payload(step.output)
    return PublishedStep(
        run_id=run_id,
        step=number,
        name=step.name,
        status="skipped" if step.reason == CONDITION_FALSE else "completed",
        tries=step.tries,
        completed_at=to_datetime(step.at),
        output=output,
        condition=step.condition,
    )


async def _gather(work: Iterable[Awaitable[T]]) -> list[T]:
    """Wait for all of it, so that nothing is written any more when it has failed. Then raise the first failure."""
    done = await asyncio.gather(*work, return_exceptions=True)
    for one in done:
        if isinstance(one, BaseException):
            raise one
    return done  # type: ignore[return-value]  # no exception is among them
