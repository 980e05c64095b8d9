"""A zip in exactly one form, so that the same files are the same bytes everywhere.

Laws:
1. Files are stored, not compressed: what a compressor makes of them depends on its version. So nothing can be larger inside than
   outside, and reading is bounded by the size of the zip.
2. `manifest.json` comes first, the others by name. Times, permissions, flags and versions are constants; there are no comments
   and no extra fields.
3. Whatever is not in this form is refused: packing what was read must give the same bytes again. So nothing hides between
   the files, no name occurs twice, and two readers never see two contents.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping

from tenure.govern.evidence.wrong import Wrong

MANIFEST = "manifest.json"
ZIP_BYTES_MAX = 256 * 1024 * 1024
FILES_MAX = 64
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}\.(json|jsonl)")
_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_DATE = 0x0021
"""The first day of 1980, where the time of zips begins."""
_UNIX, _VERSION, _MODE = 3 << 8, 20, 0o100644 << 16


def packed(files: Mapping[str, bytes]) -> bytes:
    """The zip of these files (law 2), written out field by field: a library may change what it writes."""
    body, directory = bytearray(), bytearray()
    for name in in_order(files):
        content, named = files[name], name.encode("ascii")
        sizes = (zlib.crc32(content), len(content), len(content), len(named), 0)
        offset = len(body)
        body += _LOCAL.pack(b"PK\x03\x04", _VERSION, 0, 0, 0, _DATE, *sizes) + named + content
        directory += _CENTRAL.pack(
            b"PK\x01\x02", _UNIX | _VERSION, _VERSION, 0, 0, 0, _DATE, *sizes, 0, 0, 0, _MODE, offset
        )
        directory += named
    end = _END.pack(b"PK\x05\x06", 0, 0, len(files), len(files), len(directory), len(body), 0)
    return bytes(body + directory + end)


def in_order(names: Mapping[str, object]) -> list[str]:
    """Names as they follow each other in a bundle."""
    return sorted(names, key=lambda name: (name != MANIFEST, name))


def unpacked(body: bytes) -> dict[str, bytes]:
    """The files of a zip, or `Wrong`: see law 3."""
    if len(body) > ZIP_BYTES_MAX:
        raise Wrong(
            "BUNDLE_TOO_LARGE", "the zip", f"it has {len(body)} bytes; at most {ZIP_BYTES_MAX} are read"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            files = _read(archive, len(body))
    except (
        zipfile.BadZipFile,
        EOFError,
        OSError,
        ValueError,
        NotImplementedError,
        RuntimeError,
        OverflowError,
    ) as fault:
        # Whatever a hostile zip makes the reader raise; a short one has lost its directory, which is at its end.
        raise Wrong("BUNDLE_UNREADABLE", "the zip", f"it is damaged or cut short: {fault}") from None
    if packed(files) != body:
        raise Wrong(
            "BUNDLE_IRREGULAR",
            "the zip",
            "it is not in the one form of a bundle: something is hidden in it, or it was packed anew",
        )
    return files


def _read(archive: zipfile.ZipFile, size: int) -> dict[str, bytes]:
    listed = archive.infolist()
    if len(listed) > FILES_MAX:
        raise Wrong(
            "BUNDLE_IRREGULAR", "the zip", f"it has {len(listed)} files; a bundle has at most {FILES_MAX}"
        )
    if sum(about.file_size for about in listed) > size:
        # Files that lie over each other: few bytes outside would be very many inside.
        raise Wrong("BUNDLE_IRREGULAR", "the zip", "its files together are larger than it is")
    files: dict[str, bytes] = {}
    for about in listed:
        name = about.filename
        if not _NAME.fullmatch(name):
            raise Wrong("BUNDLE_IRREGULAR", repr(name[:80]), "no file of a bundle has such a name")
        if name in files:
            raise Wrong("BUNDLE_IRREGULAR", name, "it is there twice")
        if about.compress_type != zipfile.ZIP_STORED or about.file_size != about.compress_size:
            raise Wrong(
                "BUNDLE_IRREGULAR", name, "it is compressed; files of a bundle are stored as they are"
            )
        files[name] = archive.read(about)
    return files
