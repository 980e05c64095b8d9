"""The one builder of `CreateRun`, for every new run.

Laws:
1. The timeout and the budget of a request override those of its workflow. A run of a workflow that compensates always does.
2. Two requests under one idempotency key are the same request if their hashes are equal. The hash covers everything that
   is requested, but not when and by whom. Values are compared in the canonical form of `tenure.canonical`.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from tenure.canonical import canonical
from tenure.kernel.commands import SYSTEM, Claimant, CreateRun, RunRequest
from tenure.kernel.run_terms import NO_TERMS, RunTerms


def build_create_run(
    request: RunRequest,
    *,
    run_id: int,
    tenant: str,
    workspace: str = "default",
    timeout_seconds: float | None = None,
    terms: RunTerms = NO_TERMS,
    eager: Claimant | None = None,
) -> CreateRun:
    """The command that creates the requested run. `timeout_seconds` and `terms` are the workflow's own (law 1)."""
    fields: dict[str, Any] = msgspec.structs.asdict(request)
    if request.timeout_seconds is None:
        fields["timeout_seconds"] = timeout_seconds
    if terms is not NO_TERMS:
        if request.budget is None:
            fields["budget"], fields["currency"] = terms.budget, terms.currency
        fields["compensate"] = request.compensate or terms.compensate
    return CreateRun(run_id=run_id, tenant=tenant, workspace=workspace, eager=eager, **fields)


def with_request_hash(command: CreateRun) -> CreateRun:
    """The command with the hash of what it asks for, if it has an idempotency key (law 2)."""
    if command.idempotency_key is None:
        return command
    return msgspec.structs.replace(command, request_hash=hash_command(command))


def hash_command(command: CreateRun) -> bytes:
    asked = msgspec.to_builtins(msgspec.structs.replace(command, context=SYSTEM, run_id=0, trace=None))
    for name in ("input", "labels", "metadata"):
        asked[name] = _decode_value(getattr(command, name))
    for step, fields in zip(command.plan or (), asked["plan"] or (), strict=True):
        fields["input"] = _decode_value(step.input)
    return sha256(canonical(asked)).digest()


def _decode_value(body: bytes | str | None) -> Any:
    """The value of a payload. The bytes of a payload that is not JSON are marked as such."""
    if body is None:
        return None
    try:
        return {"json": msgspec.json.decode(body)}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {"bytes": msgspec.to_builtins(body)}
