"""A bundle checked with nothing but files: no database, no network, no trust in whoever sent it.

Laws:
1. It names the first thing that is wrong (`wrong.CODES`) and where. From the inside out: the zip, the manifest, the events, the
   other files, what they say against what the events say, the statement, its signature, the ledger.
2. What was not checked is said: the payloads, which no bundle has; without a key who sealed it; without a checkpoint whether a run
   was dropped, a history cut off or an old backup restored.
3. Nothing in a bundle is believed before it is checked, and what is read is bounded: see `archive`.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from tenure import ids
from tenure.errors import TenureError
from tenure.govern.evidence.archive import MANIFEST, unpacked
from tenure.govern.evidence.bundle import (
    EVENTS,
    FORMAT,
    Line,
    Manifest,
    assembled,
    digest_of,
    file_name,
)
from tenure.govern.evidence.ledgered import check_ledger
from tenure.govern.evidence.statement import Predicate, Statement, opened, predicate_of
from tenure.govern.evidence.wrong import Wrong
from tenure.govern.signing import Trust
from tenure.kernel import history
from tenure.kernel.model import Event

PROVEN, WRONG, UNPROVEN = 0, 1, 3
"""How `tenure verify` ends: everything that was asked is proven; something is wrong; nothing is wrong, but who sealed it was not
checked. (2 is a wrong use of the command line.)"""

UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""What decoding of a stranger's JSON may raise."""
NO_KEY = "who sealed it: give --key or --trust"
NO_PAYLOADS = "what the payloads say (inputs, outputs, questions, results): a bundle has their salted digests, not the bytes"
NO_CHECKPOINT = "whether runs were dropped, histories cut off or an old backup restored: give --checkpoint"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, and where."""

    code: str
    place: str
    message: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a part."""

    bundle: str
    run: str | None = None
    tenant: str | None = None
    part: int | None = None
    events: int | None = None
    """How long the run's chain is at its end."""
    head: str | None = None
    outcome: str | None = None
    key: str | None = None
    """The key that signed it, where that was checked."""
    sealed_at: int | None = None
    checked: list[str] = []
    not_checked: list[str] = []
    wrong: Problem | None = None


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a part: the zip, and what lies beside it."""

    name: str
    zip: bytes
    envelope: bytes | None = None
    proof: bytes | None = None


def exit_code(reports: Sequence[Report], trust: Trust | None) -> int:
    """How the program ends."""
    if any(report.wrong is not None for report in reports):
        return WRONG
    return UNPROVEN if trust is None else PROVEN


def verify(
    parts: Sequence[Given], trust: Trust | None = None, checkpoint: bytes | None = None
) -> list[Report]:
    """Check parts, each on its own and that those of one run go on from each other. The first that is wrong ends it."""
    reports: list[Report] = []
    ends: dict[str, Report] = {}
    for given in parts:
        check = _Check(given, trust, checkpoint)
        try:
            check.all(ends)
        except Wrong as wrong:
            problem = Problem(code=wrong.code, place=wrong.place, message=wrong.message)
            reports.append(
                Report(**check.facts, checked=check.checked, not_checked=check.not_checked, wrong=problem)
            )
            return reports
        report = Report(**check.facts, checked=check.checked, not_checked=check.not_checked)
        reports.append(report)
        ends[str(report.run)] = report
    return reports


class _Check:
    """One part under examination."""

    def __init__(self, given: Given, trust: Trust | None, checkpoint: bytes | None) -> None:
        self.given = given
        self.trust = trust
        self.checkpoint = checkpoint
        self.facts: dict[str, Any] = {"bundle": given.name}
        self.checked: list[str] = []
        self.not_checked: list[str] = []

    def all(self, ends: dict[str, Report]) -> None:
        """Law 1. `ends` has what is known of the parts before, by run."""
        files = unpacked(self.given.zip)
        manifest = read_manifest(files)
        chain = manifest.chain
        self.facts |= {"run": manifest.run, "tenant": manifest.tenant, "part": manifest.part}
        self.facts |= {"events": chain.last, "head": chain.head, "outcome": manifest.outcome}
        check_names(files, manifest)
        events = read_events(files[EVENTS], manifest)
        for name, listed in manifest.files.items():
            if digest_of(files[name]) != listed:
                raise Wrong("FILE_CHANGED", name, "its SHA-256 is not the one in the manifest")
        check_contents(files, manifest, events)
        self.checked += [
            f"{len(files)} files as the manifest lists them",
            f"events {chain.first} to {chain.last} chain to {chain.head[:12]}",
            "what the files say follows from the events",
        ]
        self.not_checked.append(NO_PAYLOADS)
        self._goes_on(manifest, ends)
        predicate = self._statement(manifest, files)
        if self.checkpoint is None:
            self.not_checked.append(NO_CHECKPOINT)
        else:
            self.checked.append(check_ledger(predicate, self.given.proof, self.checkpoint, self.trust))

    def _goes_on(self, manifest: Manifest, ends: dict[str, Report]) -> None:
        if manifest.part == 0:
            return
        before = ends.get(manifest.run)
        if before is None:
            self.not_checked.append(
                f"that it goes on from part {manifest.part - 1}: give that, too, before it"
            )
            return
        chain = manifest.chain
        expected = ((before.part or 0) + 1, (before.events or 0) + 1, before.head, before.tenant)
        if (manifest.part, chain.first, chain.before, manifest.tenant) != expected:
            raise Wrong(
                "PART_GAP",
                f"part {manifest.part}",
                f"it begins after event {chain.first - 1} with another head than part {before.part}, which ends with {before.events}",
            )
        self.checked.append(f"it goes on from part {before.part}")

    def _statement(self, manifest: Manifest, files: dict[str, bytes]) -> Predicate:
        """Law 1, of the envelope; what the statement says of the bundle."""
        if self.given.envelope is None:
            if self.trust is not None:
                raise Wrong("STATEMENT_MISSING", "the statement", "there is none beside the bundle")
            self.not_checked += ["its statement: there is none beside it", NO_KEY]
            return predicate_of(manifest, 0)
        try:
            envelope = opened(self.given.envelope)
        except ValueError as fault:
            raise Wrong("STATEMENT_INVALID", "the statement", f"it cannot be read: {fault}") from None
        check_statement(envelope.statement, manifest, files, sha256(self.given.zip).hexdigest())
        predicate = envelope.statement.predicate
        self.facts["sealed_at"] = predicate.sealed_at
        self.checked.append("its statement lists the zip and every file")
        if self.trust is None:
            self.not_checked.append(NO_KEY)
        else:
            self.facts["key"] = check_signature(
                envelope.signatures, envelope.signed, predicate.sealed_at, self.trust
            )
            self.checked.append(f"sealed by key {self.facts['key'][:12]}")
        return predicate


def read_manifest(files: dict[str, bytes]) -> Manifest:
    """The manifest, as far as it can be believed by itself."""
    if MANIFEST not in files:
        raise Wrong("FILE_MISSING", MANIFEST, "it is not in the bundle")
    try:
        named = msgspec.json.decode(files[MANIFEST], type=_Format)
        if named.format != FORMAT:
            raise Wrong(
                "FORMAT_UNKNOWN",
                MANIFEST,
                f"the format is {named.format[:60]!r}; this version knows {FORMAT}",
            )
        manifest = msgspec.json.decode(files[MANIFEST], type=Manifest)
        ids.run_int(manifest.run)
        bytes.fromhex(manifest.chain.before + manifest.chain.head)
    except (*UNREADABLE, TenureError) as fault:
        raise Wrong("MANIFEST_INVALID", MANIFEST, f"it cannot be read: {fault}") from None
    chain = manifest.chain
    if (
        manifest.part < 0
        or chain.first < 1
        or chain.last < chain.first
        or (manifest.part == 0) != (chain.first == 1)
    ):
        raise Wrong("MANIFEST_INVALID", MANIFEST, "there is no such piece of a chain")
    return manifest


class _Format(msgspec.Struct):
    format: str


def check_names(files: dict[str, bytes], manifest: Manifest) -> None:
    """The files are those of the manifest."""
    for name in sorted({EVENTS, *manifest.files}):
        if name not in files:
            raise Wrong("FILE_MISSING", name, "the manifest lists it, and it is not in the bundle")
    for name in files:
        if name != MANIFEST and name not in manifest.files:
            raise Wrong("FILE_EXTRA", name, "the manifest does not list it")


def read_events(body: bytes, manifest: Manifest) -> list[Event]:
    """The events, whose hashes follow from each other and lead to the manifest's head."""
    chain, run_id = manifest.chain, ids.run_int(manifest.run)
    lines = _lines(body)
    before, events = bytes.fromhex(chain.before), list[Event]()
    for place, (seq, line) in enumerate(zip(range(chain.first, chain.last + 1), lines, strict=False), 1):
        where = f"{EVENTS} line {place}"
        if line.seq != seq:
            raise _out_of_order(lines, place, seq, where)
        try:
            found = bytes.fromhex(line.hash)
            event = Event(
                run_id,
                seq,
                line.kind,
                line.at,
                line.actor,
                line.initiator,
                line.cause,
                line.body.encode(),
                found,
            )
            expected = history.rehash(event, before, manifest.tenant)
        except ValueError:
            raise Wrong("EVENT_INVALID", where, "it has texts or a hash that are none") from None
        if expected != event.hash:
            raise Wrong(
                "EVENT_CHANGED",
                where,
                f"event {seq} does not have the hash that follows from it and the one before",
            )
        before = event.hash
        events.append(event)
    if len(events) < chain.last - chain.first + 1:
        raise Wrong(
            "EVENTS_TRUNCATED", EVENTS, f"it ends with event {chain.first + len(events) - 1} of {chain.last}"
        )
    if len(lines) > len(events):
        raise Wrong(
            "EVENT_INSERTED",
            f"{EVENTS} line {len(events) + 1}",
            f"the chain ends with event {chain.last}, and here is one more",
        )
    if before.hex() != chain.head:
        raise Wrong(
            "CHAIN_HEAD_DIFFERS",
            EVENTS,
            f"the chain leads to {before.hex()[:12]}, the manifest says {chain.head[:12]}",
        )
    return events


def _lines(body: bytes) -> list[Line]:
    lines = []
    for place, text in enumerate(body.splitlines(), 1):
        try:
            lines.append(msgspec.json.decode(text, type=Line))
        except UNREADABLE as fault:
            raise Wrong("EVENT_INVALID", f"{EVENTS} line {place}", f"it cannot be read: {fault}") from None
    return lines


def _out_of_order(lines: list[Line], place: int, seq: int, where: str) -> Wrong:
    """Why the line at a place is not the event that belongs there."""
    found = lines[place - 1].seq
    numbers = [line.seq for line in lines]
    if numbers.count(found) > 1:
        return Wrong("EVENT_INSERTED", where, f"event {found} is there twice")
    if seq in numbers[place:]:
        return Wrong("EVENTS_REORDERED", where, f"event {found} stands where event {seq} belongs")
    return Wrong("EVENT_MISSING", where, f"event {seq} is not there")


def check_contents(files: dict[str, bytes], manifest: Manifest, events: list[Event]) -> None:
    """The files say what the events say: the bundle is built again and compared."""
    before, run_id = bytes.fromhex(manifest.chain.before), ids.run_int(manifest.run)
    try:
        again = assembled(
            run_id,
            manifest.tenant,
            manifest.part,
            before,
            events,
            outcome=manifest.outcome,
        )
    except (KeyError, TypeError, AttributeError, *UNREADABLE, TenureError) as fault:
        raise Wrong("CONTENTS_DIFFER", EVENTS, f"they tell no run that has ended: {fault!r}") from None
    for name, body in again.files.items():
        if name not in files:
            raise Wrong("FILE_MISSING", name, "every bundle has it")
        if name != MANIFEST and _decoded(name, files[name]) != _decoded(name, body):
            raise Wrong("CONTENTS_DIFFER", name, "it says something else than the events")
    facts = ("outcome", "finished_at", "chain", "counts")
    for fact in facts:
        if getattr(manifest, fact) != getattr(again.manifest, fact):
            raise Wrong("CONTENTS_DIFFER", f"{MANIFEST} {fact}", "it says something else than the events")
    if files.keys() != again.files.keys():
        raise Wrong("FILE_EXTRA", min(files.keys() - again.files.keys()), "no bundle has it")


def _decoded(name: str, body: bytes) -> Any:
    if name == EVENTS:
        return None  # it was read already
    try:
        return msgspec.json.decode(body)
    except UNREADABLE:
        return body


def check_statement(statement: Statement, manifest: Manifest, files: dict[str, bytes], digest: str) -> None:
    """The statement is about exactly this zip and these files."""
    said, subjects = statement.predicate, {one.name: one.digest.sha256 for one in statement.subject}
    if said != predicate_of(manifest, said.sealed_at):
        raise Wrong(
            "STATEMENT_OF_ANOTHER",
            "the statement",
            f"it is about part {said.part} of {said.run[:60]}, {said.events} events to {said.head[:12]}",
        )
    named = file_name(manifest.run, manifest.part)
    inside_out = sorted(
        files, key=lambda name: (name == MANIFEST, name)
    )  # the manifest and the zip change with every file
    expected = {**{name: digest_of(files[name]).sha256 for name in inside_out}, named: digest}
    for name, found in expected.items():
        if subjects.get(name) != found:
            raise Wrong(
                "STATEMENT_OF_ANOTHER", f"the statement's {name}", "its SHA-256 is another, or not listed"
            )
    if len(statement.subject) != len(expected):
        raise Wrong("STATEMENT_OF_ANOTHER", "the statement", "it lists files that are not in the bundle")


def check_signature(signatures: dict[str, bytes], signed: bytes, at: int, trust: Trust) -> str:
    """The key that is trusted and has signed. One suffices; a wrong signature in the name of a trusted key is not passed over."""
    if not signatures:
        raise Wrong("UNSIGNED", "the statement", "it has no signature: whoever sealed it had no key")
    first: Wrong | None = None
    by: str | None = None
    for key, signature in signatures.items():
        problem = trust.key_problem(key)
        if problem is not None:
            first = first or Wrong("KEY_UNTRUSTED", "the signature", problem)
        elif (problem := trust.problem(key, signed, signature, at)) is None:
            by = by or key
        elif trust.key_problem(key, at) is not None:
            first = first or Wrong("KEY_REVOKED", "the signature", problem)
        else:
            raise Wrong("SIGNATURE_WRONG", "the signature", problem)
    if by is None:
        assert first is not None
        raise first
    return by
