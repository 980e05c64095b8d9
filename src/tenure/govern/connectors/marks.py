"""Marks: how an effect is found again whose service knows no keys.

Law: a mark stands for tenant and key and shows neither. It is at the very end of what we wrote, and nobody else may write one there through
us.
"""

from __future__ import annotations

from hashlib import sha256

from tenure.govern.connector import Call
from tenure.govern.connectors.faults import failed

HIDDEN = "<!-- tenure:"


def mark(call: Call) -> str:
    """What stands for the key of a call."""
    return sha256(f"{call.tenant}\0{call.key}".encode()).hexdigest()[:32]


def hidden(call: Call) -> str:
    """The mark as HTML that does not show."""
    return f"{HIDDEN}{mark(call)} -->"


def refuse_marks(text: str, sign: str) -> None:
    """Refuse a text that has a mark of its own."""
    if sign in text:
        raise failed(
            "not_done", "INVALID_INPUT", f"a text cannot have {sign!r} in it: our own marks begin so"
        )


def text_digest(text: str) -> str:
    """What a text is compared by, whichever ends its lines have there."""
    return sha256("\n".join(line.rstrip() for line in text.strip().splitlines()).encode()).hexdigest()
