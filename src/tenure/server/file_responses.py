"""Stored files as responses.

Laws:
1. A file is sent piece by piece, each part checked against its digest. If a part is damaged, the connection breaks: the response is
   shorter than its Content-Length.
2. One range of bytes may be asked for, with `If-Range` also only if the file is still the same. Other ranges are ignored, as the standard
   allows.
"""

from __future__ import annotations

import re
from typing import Any

from litestar import Response
from litestar.response import Stream

from tenure.errors import TenureError
from tenure.reads.file_stream import StoredFile, stream_file
from tenure.server.request import ApiRequest


class FileStream(Stream):
    """A stream with the file's own type. (The framework would prefer the type that its route declares.)"""

    def to_asgi_response(self, *args: Any, **how: Any) -> Any:
        return super().to_asgi_response(*args, **{**how, "media_type": self.media_type})


_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def send_file(
    request: ApiRequest,
    file: StoredFile,
    headers: dict[str, str] | None = None,
    media_type: str = "application/octet-stream",
) -> Response[Any]:
    """A file, a range of it, or 304 if the client has it already."""
    tag = f'"{file.digest}"'
    sent = {**(headers or {}), "ETag": tag, "Accept-Ranges": "bytes"}
    if request.headers.get("if-none-match") == tag:
        return Response(content=b"", status_code=304, headers=sent)
    status, first, last = 200, 0, file.size - 1
    if request.headers.get("if-range", tag) == tag:
        asked = parse_range(request.headers.get("range"), file.size)
        if asked is not None:
            status, (first, last) = 206, asked
            sent["Content-Range"] = f"bytes {first}-{last}/{file.size}"
    sent["Content-Length"] = str(last - first + 1)
    pieces = stream_file(request.server.engine.artifacts, file, first, last)
    return FileStream(pieces, status_code=status, headers=sent, media_type=media_type)


def parse_range(text: str | None, size: int) -> tuple[int, int] | None:
    """The first and the last byte of a range; None: the whole. Raises RANGE_NOT_SATISFIABLE."""
    found = None if text is None else _RANGE.fullmatch(text.strip())
    if found is None or found[0] == "bytes=-":
        return None
    if not found[1]:
        first, last = max(size - int(found[2]), 0), size - 1
    else:
        first, last = int(found[1]), min(int(found[2] or size), size - 1)
        if found[2] and int(found[2]) < first:
            return None
    if first > last:
        raise TenureError("RANGE_NOT_SATISFIABLE", f"the file has {size} bytes; {text!r} was asked for")
    return first, last
