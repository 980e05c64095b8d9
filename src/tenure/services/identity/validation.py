"""What names, ids, roles and times of people and their keys may be; what is wrong is told with its place."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from datetime import UTC, datetime, timedelta

import msgspec

from tenure.clock import SECOND_US
from tenure.errors import Detail, TenureError
from tenure.limits import NAME_CHARS_MAX
from tenure.services.identity.principals import ROLES, new_id

ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
GROUPS_MAX = 50
_ID = re.compile(ID_PATTERN)
_LOGIN = re.compile(r"[A-Za-z0-9_-]{1,100}(\[bot\])?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def invalid_field(path: str, problem: str) -> TenureError:
    """One thing is wrong."""
    return TenureError("INVALID_INPUT", f"{path}: {problem}", (Detail(path, problem),))


def already_exists(what: str, chosen: str) -> TenureError:
    """There is one already."""
    return TenureError("ALREADY_EXISTS", f"there is a {what} {chosen!r} already")


def key_not_found(key_id: str) -> TenureError:
    """There is none with this id. Who took a whole key for its id is told so, and does not find the secret in a log."""
    if key_id.startswith("tn_"):
        return TenureError(
            "KEY_NOT_FOUND", "this is no id of a key; of `tn_ID_SECRET` it is the part ID alone"
        )
    return TenureError("KEY_NOT_FOUND", f"there is no key {key_id[:64]!r}")


def is_id(text: str) -> bool:
    """Whether a text can be the id of something here; what cannot is not even looked for."""
    return len(text) <= 64 and _ID.fullmatch(text) is not None


def check_or_make_id(given: str | None, prefix: str) -> str:
    """The id somebody chose, or a new one."""
    if given is None:
        return new_id(prefix)
    if not is_id(given):
        raise invalid_field(
            "id", "an id has 1 to 64 letters, digits, dots, dashes and underscores, a letter or digit first"
        )
    return given


def check_name(text: str, fewest: int = 1) -> str:
    """A name for people to read."""
    if not fewest <= len(text.strip()) <= len(text) <= NAME_CHARS_MAX or not text.isprintable():
        raise invalid_field("name", f"a name is printable and has {fewest} to {NAME_CHARS_MAX} characters")
    return text


def check_roles(given: Collection[str]) -> str:
    """Roles, as they are stored."""
    unknown = [role for role in given if role not in ROLES]
    if unknown:
        raise invalid_field("roles", f"{unknown[0][:64]!r} is not one of {', '.join(ROLES)}")
    if not given:
        raise invalid_field("roles", f"name at least one of {', '.join(ROLES)}")
    return _stored("roles", given)


def check_groups(given: Collection[str]) -> str:
    """Groups, as they are stored."""
    if len(given) > GROUPS_MAX:
        raise invalid_field("groups", f"at most {GROUPS_MAX}")
    wrong = [group for group in given if not 1 <= len(group) <= NAME_CHARS_MAX or not group.isprintable()]
    if wrong:
        raise invalid_field("groups", f"a group is printable and has 1 to {NAME_CHARS_MAX} characters")
    return _stored("groups", given)


def check_login(given: str | None) -> str | None:
    """A login at GitHub, as it is compared."""
    if given is None or given == "":
        return None
    if _LOGIN.fullmatch(given) is None:
        raise invalid_field(
            "github", "a login has 1 to 100 letters, digits, dashes and underscores, or a bot's [bot]"
        )
    return given.lower()


def _stored(what: str, given: Collection[str]) -> str:
    if len(set(given)) < len(given):
        raise invalid_field(what, "one of them is there twice")
    return msgspec.json.encode(sorted(given)).decode()


def check_seconds(what: str, seconds: float, least: float, most: float) -> None:
    """Refuse a time that is no time."""
    if not math.isfinite(seconds) or not least <= seconds <= most:
        raise invalid_field(what, f"{least:g} to {most:g} seconds")


def expiry_us(expires_at: datetime | None, now: int) -> int | None:
    """When a key expires, in microseconds."""
    if expires_at is None:
        return None
    at = (expires_at - _EPOCH) // timedelta(microseconds=1)
    if at <= now + SECOND_US:
        raise invalid_field("expires_at", "it is not in the future")
    return at
