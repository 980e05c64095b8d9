"""Stories about governed acts, the ledger, the time of the store and request locks, for the bugs of `story_bugs.py`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import apsw

from tenure import clock
from tenure.engine import Engine
from tenure.errors import TenureError
from tenure.govern.ledger.audit import audit_ledger
from tenure.govern.ledger.keeper import LedgerKeeper
from tenure.govern.ledger.signing_keys import SigningKeys
from tenure.govern.ledger.tenant_ledger import TenantLedger
from tenure.govern.signing import make_key, sign_checkpoint
from tenure.proof import signed_notes
from tenure.proof.signatures import TrustedKeys
from tenure.store.idempotency import HeldRecord, IdempotencyRecords, KeyedRequest
from tenure.store.workers import register_worker
from tenure.testing.doubles import ServiceDouble
from tests.conformance.test_sqlite import opened
from tests.conformance.test_sqlite_file_clock import Machine, ProcessClock, commit
from tests.govern.act_service import careful, lab_of, orders

ONE_WRITE = """
version: 1
rules:
  - {name: first, connector: http, operation: post, when: run.writes < 1, allow: true}
"""


async def five_concurrent_acts_under_a_limit_of_one_write(folder: Path) -> None:
    """Five acts start at the same time, and the policy allows one write. The service gets at most one request."""
    with ServiceDouble() as service:
        async with lab_of(service, orders, policy=ONE_WRITE) as lab:
            run = await lab.start(orders, [1, 2, 3, 4, 5])
            with contextlib.suppress(TenureError):
                await run.result()
        assert len(service.effects) <= 1, f"the service got {len(service.effects)} writes"


async def a_ledger_check_finds_replaced_payloads(folder: Path) -> None:
    """Someone with write access to the database replaces every payload. A check against an older checkpoint finds the change."""
    signer = make_key(folder / "seal.key")
    async with Engine(f"sqlite:{folder / 'tenure.db'}", tenant="acme", sweep=False) as engine:
        await engine.create("build", [{"name": "compile", "tool": "make"}], input={"n": 1})
        await SigningKeys(engine.store).ready(signer)
        keeper = LedgerKeeper(engine.store, signer=lambda: signer)
        await keeper.append_new_runs()
        await keeper.sign_due(now=True)
        newest = await TenantLedger(engine.store, "acme").newest()
        assert newest is not None
        kept, trust = signed_notes.parse_checkpoint(newest.note), TrustedKeys.from_public_keys(signer.public)
        assert (await audit_ledger(engine.store, "acme", kept, trust)).flaws == []
        connection = apsw.Connection(str(folder / "tenure.db"))
        connection.execute("update payload set body = x'7b7d'")
        connection.close()
        found = await audit_ledger(engine.store, "acme", kept, trust)
        codes = {flaw.code for flaw in found.flaws}
        assert codes == {"PAYLOAD_CHANGED"}, f"the check found {sorted(codes)}"


async def a_checkpoint_with_a_flipped_padding_bit_is_refused(folder: Path) -> None:
    """An unused bit in the base64 text of a checkpoint's signature is flipped. The checkpoint is refused."""
    signer = make_key(folder / "seal.key")
    note = (await sign_checkpoint(signer, "tenure/abc/acme", 1, bytes(32), 0)).note
    last = note.rstrip("=\n")[-1]
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    other = letters[letters.index(last) ^ 1]
    place = len(note.rstrip("=\n")) - 1
    with contextlib.suppress(TenureError):
        signed_notes.parse_checkpoint(note[:place] + other + note[place + 1 :])
        raise AssertionError("a second encoding of the checkpoint was accepted")


async def a_call_is_delayed_more_often_than_its_retries(folder: Path) -> None:
    """A busy machine stalls four times between the INTENT and the call of an act with two retries. Nothing was sent, so the next
    attempt makes the call, once."""
    stalls = iter([3600.0] * 4)
    slow = SimpleNamespace(boot_seconds=lambda: clock.boot_seconds() + next(stalls, 0.0))
    with (
        patch("tenure.govern.act_calls.clock", slow),
        ServiceDouble() as service,
    ):
        async with lab_of(service, careful) as lab:
            run = await lab.start(careful, 7)
            result = await run.result()
            assert result == "done, 70", f"the act ended with {result}"
        assert len(service.effects) == 1


async def a_clock_one_hour_ahead(folder: Path) -> None:
    """A process whose clock is one hour ahead writes to a shared SQLite file. The time of the file does not follow that clock."""
    machine, path = Machine(), folder / "t.db"
    async with (
        opened(path, clock=ProcessClock(machine)) as right,
        opened(path, clock=ProcessClock(machine, 3600.0)) as wrong,
    ):
        await commit(right, machine, 1)
        machine.pass_time(1)
        await commit(wrong, machine, 2)
        assert await commit(right, machine, 3) < 60, "the wrong clock moved the time of the file"


async def a_server_dies_during_a_request(folder: Path) -> None:
    """A server starts a request and sends no heartbeat for a minute. Another server takes the request over."""
    wanted = KeyedRequest(tenant="acme", source="api", name="api:c:k", hash=b"h" * 32)
    async with Engine(f"sqlite:{folder / 'tenure.db'}", sweep=False) as engine:
        store = engine.store
        await register_worker(store, "%dead", (), 1, "1")
        assert isinstance(await IdempotencyRecords(store, "%dead").begin(wanted), HeldRecord)
        store.shift_clock(60_000_000)
        await register_worker(store, "%alive", (), 1, "1")
        assert isinstance(await IdempotencyRecords(store, "%alive").begin(wanted), HeldRecord), (
            "the request is still locked"
        )
