"""Every kind of tampering with evidence is detected and named."""

from __future__ import annotations

import base64
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest

from tenure import ids
from tenure.govern.evidence.archive import FILES_MAX, pack_zip, unpack_zip
from tenure.govern.evidence.bundle import assemble_part
from tenure.govern.evidence.defects import DEFECT_CODES, EvidenceDefect
from tenure.govern.evidence.statement import open_envelope
from tenure.govern.evidence.verification import (
    EvidenceFiles,
    exit_code,
    read_events,
    read_manifest,
    verify_parts,
)
from tenure.kernel import history
from tenure.kernel.run_rows import EventRow
from tenure.proof.signatures import TrustedKeys
from tests.govern.evidence_samples import Sealed, relist

Lines = list[dict[str, Any]]
Files = dict[str, bytes]


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Sealed:
    return Sealed(tmp_path_factory.mktemp("sealed"))


def test_an_untouched_bundle_has_no_defect(sealed: Sealed) -> None:
    reports = verify_parts([sealed.bundle, sealed.supplement, sealed.foreign], sealed.trust)
    assert [report.wrong for report in reports] == [None, None, None]
    assert reports[0].key == sealed.signer.id
    assert exit_code(reports, sealed.trust) == 0


def test_without_a_key_only_integrity_is_verified(sealed: Sealed) -> None:
    reports = verify_parts([sealed.bundle])
    assert exit_code(reports, None) == 3
    assert any("who sealed it" in line for line in reports[0].not_checked)


def test_without_a_checkpoint_the_report_lists_unchecked_parts(sealed: Sealed) -> None:
    (report,) = verify_parts([sealed.bundle], sealed.trust)
    payloads, line = report.not_checked
    assert "digests, not the bytes" in payloads
    for word in ("dropped", "truncated", "backup"):
        assert word in line


# ------------------------------------------------------------------------------------------- the events


def _edit(lines: Lines) -> None:
    lines[3]["actor"] = "mallory"


def _edit_body(lines: Lines) -> None:
    lines[3]["body"] = lines[3]["body"].replace("done", "fine")


def _delete(lines: Lines) -> None:
    del lines[3]


def _delete_and_renumber(lines: Lines) -> None:
    del lines[3]
    for seq, line in enumerate(lines, 1):
        line["seq"] = seq


def _insert(lines: Lines) -> None:
    lines.insert(3, dict(lines[2]))


def _append(lines: Lines) -> None:
    lines.append({**lines[-1], "seq": lines[-1]["seq"] + 1})


def _reorder(lines: Lines) -> None:
    lines[3], lines[4] = lines[4], lines[3]


def _truncate(lines: Lines) -> None:
    del lines[-2:]


def _unreadable(lines: Lines) -> None:
    lines[3]["hash"] = "none"


@pytest.mark.parametrize(
    ("change", "code", "place"),
    [
        (_edit, "EVENT_CHANGED", "line 4"),
        (_edit_body, "EVENT_CHANGED", "line 4"),
        (_delete, "EVENT_MISSING", "line 4"),
        (_delete_and_renumber, "EVENT_CHANGED", "line 4"),
        (_insert, "EVENT_INSERTED", "line 4"),
        (_append, "EVENT_INSERTED", "line"),
        (_reorder, "EVENTS_REORDERED", "line 4"),
        (_truncate, "EVENTS_TRUNCATED", "events.jsonl"),
        (_unreadable, "EVENT_INVALID", "line 4"),
    ],
)
def test_a_tampered_event_is_named(
    sealed: Sealed, change: Callable[[Lines], None], code: str, place: str
) -> None:
    wrong = sealed.check(sealed.with_events(change)).wrong
    assert wrong is not None
    assert wrong.code == code
    assert place in wrong.place


def _rechained(sealed: Sealed, change: Callable[[list[EventRow]], None]) -> bytes:
    """Return a bundle with a rewritten, consistent history, as an attacker without the key can make it."""
    manifest = read_manifest(sealed.files)
    events = read_events(sealed.files["events.jsonl"], manifest)
    change(events)
    before = b""
    for seq, event in enumerate(events, 1):
        event.seq = seq
        event.hash = before = history.rehash(event, before, manifest.tenant)
    return assemble_part(ids.run_int(manifest.run), manifest.tenant, 0, b"", events).zip


def test_a_rewritten_history_does_not_match_the_signature(sealed: Sealed) -> None:
    def forge(events: list[EventRow]) -> None:
        events[1].actor = "mallory"

    forged = _rechained(sealed, forge)
    (alone,) = verify_parts([EvidenceFiles(name="x", zip=forged)])
    assert alone.wrong is None, "the history is consistent, so only the signature can reveal the change"
    wrong = sealed.check(forged).wrong
    assert wrong is not None
    assert wrong.code == "STATEMENT_OF_ANOTHER"


# -------------------------------------------------------------------------------------------- the files


def _drop_file(files: Files) -> None:
    del files["receipts.json"]


def _drop_events(files: Files) -> None:
    del files["events.jsonl"]


def _add_file(files: Files) -> None:
    files["extra.json"] = b"{}\n"


def _add_listed_file(files: Files) -> None:
    files["extra.json"] = b"{}\n"
    relist(files)


def _change_file(files: Files) -> None:
    files["approvals.json"] = files["approvals.json"].replace(b"ada", b"eve")


def _change_listed_file(files: Files) -> None:
    _change_file(files)
    relist(files)


def _change_costs(files: Files) -> None:
    files["costs.json"] = b"[1]\n"
    relist(files)


def _manifest(**facts: Any) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        files["manifest.json"] = json.dumps({**json.loads(files["manifest.json"]), **facts}).encode()

    return change


def _other_head(files: Files) -> None:
    chain = json.loads(files["manifest.json"])["chain"]
    _manifest(chain={**chain, "head": "00" * 32})(files)


def _drop_manifest(files: Files) -> None:
    del files["manifest.json"]


def _nest(files: Files) -> None:
    files["manifest.json"] = b"[" * 100_000


@pytest.mark.parametrize(
    ("change", "code", "place"),
    [
        (_drop_file, "FILE_MISSING", "receipts.json"),
        (_drop_events, "FILE_MISSING", "events.jsonl"),
        (_drop_manifest, "FILE_MISSING", "manifest.json"),
        (_add_file, "FILE_EXTRA", "extra.json"),
        (_add_listed_file, "FILE_EXTRA", "extra.json"),
        (_change_file, "FILE_CHANGED", "approvals.json"),
        (_change_listed_file, "CONTENTS_DIFFER", "approvals.json"),
        (_change_costs, "CONTENTS_DIFFER", "costs.json"),
        (_manifest(outcome="failed"), "CONTENTS_DIFFER", "manifest.json outcome"),
        (_manifest(tenant="beta"), "EVENT_CHANGED", "line 1"),
        (_manifest(part=1), "MANIFEST_INVALID", "manifest.json"),
        (_manifest(run="run_nobody"), "MANIFEST_INVALID", "manifest.json"),
        (_manifest(format="tenure-evidence-9"), "FORMAT_UNKNOWN", "manifest.json"),
        (_other_head, "CHAIN_HEAD_DIFFERS", "events.jsonl"),
        (_nest, "MANIFEST_INVALID", "manifest.json"),
    ],
)
def test_a_tampered_file_is_named(
    sealed: Sealed, change: Callable[[Files], None], code: str, place: str
) -> None:
    wrong = sealed.check(sealed.with_files(change)).wrong
    assert wrong is not None
    assert wrong.code == code
    assert place in wrong.place


# ---------------------------------------------------------------------------------------------- the zip


def _zip(files: dict[str, bytes], **how: Any) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **how) as archive:
        for name, body in files.items():
            archive.writestr(name, body)
    return out.getvalue()


def _twice(sealed: Sealed) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("manifest.json", sealed.files["manifest.json"])
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("manifest.json", sealed.files["manifest.json"])
    return out.getvalue()


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda s: s.bundle.zip[: len(s.bundle.zip) // 2], "BUNDLE_UNREADABLE"),
        (lambda s: s.bundle.zip[:-1], "BUNDLE_UNREADABLE"),
        (lambda _: b"", "BUNDLE_UNREADABLE"),
        (lambda s: b"hidden" + s.bundle.zip, "BUNDLE_IRREGULAR"),
        (lambda s: _zip(s.files), "BUNDLE_IRREGULAR"),
        (
            lambda _: _zip({"manifest.json": b"0" * 10_000_000}, compression=zipfile.ZIP_DEFLATED),
            "BUNDLE_IRREGULAR",
        ),
        (lambda s: _zip({**s.files, "../../etc/passwd": b""}), "BUNDLE_IRREGULAR"),
        (lambda s: _zip({**s.files, "/manifest.json": b""}), "BUNDLE_IRREGULAR"),
        (lambda _: _zip({f"f{n}.json": b"" for n in range(FILES_MAX + 1)}), "BUNDLE_IRREGULAR"),
        (_twice, "BUNDLE_IRREGULAR"),
    ],
)
def test_a_damaged_or_hostile_zip_is_refused(
    sealed: Sealed, make: Callable[[Sealed], bytes], code: str
) -> None:
    wrong = sealed.check(make(sealed)).wrong
    assert wrong is not None
    assert wrong.code == code


def test_every_changed_byte_of_a_zip_is_detected(sealed: Sealed) -> None:
    """This holds for every byte, even without a key."""
    dice = random.Random(4)
    for _ in range(300):
        body = bytearray(sealed.bundle.zip)
        body[dice.randrange(len(body))] ^= dice.randrange(1, 256)
        (report,) = verify_parts([EvidenceFiles(name="x", zip=bytes(body))])
        assert report.wrong is not None
        assert report.wrong.code in DEFECT_CODES


# -------------------------------------------------------------------------------- statement and signature


def test_the_statement_of_another_bundle_is_detected(sealed: Sealed) -> None:
    for envelope in (sealed.foreign.envelope, sealed.supplement.envelope):
        wrong = sealed.check(envelope=envelope).wrong
        assert wrong is not None
        assert wrong.code == "STATEMENT_OF_ANOTHER"


def test_a_bundle_in_place_of_another_is_detected(sealed: Sealed) -> None:
    wrong = sealed.check(sealed.foreign.zip).wrong
    assert wrong is not None
    assert wrong.code == "STATEMENT_OF_ANOTHER"


def test_a_statement_signed_by_an_unknown_key_is_not_trusted(sealed: Sealed) -> None:
    wrong = sealed.check(envelope=sealed.signed_by(sealed.other)).wrong
    assert wrong is not None
    assert wrong.code == "KEY_UNTRUSTED"


def test_a_signature_with_a_trusted_key_id_must_verify_with_that_key(sealed: Sealed) -> None:
    forged = json.loads(sealed.signed_by(sealed.other))
    forged["signatures"][0]["keyid"] = sealed.signer.id
    written = json.dumps(forged, separators=(",", ":")).encode() + b"\n"
    wrong = sealed.check(envelope=written).wrong
    assert wrong is not None
    assert wrong.code == "SIGNATURE_WRONG"


def test_a_changed_statement_does_not_match_its_signature(sealed: Sealed) -> None:
    def later(envelope: dict[str, Any]) -> None:
        payload = json.loads(base64.b64decode(envelope["payload"]))
        payload["predicate"]["sealed_at"] += 1
        envelope["payload"] = base64.b64encode(json.dumps(payload).encode()).decode()

    wrong = sealed.check(envelope=sealed.envelope_with(later)).wrong
    assert wrong is not None
    assert wrong.code == "SIGNATURE_WRONG"


def test_a_revoked_key_is_trusted_for_earlier_seals(sealed: Sealed) -> None:
    assert sealed.bundle.envelope is not None
    at = open_envelope(sealed.bundle.envelope).statement.predicate.sealed_at
    for revoked_from, code in ((at + 1, None), (at, "KEY_REVOKED")):
        file = json.loads(sealed.trust.dump())
        file["keys"][0]["revoked_from"] = revoked_from
        wrong = sealed.check(trust=TrustedKeys.parse(json.dumps(file).encode())).wrong
        assert (None if wrong is None else wrong.code) == code


def test_a_missing_signature_or_statement_is_a_defect_if_a_key_is_given(sealed: Sealed) -> None:
    unsigned = sealed.envelope_with(lambda envelope: envelope.update(signatures=[]))
    wrong = sealed.check(envelope=unsigned).wrong
    assert wrong is not None
    assert wrong.code == "UNSIGNED"
    (report,) = verify_parts([EvidenceFiles(name="x", zip=sealed.bundle.zip)], sealed.trust)
    assert report.wrong is not None
    assert report.wrong.code == "STATEMENT_MISSING"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[" * 100_000,
        b'{"payload":"!","payloadType":"application/vnd.in-toto+json","signatures":[]}',
    ],
)
def test_an_unreadable_statement_is_a_defect(sealed: Sealed, body: bytes) -> None:
    wrong = sealed.check(envelope=body).wrong
    assert wrong is not None
    assert wrong.code == "STATEMENT_INVALID"


def test_a_statement_must_list_every_file_of_its_bundle(sealed: Sealed) -> None:
    assert sealed.bundle.envelope is not None
    payload = json.loads(base64.b64decode(json.loads(sealed.bundle.envelope)["payload"]))
    payload["subject"] = payload["subject"][:-1]
    wrong = sealed.check(envelope=sealed.signed_by(sealed.signer, json.dumps(payload).encode())).wrong
    assert wrong is not None
    assert wrong.code == "STATEMENT_OF_ANOTHER"


def test_the_statement_lists_the_zip_and_every_file(sealed: Sealed) -> None:
    assert sealed.bundle.envelope is not None
    statement = open_envelope(sealed.bundle.envelope).statement
    listed = {subject.name: subject.digest.sha256 for subject in statement.subject}
    assert listed.pop(sealed.bundle.name) == sha256(sealed.bundle.zip).hexdigest()
    assert listed == {name: sha256(body).hexdigest() for name, body in sealed.files.items()}
    assert pack_zip(sealed.files) == sealed.bundle.zip


def test_overlapping_files_in_a_zip_are_refused() -> None:
    """A small zip with overlapping files could otherwise fill the memory of the verifier."""
    content = b"x" * 100_000
    one = pack_zip({"a.json": content})
    place = one.index(b"PK\x01\x02")
    entry = one[place : one.index(b"PK\x05\x06")]
    count = FILES_MAX
    entries = b"".join(entry.replace(b"a.json", f"a-{n:02d}.json".encode()) for n in range(count))
    entries = entries.replace(struct.pack("<H", 6) + b"\0" * 4, struct.pack("<H", 9) + b"\0" * 4)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, len(entries), place, 0)
    with pytest.raises(EvidenceDefect) as wrong:
        unpack_zip(one[:place] + entries + end)
    assert (wrong.value.code, "larger than the zip" in wrong.value.message) == ("BUNDLE_IRREGULAR", True)
