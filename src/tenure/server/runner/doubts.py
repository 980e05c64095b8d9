"""What a runner names in its messages, and whether it may.

Laws:
1. A reference to an artifact is one of the tenant's own runs'.
2. The id of a run that is started is nobody's yet, and of about now: an older one may have been that of a run which is deleted,
   and which other processes still know. Or it is that of the very run which this one has started: a repeat.
3. Commands come from workflow files: a child's plan has none.
4. What else begins like a reference of ours is refused, but for the end of a run that goes on as another.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tenure import ids
from tenure.artifacts import Reference, is_reference
from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel import capability
from tenure.kernel import commands as c
from tenure.kernel.model import Run
from tenure.limits import LEASE_SECONDS_MAX
from tenure.sdk import codec
from tenure.store.port import Store
from tenure.store.remote import Ticket


class Doubts:
    """See the laws above."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def check(self, ticket: Ticket, command: c.LeaseMessage) -> None:
        """Refuse what names others' things; see the laws above."""
        if not is_doubtful(command):
            return
        child = _child_of(command)
        if child is not None:
            if any(capability.split(step.queue)[1] == capability.RUN for step in child.plan):
                raise TenureError(
                    "INVALID_INPUT", "runners may not start commands: those come from workflow files"
                )
            found: list[Run] = await self._store.read("get_run", child.run_id)
            if not found:
                await self._check_new(child.run_id)
            elif found[0].tenant != ticket.tenant or not await self._is_ours(ticket, found[0]):
                raise TenureError("INVALID_INPUT", "a child's id is its own: this one is in use")
        for body in _payloads(command):
            if not body.startswith(codec.RESERVED):
                continue
            if is_reference(body):
                await self.check_reference(ticket.tenant, body)
            elif not (child is not None and body == codec.restarted(ids.run_text(child.run_id))):
                raise TenureError(
                    "INVALID_INPUT", "a payload that begins with `{\"$tenure` is none of a runner's"
                )

    async def _check_new(self, run_id: int) -> None:
        """Refuse an id that is further from now than a lease may be old, as is the message that names it."""
        now = self._store.estimate_us() or (await self._store.read("now"))[0].now_us
        if abs(now - us(ids.second_of(run_id))) > us(LEASE_SECONDS_MAX):
            raise TenureError("INVALID_INPUT", f"a child's id is of about now: {ids.run_text(run_id)} is not")

    async def _is_ours(self, ticket: Ticket, run: Run) -> bool:
        """Whether a run was started by this lease's run, so that this is a repeat."""
        specs = await self._store.read("get_spec", run.id)
        if not specs:
            return False
        if specs[0].parent_id == ticket.run_id:
            return True
        ours: list[Run] = await self._store.read("get_run", ticket.run_id)
        ref = ours[0].output_ref if ours else None
        bodies = [] if ref is None else await self._store.read("payload", ticket.run_id, ref)
        return bool(bodies) and bodies[0].body == codec.restarted(ids.run_text(run.id))

    async def check_reference(self, tenant: str, body: bytes) -> Reference:
        """A reference to an artifact of one of a tenant's own runs."""
        try:
            named_by = msgspec.json.decode(body, type=Reference)
            run_id = ids.run_int(named_by.run)
        except (msgspec.DecodeError, TenureError) as wrong:
            raise TenureError("INVALID_INPUT", "this is no reference to an artifact") from wrong
        found: list[Run] = await self._store.read("get_run", run_id)
        if not found or found[0].tenant != tenant:
            raise TenureError(
                "ARTIFACT_NOT_FOUND", f"{named_by.digest[:80]} is not an artifact of {named_by.run}"
            )
        return named_by


def _child_of(command: c.LeaseMessage) -> c.StartChild | None:
    if isinstance(command, c.OpenWait):
        return command.child
    return command.restart if isinstance(command, c.Complete) else None


def _payloads(command: c.LeaseMessage) -> Iterator[bytes]:
    """Every payload that a message brings."""
    found: list[bytes | None] = []
    if isinstance(command, c.Complete):
        found.append(command.output)
        if command.last is not None:
            found += (command.last.output, command.last.input)
    elif isinstance(command, c.RecordCheckpoint):
        found += (command.output, command.input)
    elif isinstance(command, c.OpenWait):
        found.append(command.question)
    child = _child_of(command)
    if child is not None:
        found += (child.input, *(step.input for step in child.plan))
    return (body for body in found if body is not None)


def is_doubtful(command: c.LeaseMessage) -> bool:
    """Whether a message names something that has to be looked at."""
    if _child_of(command) is not None:
        return True
    return any(body.startswith(codec.RESERVED) for body in _payloads(command))
