"""The one place where commands are decided: (snapshot, command, now, chance) -> Decision.

Laws:
1. Pure: no I/O, no clock, no randomness of its own, no logging, no async.
2. A refusal raises a TenureError and changes nothing. A run of another tenant is refused like one that does not exist.
3. A decision that needs rows that were not loaded raises `NotLoaded`; the caller loads them and decides again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tenure import ids
from tenure.errors import TenureError
from tenure.kernel import act_commands as a
from tenure.kernel import commands as c
from tenure.kernel.decide import (
    act_outcomes,
    acts,
    add_steps,
    checkpoints,
    facts,
    leases,
    linked_runs,
    resolutions,
    ticks,
    waits,
)
from tenure.kernel.decide.admission import admit
from tenure.kernel.decide.cancellation import cancel_step, request_cancel
from tenure.kernel.decide.creation import create
from tenure.kernel.decide.validation import check_command
from tenure.kernel.draft import Chance, Decision, Draft
from tenure.kernel.snapshot import Snapshot

_HANDLERS: dict[type[c.Command], Callable[[Draft, Any], Decision]] = {
    c.RecordCheckpoint: checkpoints.checkpoint,
    c.Complete: linked_runs.complete,
    c.ClaimStep: leases.claim,
    c.CreateRun: create,
    c.AddSteps: add_steps.add_steps,
    c.ResolveSteps: resolutions.resolve_steps,
    c.Admit: admit,
    c.AckLease: leases.ack,
    c.Heartbeat: leases.heartbeat,
    c.BeginUpload: leases.begin_upload,
    c.ReportCost: leases.report_cost,
    c.Fail: leases.fail,
    c.Release: leases.release,
    c.Park: leases.park,
    c.AckCancel: leases.ack_cancel,
    c.RevokeLease: leases.revoke,
    c.OpenWait: waits.open_wait,
    c.Suspend: waits.suspend_on,
    c.DecideApproval: waits.decide_approval,
    a.WithdrawApproval: waits.withdraw_approval,
    c.ReviseApproval: waits.revise_approval,
    c.DeliverEvent: waits.deliver_event,
    c.FinishChild: waits.finish_child,
    c.EndWait: waits.end_wait,
    c.RequestCancel: request_cancel,
    c.CancelStep: cancel_step,
    c.Tick: ticks.tick,
    c.ExpireDeadLease: leases.expire_dead_lease,
    c.Pause: facts.pause,
    c.Unpause: facts.unpause,
    c.MarkReported: facts.mark_reported,
    c.AttestReported: facts.attest_reported,
    c.SealRun: facts.seal,
    c.UpdateMetadata: facts.update_metadata,
    c.InvolvePeople: facts.involve_people,
    c.DeleteRun: facts.delete,
    a.ProposeAct: acts.propose,
    a.IntendAct: acts.intend,
    a.RepeatAct: acts.repeat,
    a.SettleAct: act_outcomes.settle,
    a.SettleReceipt: act_outcomes.settle_by_person,
    a.MarkReversed: act_outcomes.mark_reversed,
}


def decide(snap: Snapshot, command: c.Command, now: int, chance: Chance) -> Decision:
    run = snap.run
    if type(command) is not c.CreateRun:
        assert isinstance(command, c.RunCommand)
        if run is None or (command.tenant is not None and command.tenant != run.tenant):
            raise TenureError("RUN_NOT_FOUND", f"there is no run {ids.run_text(command.run_id)!r}")
    check_command(command)
    draft = Draft(snap, command, now, chance)
    try:
        return _HANDLERS[type(command)](draft, command)
    except leases.AlreadyAnswered as again:
        return Decision(again.reply)
    except leases.StaleMessage as stale:
        row = stale.row
        return Decision(None, rows={("stale_message", row.idx, row.n, row.message): row}, error=stale.error)
