"""The file with the secrets of a runner: `NAME: env:VARIABLE` or `NAME: file:/PATH` on each line.

Law: the file names secrets and never holds their values. A line that is not a reference is refused without being repeated, because it may be the
secret itself.
"""

from __future__ import annotations

import re
from pathlib import Path

from tenure.errors import TenureError
from tenure.private_files import hide
from tenure.secrets import REFERENCE_FORM, is_reference

FILE_BYTES_MAX = 256 * 1024
SECRETS_MAX = 1_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")


def read_secrets_file(file: Path) -> dict[str, str]:
    """Name -> reference. INVALID_INPUT with the line of a problem."""
    hide(file)
    try:
        with file.open("rb") as opened:
            text = opened.read(FILE_BYTES_MAX + 1).decode()
    except (OSError, UnicodeDecodeError) as fault:
        raise TenureError("INVALID_INPUT", f"the file of secrets cannot be read: {fault}") from fault
    if len(text) > FILE_BYTES_MAX:
        raise TenureError("INVALID_INPUT", f"{file} has more than {FILE_BYTES_MAX} bytes")
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, separator, reference = (part.strip() for part in line.partition(":"))
        reference = reference.strip("'\"")
        if not separator or _NAME.fullmatch(name) is None:
            raise TenureError(
                "INVALID_INPUT", f"{file}:{number}: write NAME: env:VARIABLE or NAME: file:/PATH"
            )
        if not is_reference(reference):
            raise TenureError("INVALID_INPUT", f"{file}:{number}: {name} {REFERENCE_FORM}")
        if name in found:
            raise TenureError("INVALID_INPUT", f"{file}:{number}: {name} is named twice")
        found[name] = reference
        if reference.startswith("file:"):
            hide(reference.removeprefix("file:"))
    if len(found) > SECRETS_MAX:
        raise TenureError("INVALID_INPUT", f"{file} names more than {SECRETS_MAX} secrets")
    return found
