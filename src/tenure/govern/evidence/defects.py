"""Defects of a bundle. The codes are stable; docs/evidence.md lists them."""

from __future__ import annotations

DEFECT_CODES: dict[str, str] = {
    "BUNDLE_UNREADABLE": "It is not a zip, or it is damaged or truncated.",
    "BUNDLE_TOO_LARGE": "It is larger than a bundle may be.",
    "BUNDLE_IRREGULAR": "It does not have the form of a bundle: hidden bytes, duplicate names, compression or other names.",
    "MANIFEST_INVALID": "The manifest cannot be read, or does not match the format that it names.",
    "FORMAT_UNKNOWN": "The bundle has a format that this version does not know.",
    "FILE_MISSING": "A file that the manifest lists is missing.",
    "FILE_EXTRA": "The bundle contains a file that the manifest does not list.",
    "FILE_CHANGED": "A file differs from the manifest.",
    "EVENT_INVALID": "A line of the events cannot be read.",
    "EVENT_CHANGED": "The hash of an event does not follow from the event and the previous hash.",
    "EVENT_MISSING": "An event is missing.",
    "EVENT_INSERTED": "There is an event that does not belong there.",
    "EVENTS_REORDERED": "Events are out of order.",
    "EVENTS_TRUNCATED": "The last events are missing.",
    "CHAIN_HEAD_DIFFERS": "The chain of events ends with a different hash, or after a different number of events, than the manifest says.",
    "CONTENTS_DIFFER": "A file contradicts the events.",
    "PART_GAP": "A supplement does not continue the previous part.",
    "STATEMENT_MISSING": "There is no statement next to the bundle.",
    "STATEMENT_INVALID": "The statement cannot be read, or is not an in-toto statement about evidence.",
    "STATEMENT_OF_ANOTHER": "The statement is about another bundle, or about other contents of this one.",
    "UNSIGNED": "The statement has no signature.",
    "KEY_UNTRUSTED": "The statement is signed by a key that is not trusted.",
    "KEY_REVOKED": "The statement is signed by a key that had been revoked.",
    "SIGNATURE_WRONG": "The signature does not match that key and this statement.",
    "CHECKPOINT_INVALID": "The ledger's checkpoint cannot be read or is not trusted.",
    "PROOF_MISSING": "There is no ledger proof next to the bundle that matches the checkpoint.",
    "PROOF_INVALID": "The ledger proof does not have its one form, or its own checkpoint is not trusted.",
    "NOT_IN_LEDGER": "The ledger of the checkpoint does not contain this bundle.",
}


class EvidenceDefect(Exception):
    """The first defect of a bundle: its code, its place, and a message."""

    def __init__(self, code: str, place: str, message: str) -> None:
        assert code in DEFECT_CODES, code
        super().__init__(f"{code} at {place}: {message}")
        self.code = code
        self.place = place
        self.message = message
