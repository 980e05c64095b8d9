"""Where the user's own code failed, for the run's log.

Law: a traceback has an end that fits a line of the log, shows the user's frames and none of ours, and never fails itself.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from pathlib import Path
from traceback import TracebackException

from tenure.sdk.faults import StepFailed

TRACE_CHARS_MAX = 4_000
_NOT_THEIRS = (
    *(str(Path(__file__).parent.parent / each) for each in ("sdk", "worker", "testing")),
    *(str(Path(each.__file__ or "").parent) for each in (asyncio, concurrent.futures)),
)
"""Where the frames lie between the user's functions and whoever calls them."""


def traceback_of(fault: BaseException) -> str:
    """The last of a fault's traceback; empty where no code of the user's was at work."""
    try:
        told = TracebackException.from_exception(fault)
        if not _bare(told):
            return ""
        text = "".join(told.format()).strip()
    except Exception:  # what a fault says of itself is the user's code too
        return ""
    return text if len(text) <= TRACE_CHARS_MAX else f"...{text[3 - TRACE_CHARS_MAX :]}"


def _bare(told: TracebackException) -> bool:
    """Take our frames out of it, and whether there are others."""
    theirs = False
    every = [told]
    while every:
        each = every.pop()
        each.stack[:] = [frame for frame in each.stack if not frame.filename.startswith(_NOT_THEIRS)]
        theirs = theirs or bool(each.stack)
        every += [more for more in (each.__cause__, each.__context__, *(each.exceptions or ())) if more]
    return theirs


def of_steps(fault: BaseException) -> bool:
    """Whether it is a group of faults (of an `asyncio.TaskGroup`) with one of a step's among them."""
    return isinstance(fault, BaseExceptionGroup) and fault.subgroup(StepFailed) is not None
