"""The contract of an external queue, which wakes claims: what is announced, and what a message may mean.

Laws:
1. A message is a hint. The database says which steps are ready and who leases them, so a message that is lost, late, repeated or forged
   changes nothing but when a claim looks. Claims also poll.
2. A message names a step, its tenant and its queue, and holds nothing of the run. Names are escaped, so that no tenant can write to
   another one's subject or to a wildcard.
3. A message stays the queue's until a claim has looked since it came. If the process dies before that, the queue delivers it again,
   after its visibility time-out, to another one.
4. An announcement never delays a commit, and is dropped if it cannot be sent now.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Protocol

import msgspec

from tenure.kernel.run_rows import StepRow

ANNOUNCED_PER_COMMIT_MAX = 256
"""Steps of one commit that are announced. Claims that these wake find the others."""
MESSAGE_BYTES_MAX = 256
_TOKEN_CHARS_MAX = 200
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


class ReadyStep(msgspec.Struct, frozen=True, gc=False):
    """A step that became ready."""

    tenant: str
    queue: str
    run_id: int
    idx: int

    def body(self) -> bytes:
        return b"%d/%d" % (self.run_id, self.idx)


class ExternalQueue(Protocol):
    """See the laws above. All methods are called in the event loop."""

    def announce(self, steps: Sequence[ReadyStep]) -> None:
        """Send messages about steps that were committed as ready, soon."""

    def serve(self, queues: Iterable[str]) -> None:
        """Receive messages of these queues from now on, because this process claims from them."""

    def note_claimed(self, steps: Iterable[tuple[int, int]]) -> None:
        """This process has leased these steps (run, index): their messages need not wake it."""

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a message (True), or until the time is over. A claim has looked since the messages before."""


def find_ready_steps(rows: Iterable[object], limit: int) -> list[ReadyStep]:
    """The ready steps among the rows of a commit, up to a limit."""
    found: list[ReadyStep] = []
    for row in rows:
        if isinstance(row, StepRow) and row.claimable:
            found.append(ReadyStep(row.tenant, row.queue, row.run_id, row.idx))
            if len(found) >= limit:
                break
    return found


def parse_body(body: bytes) -> tuple[int, int] | None:
    """The step (run, index) that a message names; None if it is no message of ours."""
    if len(body) > MESSAGE_BYTES_MAX:
        return None
    run, separator, idx = body.partition(b"/")
    if not (separator and run.isdigit() and idx.isdigit() and len(run) <= 19 and len(idx) <= 10):
        return None
    return int(run), int(idx)


def escape_token(name: str) -> str:
    """A name as one token of a subject: letters, digits, `_` and `-` stay, other bytes are `=XX`. A long name becomes its digest."""
    if _PLAIN.fullmatch(name) and len(name) <= _TOKEN_CHARS_MAX:
        return name
    escaped = "".join(
        chr(byte) if _PLAIN.fullmatch(chr(byte)) else f"={byte:02X}"
        for byte in name.encode("utf-8", "surrogatepass")
    )
    if 0 < len(escaped) <= _TOKEN_CHARS_MAX:
        return escaped
    return f"=sha256={sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"
