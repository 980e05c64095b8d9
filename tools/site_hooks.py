"""Hooks of mkdocs (`make site`): they change what works in the repository and not on a site."""

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[([^\]\n]+)\]\(((?!\w+:|#)[^)\s#]+)(?:#[^)\s]*)?\)")
_MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Name files outside of docs/ instead of linking to them, and fold diagrams.

    Mermaid's renderer would be loaded from another host. The table below each diagram has the same edges.
    """
    folder = posixpath.dirname(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[2]))
        return f"`{target.removeprefix('../')}`" if target.startswith("../") else found[0]

    return _MERMAID.sub(_fold, _LINK.sub(link, markdown))


def _fold(found: re.Match[str]) -> str:
    lines = "".join(f"    {line}\n" for line in ("```text", *found[1].splitlines(), "```"))
    return f'??? note "Diagram (Mermaid source)"\n\n{lines}'
