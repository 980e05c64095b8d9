"""The page: a run, the inbox and proposals, in Ukrainian and English. Files of our own, without a build."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "json": "application/json",
}
_FILES = {
    "/page": "index.html",
    "/page/": "index.html",
    "/page/page.js": "page.js",
    "/page/page.css": "page.css",
    "/page/messages/en.json": "messages/en.json",
    "/page/messages/uk.json": "messages/uk.json",
}
PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'",
}


class PageFile(msgspec.Struct, frozen=True):
    body: bytes
    media_type: str


def find_page_file(path: str) -> PageFile | None:
    """The file of the page at a path; None: there is none."""
    name = _FILES.get(path)
    return None if name is None else _read_page_file(name)


@cache
def _read_page_file(name: str) -> PageFile:
    body = files(__name__).joinpath(*name.split("/")).read_bytes()
    return PageFile(body, _TYPES[name.rpartition(".")[2]])
