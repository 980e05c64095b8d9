"""Zip files in exactly one form, so that the same files always give the same bytes.

Laws:
1. Files are stored without compression, because the output of a compressor depends on its version. So nothing is larger inside than
   outside, and the size of the zip bounds the work of reading it.
2. `manifest.json` comes first, then the other files by name. Times, permissions, flags and versions are constants. There are no comments
   and no extra fields.
3. Any other form is refused: packing the files again must give the same bytes. So nothing hides between the files, no name occurs
   twice, and two readers never see different contents.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping

from tenure.govern.evidence.defects import EvidenceDefect

MANIFEST = "manifest.json"
ZIP_BYTES_MAX = 256 * 1024 * 1024
FILES_MAX = 64
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}\.(json|jsonl)")
_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_DATE = 0x0021
"""The first day of 1980, the earliest time in a zip."""
_UNIX, _VERSION, _MODE = 3 << 8, 20, 0o100644 << 16


def pack_zip(files: Mapping[str, bytes]) -> bytes:
    """The zip of these files (law 2), written field by field: a library could change its output."""
    body, directory = bytearray(), bytearray()
    for name in sorted(files, key=lambda name: (name != MANIFEST, name)):
        content, named = files[name], name.encode("ascii")
        sizes = (zlib.crc32(content), len(content), len(content), len(named), 0)
        header = (_VERSION, 0, 0, 0, _DATE, *sizes)
        directory += (
            _CENTRAL.pack(b"PK\x01\x02", _UNIX | _VERSION, *header, 0, 0, 0, _MODE, len(body)) + named
        )
        body += _LOCAL.pack(b"PK\x03\x04", *header) + named + content
    return bytes(
        body
        + directory
        + _END.pack(b"PK\x05\x06", 0, 0, len(files), len(files), len(directory), len(body), 0)
    )


def unpack_zip(body: bytes) -> dict[str, bytes]:
    if len(body) > ZIP_BYTES_MAX:
        raise EvidenceDefect(
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
        # Anything that a hostile zip makes the reader raise. A truncated zip has lost its directory, which is at the end.
        raise EvidenceDefect("BUNDLE_UNREADABLE", "the zip", f"it is damaged or truncated: {fault}") from None
    if pack_zip(files) != body:
        raise EvidenceDefect(
            "BUNDLE_IRREGULAR",
            "the zip",
            "it does not have the form of a bundle: something is hidden in it, or it was packed again",
        )
    return files


def _read(archive: zipfile.ZipFile, size: int) -> dict[str, bytes]:
    listed = archive.infolist()
    if len(listed) > FILES_MAX:
        raise EvidenceDefect(
            "BUNDLE_IRREGULAR", "the zip", f"it has {len(listed)} files; a bundle has at most {FILES_MAX}"
        )
    if sum(about.file_size for about in listed) > size:
        # Overlapping files: few bytes outside could be very many inside.
        raise EvidenceDefect("BUNDLE_IRREGULAR", "the zip", "its files together are larger than the zip")
    files: dict[str, bytes] = {}
    for about in listed:
        name = about.filename
        if not _NAME.fullmatch(name):
            raise EvidenceDefect("BUNDLE_IRREGULAR", repr(name[:80]), "a bundle has no file with such a name")
        if name in files:
            raise EvidenceDefect("BUNDLE_IRREGULAR", name, "it occurs twice")
        if about.compress_type != zipfile.ZIP_STORED or about.file_size != about.compress_size:
            raise EvidenceDefect(
                "BUNDLE_IRREGULAR", name, "it is compressed; the files of a bundle are stored uncompressed"
            )
        files[name] = archive.read(about)
    return files
