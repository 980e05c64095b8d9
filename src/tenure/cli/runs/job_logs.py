"""What a CI job printed, in a terminal.

Law: a job's output is not trusted. On a terminal, only text, tabs, ends of lines and colours are shown; a file or a pipe gets the bytes as
they are.
"""

from __future__ import annotations

import codecs
import re
import sys
from typing import TYPE_CHECKING

from tenure.cli.common.console import warn
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.cli.common.backend import Backend

WAIT_SECONDS = 20.0
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,30}m")
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_UNFINISHED = re.compile(r"\x1b[^a-zA-Z~]{0,200}$")
_RESET = "\x1b[0m"


class TerminalText:
    """Turns the bytes of a job into text for a terminal, also if a character or a sequence is divided between two pieces."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""

    def clean(self, data: bytes, *, final: bool = False) -> str:
        text = self._rest + self._decode(data, final)
        self._rest = ""
        if not final and (found := _UNFINISHED.search(text)):
            text, self._rest = text[: found.start()], found[0]
        text = _SEQUENCE.sub(lambda one: one[0] if _COLOUR.fullmatch(one[0]) else "", text)
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        colours = _COLOUR.findall(text)
        plain = ["".join(c for c in part if c in "\n\t" or c.isprintable()) for part in _COLOUR.split(text)]
        return "".join(part + colour for part, colour in zip(plain, [*colours, ""], strict=True))


async def print_job_log(
    backend: Backend,
    run: str,
    step: str,
    *,
    attempt: int | None,
    tail: int | None,
    late: bool,
    follow: bool,
) -> None:
    """Print what a job has printed; with `follow`, until its attempt has ended. A step that is no job has printed nothing."""
    terminal = TerminalText() if sys.stdout.isatty() else None
    offset = 0
    try:
        while True:
            page = await backend.runs.read_log(
                run,
                step,
                attempt=attempt,
                offset=offset,
                tail=tail,
                late=late,
                wait=WAIT_SECONDS if follow else 0.0,
            )
            attempt, tail = page.attempt or attempt, None
            _write(page.data, terminal)
            offset = page.next_offset
            if not page.data and (page.ended or not follow):
                break
            if follow and page.attempt == 0 and (await backend.get(run)).finished:
                break
    except TenureError as refused:
        if refused.code not in ("STEP_NOT_FOUND", "LOG_NOT_FOUND") or attempt is not None:
            raise
        return
    if terminal is not None and offset:
        sys.stdout.write(terminal.clean(b"", final=True) + _RESET)
        sys.stdout.flush()
    if page.late_size and not late:
        warn(f"{page.late_size} bytes arrived after the end of the lease; --late shows them", "")


def _write(data: bytes, terminal: TerminalText | None) -> None:
    if terminal is None:
        sys.stdout.buffer.write(data)
    else:
        sys.stdout.write(terminal.clean(data))
    sys.stdout.flush()
