"""Leases, checkpoints and waits as remote runners see them."""

from __future__ import annotations

from typing import Any

import msgspec

from tenure import ids
from tenure.kernel import profiles
from tenure.kernel.decide.leases import Lease
from tenure.limits import HEARTBEATS_PER_LEASE_MIN
from tenure.store.acting import Acted
from tenure.store.port import Recorded, Waited
from tenure.store.remote import HeldLease
from tenure.worker import protocol as p
from tenure.worker import protocol_state as ps
from tenure.worker.values import lease_text, maybe, moment, shown


def lease_of(held: HeldLease) -> Lease:
    """A lease that is held, as its worker has it."""
    rules = profiles.of_run(held.profile)
    seconds = held.lease_us / 1e6
    return Lease(
        run_id=held.run_id,
        idx=held.idx,
        n=held.n,
        tenant=held.tenant,
        workflow=held.workflow,
        code_version=held.code_version,
        profile=held.profile,
        name=held.name,
        kind=held.kind,
        tool=held.tool,
        idempotency_key=held.idempotency_key,
        expires_at=held.expires_at,
        timeout_at=held.timeout_at,
        heartbeat_seconds=min(rules.timing.heartbeat_seconds, seconds / HEARTBEATS_PER_LEASE_MIN),
        lease_seconds=seconds,
        input_ref=None,
        recorded=held.recorded,
        input=held.input,
        trace=held.trace,
    )


def _about(lease: Lease) -> dict[str, Any]:
    return {
        "id": lease_text(lease.run_id, lease.idx, lease.n),
        "run_id": ids.run_text(lease.run_id),
        "step": lease.name,
        "attempt": lease.n,
        "tenant": lease.tenant,
        "workflow": lease.workflow,
        "code_version": lease.code_version,
        "profile": lease.profile,
        "kind": lease.kind,
        "tool": lease.tool,
        "idempotency_key": lease.idempotency_key,
        "expires_at": moment(lease.expires_at),
        "timeout_at": maybe(lease.timeout_at),
        "heartbeat_seconds": lease.heartbeat_seconds,
        "lease_seconds": lease.lease_seconds,
        "resumed": lease.recorded,
        "trace": lease.trace,
        "input": shown(lease.input),
    }


def info_of(lease: Lease) -> p.LeaseInfo:
    """A lease, told."""
    return p.LeaseInfo(**_about(lease))


def granted_of(lease: Lease, token: str) -> p.GrantedLease:
    """A lease with its token, told once to whoever claimed it."""
    return p.GrantedLease(**_about(lease), token=token)


def recorded_of(row: Recorded) -> ps.RecordedCheckpoint:
    """A checkpoint, told."""
    return ps.RecordedCheckpoint(
        name=row.name,
        no=row.no,
        state=row.state,
        attempt=row.n,
        resumable=row.resumable,
        idempotent=row.idempotent,
        arguments=row.arguments.hex(),
        at=moment(row.at),
        tries=row.tries,
        next_at=maybe(row.next_at),
        error=row.error,
        meta=None if row.meta is None else msgspec.Raw(row.meta.encode()),
        output=shown(row.output),
        erased=row.output is None and row.output_ref is not None,
    )


def acted_of(row: Acted) -> ps.ActReceipt:
    """An act, told."""
    return ps.ActReceipt(
        label=row.label,
        no=row.no,
        tries=row.try_no,
        own=row.own,
        action=row.action,
        key=row.name,
        state=row.state,
        attempt=row.n,
        intent_at=moment(row.intent_at),
        settled_at=maybe(row.settled_at),
        eligible_at=maybe(row.eligible_at),
        error=row.error,
        wait=row.wait_no,
        request=shown(row.request),
        result=shown(row.result),
    )


def waited_of(row: Waited) -> ps.OpenedWait:
    """A wait with its answer, told."""
    return ps.OpenedWait(
        no=row.no,
        label=row.label,
        kind=row.kind,
        name=ids.run_text(int(row.name)) if row.kind == "child" else row.name,
        state=row.state,
        outcome=row.outcome,
        opened_at=moment(row.opened_at),
        expires_at=maybe(row.expires_at),
        settled_at=maybe(row.settled_at),
        result=shown(row.result),
        revision=row.revision,
        decided_by=row.decided_by,
        reason=shown(row.reason),
        child_id=None if row.child_id is None else ids.run_text(row.child_id),
        child_outcome=row.child_outcome,
        child_code=row.child_code,
        child_output=shown(row.child_output),
        child_error=shown(row.child_error),
    )
