"""What may be wrong with a bundle. Codes are for programs and stay what they are; docs/evidence.md lists them."""

from __future__ import annotations

CODES: dict[str, str] = {
    "BUNDLE_UNREADABLE": "It is no zip, or it is damaged or cut short.",
    "BUNDLE_TOO_LARGE": "It is larger than a bundle may be.",
    "BUNDLE_IRREGULAR": "It is not in the one form of a bundle: hidden bytes, a name twice, compression, other names.",
    "MANIFEST_INVALID": "The manifest cannot be read, or is not in the format that it names.",
    "FORMAT_UNKNOWN": "The bundle has a format that this version does not know.",
    "FILE_MISSING": "A file that the manifest lists is not there.",
    "FILE_EXTRA": "There is a file that the manifest does not list.",
    "FILE_CHANGED": "A file is not what the manifest says.",
    "EVENT_INVALID": "A line of the events cannot be read.",
    "EVENT_CHANGED": "An event does not have the hash that follows from it and the one before.",
    "EVENT_MISSING": "An event is not there.",
    "EVENT_INSERTED": "There is an event that does not belong there.",
    "EVENTS_REORDERED": "Events are not in their order.",
    "EVENTS_TRUNCATED": "The last events are not there.",
    "CHAIN_HEAD_DIFFERS": "The chain of events ends in another hash, or after another number of events, than the manifest says.",
    "CONTENTS_DIFFER": "A file says something else than the events do.",
    "PART_GAP": "A supplement does not go on where the part before it ends.",
    "STATEMENT_MISSING": "There is no statement beside the bundle.",
    "STATEMENT_INVALID": "The statement cannot be read, or is no in-toto statement about evidence.",
    "STATEMENT_OF_ANOTHER": "The statement is about another bundle, or about other contents of this one.",
    "UNSIGNED": "The statement has no signature.",
    "KEY_UNTRUSTED": "The statement is signed by a key that is not trusted.",
    "KEY_REVOKED": "The statement is signed by a key that was revoked by then.",
    "SIGNATURE_WRONG": "The signature is not that key's over this statement.",
    "CHECKPOINT_INVALID": "The ledger's checkpoint cannot be read or believed.",
    "PROOF_MISSING": "There is no proof of the ledger beside the bundle that fits the checkpoint.",
    "PROOF_INVALID": "The proof of the ledger is not in its one form, or its own checkpoint cannot be believed.",
    "NOT_IN_LEDGER": "The ledger of the checkpoint does not have this bundle.",
}


class Wrong(Exception):
    """The first thing that is wrong with a bundle: a code, the place, and what it is in words."""

    def __init__(self, code: str, place: str, message: str) -> None:
        assert code in CODES, code
        super().__init__(f"{code} at {place}: {message}")
        self.code = code
        self.place = place
        self.message = message
