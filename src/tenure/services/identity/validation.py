"""Checks of names, ids, roles and times of people, clients and keys. Each error names its field."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from datetime import UTC, datetime, timedelta

import msgspec

from tenure.clock import SECOND_US
from tenure.errors import TenureError, field_error
from tenure.limits import NAME_CHARS_MAX
from tenure.services.identity.principals import ROLES, new_id

ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
GROUPS_MAX = 50
_ID = re.compile(ID_PATTERN)
_LOGIN = re.compile(r"[A-Za-z0-9_-]{1,100}(\[bot\])?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def already_exists(what: str, chosen: str) -> TenureError:
    return TenureError("ALREADY_EXISTS", f"{what} {chosen!r} exists already")


def key_not_found(key_id: str) -> TenureError:
    """The error for an unknown id. If it is a whole key, the message does not repeat the secret."""
    is_key = key_id.startswith("tn_")
    found = "this is a key, not its id; the id is the part ID of `tn_ID_SECRET`"
    return TenureError("KEY_NOT_FOUND", found if is_key else f"there is no key {key_id[:64]!r}")


def is_id(text: str) -> bool:
    """Whether a text has the form of an id. A text without it is not looked up."""
    return _ID.fullmatch(text) is not None


def check_or_make_id(given: str | None, prefix: str) -> str:
    if given is None:
        return new_id(prefix)
    if not is_id(given):
        raise field_error(
            "id",
            "an id must have 1 to 64 letters, digits, dots, dashes and underscores, and begin with a letter or digit",
        )
    return given


def check_name(text: str, fewest: int = 1) -> str:
    if not fewest <= len(text.strip()) <= len(text) <= NAME_CHARS_MAX or not text.isprintable():
        raise field_error("name", f"a name must have {fewest} to {NAME_CHARS_MAX} printable characters")
    return text


def check_roles(given: Collection[str]) -> str:
    """Roles as stored JSON."""
    if unknown := [role for role in given if role not in ROLES]:
        raise field_error("roles", f"{unknown[0][:64]!r} is not one of {', '.join(ROLES)}")
    if not given:
        raise field_error("roles", f"name at least one of {', '.join(ROLES)}")
    return _encode_set("roles", given)


def check_groups(given: Collection[str]) -> str:
    """Groups as stored JSON."""
    if len(given) > GROUPS_MAX:
        raise field_error("groups", f"at most {GROUPS_MAX} groups are allowed")
    if not all(1 <= len(group) <= NAME_CHARS_MAX and group.isprintable() for group in given):
        raise field_error("groups", f"a group must have 1 to {NAME_CHARS_MAX} printable characters")
    return _encode_set("groups", given)


def check_login(given: str | None) -> str | None:
    """A GitHub login in lower case."""
    if not given:
        return None
    if _LOGIN.fullmatch(given) is None:
        raise field_error(
            "github", "a login has 1 to 100 letters, digits, dashes and underscores, and may end with [bot]"
        )
    return given.lower()


def _encode_set(what: str, given: Collection[str]) -> str:
    if len(set(given)) < len(given):
        raise field_error(what, "an item is listed twice")
    return msgspec.json.encode(sorted(given)).decode()


def check_seconds(what: str, seconds: float, least: float, most: float) -> None:
    if not math.isfinite(seconds) or not least <= seconds <= most:
        raise field_error(what, f"must be {least:g} to {most:g} seconds")


def expiry_us(expires_at: datetime | None, now: int) -> int | None:
    if expires_at is None:
        return None
    at = (expires_at - _EPOCH) // timedelta(microseconds=1)
    if at <= now + SECOND_US:
        raise field_error("expires_at", "must be in the future")
    return at
