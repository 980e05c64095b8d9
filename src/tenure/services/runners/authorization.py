"""What a runner may refer to in its messages.

Laws:
1. A reference to an artifact must name a run of the runner's own tenant.
2. The id of a child must be unused and recent: an old id may have belonged to a deleted run that other processes still know. An id in use
   is accepted only if this lease's run started that child: the message is a repeat.
3. A plan from a runner, for a child or for the run that it plans, has no commands: they come from workflow files.
4. Any other payload that begins like a reference is refused, except the output of a run that continues as another.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tenure import ids
from tenure.artifacts import ArtifactReference, is_reference
from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel import capability
from tenure.kernel import commands as c
from tenure.kernel.run_rows import RunRow
from tenure.limits import LEASE_SECONDS_MAX
from tenure.sdk import codec
from tenure.store.port import Store
from tenure.store.remote_leases import LeaseCredential


class RunnerAuthorization:
    """Checks what the commands of a lease refer to; see the laws above."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def check(self, credential: LeaseCredential, command: c.LeaseCommand) -> None:
        if not needs_authorization(command):
            return
        if any(capability.split(step.queue)[1] == capability.RUN for step in _planned_steps(command)):
            raise TenureError(
                "INVALID_INPUT", "runners may not start commands: those come from workflow files"
            )
        child = _child_of(command)
        if child is not None:
            found: list[RunRow] = await self._store.read("get_run", child.run_id)
            if not found:
                await self._check_new(child.run_id)
            elif found[0].tenant != credential.tenant or not await self._is_repeat(credential, found[0]):
                raise TenureError(
                    "INVALID_INPUT", f"child run id {ids.run_text(child.run_id)} is in use: choose a new one"
                )
        for body in _payloads(command):
            if not body.startswith(codec.RESERVED):
                continue
            if is_reference(body):
                await self.check_reference(credential.tenant, body)
            elif not (child is not None and body == codec.encode_restart(ids.run_text(child.run_id))):
                raise TenureError(
                    "INVALID_INPUT", 'runners may not send a payload that begins with `{"$tenure`'
                )

    async def _check_new(self, run_id: int) -> None:
        """Refuse an id whose timestamp is further from now than a lease can last."""
        now = self._store.estimate_us() or (await self._store.read("now"))[0].now_us
        if abs(now - us(ids.second_of(run_id))) > us(LEASE_SECONDS_MAX):
            raise TenureError(
                "INVALID_INPUT",
                f"child run id {ids.run_text(run_id)} is too old or too new: its timestamp must be within {LEASE_SECONDS_MAX / 3600:g} hours of now",
            )

    async def _is_repeat(self, credential: LeaseCredential, run: RunRow) -> bool:
        """Whether this lease's run started the child before."""
        specs = await self._store.read("get_spec", run.id)
        if not specs or specs[0].parent_id == credential.run_id:
            return bool(specs)
        ours: list[RunRow] = await self._store.read("get_run", credential.run_id)
        ref = ours[0].output_ref if ours else None
        bodies = [] if ref is None else await self._store.read("payload", credential.run_id, ref)
        return bool(bodies) and bodies[0].body == codec.encode_restart(ids.run_text(run.id))

    async def check_reference(self, tenant: str, body: bytes) -> ArtifactReference:
        """Decode a reference, and refuse one to an artifact of another tenant."""
        try:
            reference = msgspec.json.decode(body, type=ArtifactReference)
            run_id = ids.run_int(reference.run)
        except (msgspec.DecodeError, TenureError) as wrong:
            raise TenureError("INVALID_INPUT", "the payload is not a valid artifact reference") from wrong
        found: list[RunRow] = await self._store.read("get_run", run_id)
        if not found or found[0].tenant != tenant:
            raise TenureError(
                "ARTIFACT_NOT_FOUND", f"{reference.digest[:80]} is not an artifact of {reference.run}"
            )
        return reference


def _child_of(command: c.LeaseCommand) -> c.StartChild | None:
    if isinstance(command, c.OpenWait):
        return command.child
    return command.restart if isinstance(command, c.Complete) else None


def _planned_steps(command: c.LeaseCommand) -> tuple[c.StepSpec, ...]:
    """The steps that a command plans, for a child or for its own run."""
    child = _child_of(command)
    own = command.plan if isinstance(command, c.Complete) else None
    return (*(() if child is None else child.plan), *(own or ()))


def _payloads(command: c.LeaseCommand) -> Iterator[bytes]:
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
        found.append(child.input)
    found += (step.input for step in _planned_steps(command))
    return (body for body in found if body is not None)


def needs_authorization(command: c.LeaseCommand) -> bool:
    """Whether a command refers to something that has to be checked."""
    return (
        _child_of(command) is not None
        or bool(_planned_steps(command))
        or any(body.startswith(codec.RESERVED) for body in _payloads(command))
    )
