"""Planted bugs: each changes one or two lines of the real code and is removed after its test.

A `Bug` names a function and the text in it to replace. The changed function is compiled and its `__code__` is
replaced in place, so modules that imported the function have the bug too. If the function no longer contains the
text, `changed_code` fails: adapt the bug to the new code.
"""

from __future__ import annotations

import contextlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from tenure.kernel.decide import (
    act_outcomes,
    acts,
    checkpoints,
    leases,
    ready_steps,
    receipts,
    resolutions,
    termination,
    ticks,
    waits,
)
from tenure.kernel.decide.admission import admit, admit_if_possible
from tenure.kernel.decide.cancellation import cancel_open_step
from tenure.kernel.decide.creation import _capped
from tenure.kernel.draft import Draft
from tenure.kernel.separation_of_duties import check_second_approver
from tenure.orchestrator import batch, claims, core, heartbeats, loader, outbox, sweeper
from tenure.simulate.process import Agenda
from tenure.store.sqlite import statements


class Change(NamedTuple):
    """Text in a function, and its replacement."""

    function: Callable[..., Any]
    old: str
    new: str


class Bug(NamedTuple):
    """A planted bug: its effect, the changes that plant it, and a seed whose simulation catches it."""

    what: str
    changes: tuple[Change, ...]
    seed: int


def changed_code(changes: tuple[Change, ...]) -> dict[FunctionType, CodeType]:
    """Return the code of each function with the bug. Each replaced text must occur exactly once in its function."""
    sources: dict[FunctionType, str] = {}
    for function, old, new in changes:
        assert isinstance(function, FunctionType)
        source = sources.get(function) or textwrap.dedent(inspect.getsource(function))
        assert source.count(old) == 1, f"{function.__qualname__} no longer contains exactly one {old!r}"
        sources[function] = source.replace(old, new)
    return {function: _compiled(function, source) for function, source in sources.items()}


@contextlib.contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Plant a bug until the context ends."""
    codes = changed_code(bug.changes)
    before = {function: function.__code__ for function in codes}
    try:
        for function, code in codes.items():
            function.__code__ = code
        yield
    finally:
        for function, code in before.items():
            function.__code__ = code


def _compiled(function: FunctionType, source: str) -> CodeType:
    space = dict(function.__globals__)
    text = "from __future__ import annotations\n" + source
    exec(compile(text, f"<planted in {function.__module__}>", "exec"), space)
    made: FunctionType = space[function.__name__]
    return made.__code__


BUGS: dict[str, Bug] = {
    # ------------------------------------------------------------------------------ leases and fences
    "fence": Bug(
        "a message is accepted after its lease has ended, because the fence is not checked",
        (
            Change(
                leases.require_lease,
                "if c.n != step.attempt or attempt.ended_at is not None or attempt.expires_at <= d.now:",
                "if False:",
            ),
            Change(
                checkpoints.write_checkpoint,
                "if attempt is None or c.n != step.attempt or attempt.ended_at is not None or attempt.expires_at <= d.now:",
                "if attempt is None:",
            ),
        ),
        24,
    ),
    "expired-lease": Bug(
        "a message is accepted after its lease has expired",
        (
            Change(leases.require_lease, " or attempt.expires_at <= d.now:", ":"),
            Change(checkpoints.write_checkpoint, " or attempt.expires_at <= d.now:", ":"),
        ),
        24,
    ),
    "checkpoint-after-lease": Bug(
        "a checkpoint is accepted after its lease has ended",
        (
            Change(
                checkpoints.write_checkpoint,
                "if attempt is None or c.n != step.attempt or attempt.ended_at is not None or attempt.expires_at <= d.now:",
                "if attempt is None:",
            ),
            Change(checkpoints.write_checkpoint, 'if attempt.lease != "active":', "if False:"),
        ),
        1,
    ),
    "uncharged-claim": Bug(
        "a claim does not use up a try", (Change(leases.grant_lease, "step.charged += 1", "pass"),), 0
    ),
    "proof-without-fence": Bug(
        "a late proof of death ends the lease of the worker that has the step now",
        (
            Change(leases.expire_dead_lease, "if c.n != step.attempt:", "if False:"),
            Change(leases.expire_dead_lease, " or attempt.session != c.session:", ":"),
            Change(
                leases.expire_dead_lease,
                "if attempt.beat_at + us(HOLDER_SILENT_SECONDS) > d.now:",
                "if False:",
            ),
        ),
        117,
    ),
    "release-charged": Bug(
        "a release does not return the try",
        (Change(leases._give_back, "step.charged = max(0, step.charged - 1)", "pass"),),
        0,
    ),
    "unwritten-heartbeat": Bug(
        "the reply to a heartbeat has a new expiry that is not saved",
        (
            Change(
                heartbeats.extend_leases,
                'written: list[ExtendedLease] = yield Query("beat", rows, (now,))',
                'written = [ExtendedLease(*row[:3], "running") for row in rows]',
            ),
        ),
        1,
    ),
    "cached-tick": Bug(
        "the sweeper uses a cached expiry after a heartbeat has extended the lease",
        (Change(batch.decide_cached, " or isinstance(item.command, TIME_COMMANDS)", ""),),
        23,
    ),
    "answer-by-heartbeat": Bug(
        "a repeated message is not recognized if a heartbeat arrived in between",
        (
            Change(
                leases.require_lease,
                'if attempt.last_message == f"{MESSAGE_TYPES[type(c)]} {c.seq}":',
                'if attempt.last_message == f"{MESSAGE_TYPES[type(c)]} {c.seq}" and attempt.seq == c.seq:',
            ),
        ),
        26,
    ),
    "duplicate-not-known": Bug(
        "a repeated message is not recognized",
        (
            Change(
                leases.require_lease,
                'if attempt.last_message == f"{MESSAGE_TYPES[type(c)]} {c.seq}":',
                "if False:",
            ),
        ),
        0,
    ),
    # ------------------------------------------------------------------------------------------ saving
    "no-version": Bug(
        "a save does not check the version, so a writer with stale data overwrites a completion",
        (
            Change(
                statements.SqliteTransaction._as_expected,
                "ids = {run_id for run_id, version, _ in expect if seen.get(run_id) == version}",
                "return {run_id for run_id, _, _ in expect}",
            ),
            Change(
                statements.SqliteTransaction._write,
                "if table in _ROW_EXISTS:",
                'if table == "event":\n'
                "        self._cursor.executemany(_SAVE[table].replace('insert', 'insert or replace', 1),"
                " [_tuple(row) for row in rows])\n"
                "        return\n"
                "    if table in _ROW_EXISTS:",
            ),
        ),
        3,
    ),
    "ambiguous-is-success": Bug(
        "a commit with an unknown outcome is reported as successful",
        (
            Change(
                core.Orchestrator._commit_cached,
                "return needs_lock + batches.unsaved_commands(works, fault)",
                "if not isinstance(fault, AmbiguousCommit):\n"
                "                return needs_lock + batches.unsaved_commands(works, fault)\n"
                "            saved = Saved({work.snap.run_id for work in works}, now)",
            ),
        ),
        19,
    ),
    "ambiguous-again": Bug(
        "a commit with an unknown outcome that did succeed is executed again",
        (Change(batch._answer_proven, "if not proofs:", "if True:"),),
        24,
    ),
    "hash-chain": Bug(
        "the hash of an event does not cover the previous event",
        (Change(Draft.decision, "run.head, run.tenant,", 'b"", run.tenant,'),),
        0,
    ),
    # ------------------------------------------------------------------------------------------ caps
    "cap-without-lock": Bug(
        "live leases are counted outside the transaction of the claim",
        (
            Change(
                claims.claim_steps,
                'for u in (yield Query("usage", [(t,) for t in capped]))}',
                'for u in history.__dict__.setdefault("counted", [])}\n'
                '        history.__dict__["counted"] = yield Query("usage", [(t,) for t in capped])',
            ),
        ),
        15,
    ),
    "eager-over-cap": Bug(
        "a run that is claimed in the commit that creates it ignores the cap",
        (Change(_capped, "return any(", "return False and any("),),
        15,
    ),
    "rate-not-counted": Bug(
        "max_runs_per_min is ignored",
        (Change(admit_if_possible, "if full_until is not None:", "if False:"),),
        5,
    ),
    # ----------------------------------------------------------------------------- waits and approvals
    "lost-wake-up": Bug(
        "a step suspends although one of its waits has settled",
        (Change(waits.suspend_on, 'settled = [w for w in waits if w.state == "settled"]', "settled = []"),),
        4,
    ),
    "own-approval": Bug(
        "the requester of an approval counts as an approver",
        (
            Change(
                waits.decide_approval,
                "check_distinct_person(d, c.approver, involved | {approval.requester}, _MAY_NOT_DECIDE)",
                "None",
            ),
        ),
        5,
    ),
    "voted-twice": Bug(
        "one person can vote twice",
        (
            Change(waits.decide_approval, "if c.approve and c.approver in votes:", "if False:"),
            Change(check_second_approver, "if one is not None:", "if False:"),
        ),
        26,
    ),
    "event-id": Bug(
        "an event that is sent twice is delivered twice",
        (Change(waits.deliver_event, "if run.inbox_total and", "if False and"),),
        4,
    ),
    "early-event": Bug(
        "a wait does not take an event that arrived before it",
        (Change(termination.take_early_events, "if row is not None:", "if False:"),),
        280,
    ),
    "child-not-settled": Bug(
        "the end of a child run does not settle the wait of its parent",
        (Change(waits.finish_child, 'if wait is not None and wait.state == "open":', "if False:"),),
        4,
    ),
    "human-time": Bug(
        "the deadline of a run keeps running during an approval",
        (
            Change(
                Draft.show,
                'if status == "waiting_approval" and run.deadline_at is not None and not self.spec().wall_clock:',
                "if False:",
            ),
        ),
        54,
    ),
    # ------------------------------------------------------------------------------- steps and closing
    "retry-too-early": Bug(
        "a retry starts before its backoff is over",
        (
            Change(
                leases.retry_or_end_step,
                "step.wake_at = d.now + delay",
                "d.now + delay\n        step.wake_at = d.now",
            ),
            Change(ticks._step, "step.eligible_at > now:", "step.eligible_at > now + 10**12:"),
        ),
        2,
    ),
    "leaseless-cancel": Bug(
        "canceling a run ignores its unleased steps",
        (
            Change(
                cancel_open_step,
                'if step.state == "pending":',
                'if step.state in ("pending", "ready"):\n        pass\n    elif False:',
            ),
        ),
        0,
    ),
    "needs-left": Bug(
        "a step starts while another step that it needs is still open",
        (Change(termination.end_step, "dependent.needs_left -= 1", "dependent.needs_left = 0"),),
        0,
    ),
    "needs-kept": Bug(
        "a failed step with allow_failure blocks the steps that need it",
        (
            Change(
                termination.end_step,
                "elif run.cancel_at is None and not closing:",
                "elif succeeded and run.cancel_at is None and not closing:",
            ),
        ),
        38,
    ),
    "skip-not-counted": Bug(
        "a skipped step still counts as open",
        (Change(termination.end_step, "run.steps_open -= 1", 'run.steps_open -= step.state != "skipped"'),),
        0,
    ),
    "plan-step-counted": Bug(
        "the plan step counts as a step of its run",
        (Change(Draft.move, 'if step.kind != "plan":', "if True:"),),
        2,
    ),
    "plan-step-left-open": Bug(
        "a run whose planning takes too long leaves its plan step open",
        (Change(termination.time_out_planning, "close_open_steps(d)", 'd.show("failed")'),),
        4,
    ),
    "cancel-while-planning": Bug(
        "a cancel ends a run whose planner still has its lease",
        (Change(termination.settle_planning, "if step.finished_at is None:", "if d.run.cancel_at is None:"),),
        2,
    ),
    "planner-records": Bug(
        "a plan step records checkpoints",
        (Change(checkpoints.write_checkpoint, 'if step.kind == "plan":', "if False:"),),
        70,
    ),
    "result-without-its-maker": Bug(
        "a step with an earlier result does not name the step that made it",
        (Change(resolutions._resolve, "step.reused_run, step.reused_step = made.reused", "pass"),),
        47,
    ),
    "reused-while-at-work": Bug(
        "a step that waits for a retry takes an earlier result",
        (
            Change(
                resolutions._resolve,
                'elif made.reused is not None and step.reuse is not None and step.state == "pending":',
                "elif made.reused is not None:",
            ),
            Change(resolutions._resolve, 'step = d.move(step, "reuse")', 'step.state = "succeeded"'),
        ),
        47,
    ),
    "skipped-and-handed-out": Bug(
        "a step whose condition is false can be claimed",
        (Change(resolutions._resolve, "if made.skipped:", "if False:"),),
        21,
    ),
    "input-of-the-last-try": Bug(
        "a retried step gets the input of its previous attempt",
        (Change(ready_steps.make_ready, 'if step.resolution == "each":', "if False:"),),
        184,
    ),
    "input-never-made": Bug(
        "the input of a step is never resolved",
        (
            Change(
                termination.owe_resolution,
                "for at in range(0, len(waiting)",
                "for at in range(0, 0 * len(waiting)",
            ),
        ),
        7,
    ),
    "claimed-while-paused": Bug(
        "the steps of a paused run can be claimed",
        (Change(ready_steps.make_ready, "not run.paused and ", ""),),
        68,
    ),
    "key-never-again": Bug(
        "a run that waits for its concurrency key never checks again",
        (
            Change(
                admit_if_possible,
                "_look_again(run, d.now + us(KEY_POLL_SECONDS if first else KEY_LINE_POLL_SECONDS))",
                "run.wake_at = None",
            ),
        ),
        0,
    ),
    "key-shared": Bug(
        "a concurrency key is given to two runs",
        (Change(loader._load_facts, "facts.holder_id = queue.holder_id", "facts.holder_id = None"),),
        0,
    ),
    # --------------------------------------------------------------------------- sweeper and outbox
    "sweeper-blind": Bug(
        "the sweeper does not see the timers of steps",
        (
            Change(
                sweeper.Sweeper.sweep,
                'self._timers.others(await store.read("due", now, self._timers.most))',
                '[t for t in await store.read("due", now, self._timers.most) if t.entity != "step"]',
            ),
        ),
        0,
    ),
    "planner-for-ever": Bug(
        "a run waits forever for a planner that does not answer",
        (Change(admit, 'if run.status == "planning" and', "if False and"),),
        48,
    ),
    "outbox-forgotten": Bug(
        "an outbox row is deleted but not delivered",
        (
            Change(
                outbox._command,
                "return FinishChild(context=cause, run_id=row.target_id, **body)",
                "return None",
            ),
        ),
        4,
    ),
    "outbox-not-deleted": Bug(
        "a delivered outbox row is not deleted and is delivered again and again",
        (Change(batch.build_save, "if item.delivery and _is_delivered(item, made)", "if False"),),
        1,
    ),
    # ------------------------------------------------------------------------------------------ acts
    "act-repeated": Bug(
        "a call that is not safe to repeat is repeated",
        (Change(acts.repeat, "receipt.repeats not in SAFE_TO_REPEAT and not by_person", "False"),),
        106,
    ),
    "act-failed-unseen": Bug(
        "an action that an earlier attempt completed is recorded as failed",
        (
            Change(act_outcomes.settle, 'c.state == "succeeded"', 'c.state == "succeeded" and own'),
            Change(act_outcomes.settle, "if not own:", "if False:"),
            Change(act_outcomes.settle, 'elif c.state == "failed":', 'elif c.state == "failed" or not own:'),
        ),
        270,
    ),
    "act-key-shared": Bug(
        "two runs perform the action of the same key",
        (
            Change(
                acts.intend, "if holder is not None:", "if holder is not None and holder.run_id == d.run.id:"
            ),
        ),
        84,
    ),
    "act-intended-for-ever": Bug(
        "a receipt stays an intention after its step has ended",
        (Change(receipts.lose_intended_receipts, 'row.state == "intent"', "False"),),
        62,
    ),
    "act-write-not-given-back": Bug(
        "a write that did not happen still counts toward the limit",
        (Change(receipts.give_back_write, "run_spend.writes - 1", "run_spend.writes"),),
        5,
    ),
    "act-unapproved": Bug(
        "an action is performed without the approval that it needs",
        (
            Change(
                acts.intend, "approval is None or not _suffices(d, approval, c.act, c.ruling, mine)", "False"
            ),
            Change(
                acts.propose,
                "wait, rounds = _newest_round(d, c.idx, c.act.label)",
                "return Decision(ActReply('go_on'))",
            ),
        ),
        5,
    ),
    "sweeps-by-the-hosts-clock": Bug(
        "a process schedules timers by the clock of its host, which can be behind the time of the store",
        (
            Change(
                Agenda._seconds_left,
                "process.store.estimate_us() or process.clock.now_us()",
                "process.clock.now_us()",
            ),
        ),
        61,
    ),
}
