"""Bugs to be planted: each a change of one or two lines in the real code, undone afterwards.

A `Bug` names the function and the text in it that is replaced. The function's code is compiled anew and
exchanged in place, so that everybody who imported it has the bug too. Text that is no longer there is an
error: whoever rewrote the function has to say what the bug looks like now.
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
    """Text in a function, and what stands there instead."""

    function: Callable[..., Any]
    old: str
    new: str


class Bug(NamedTuple):
    """A planted bug: what it breaks, how, and a seed that is known to show it."""

    what: str
    changes: tuple[Change, ...]
    seed: int


def changed_code(changes: tuple[Change, ...]) -> dict[FunctionType, CodeType]:
    """The code of each function with the bug. A text that its function does not have exactly once is an error."""
    sources: dict[FunctionType, str] = {}
    for function, old, new in changes:
        assert isinstance(function, FunctionType)
        source = sources.get(function) or textwrap.dedent(inspect.getsource(function))
        assert source.count(old) == 1, f"{function.__qualname__} has no longer one {old!r}"
        sources[function] = source.replace(old, new)
    return {function: _compiled(function, source) for function, source in sources.items()}


@contextlib.contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Plant a bug while entered."""
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
        "a message counts although its lease has ended: the fence is not looked at",
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
        23,
    ),
    "expired-lease": Bug(
        "a message is accepted after its lease has expired",
        (
            Change(leases.require_lease, " or attempt.expires_at <= d.now:", ":"),
            Change(checkpoints.write_checkpoint, " or attempt.expires_at <= d.now:", ":"),
        ),
        23,
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
        "a claim is not charged", (Change(leases.grant_lease, "step.charged += 1", "pass"),), 0
    ),
    "proof-without-fence": Bug(
        "a proof of death that comes late ends the lease of whoever has the step by now",
        (
            Change(leases.expire_dead_lease, "if c.n != step.attempt:", "if False:"),
            Change(leases.expire_dead_lease, " or attempt.session != c.session:", ":"),
            Change(
                leases.expire_dead_lease,
                "if attempt.beat_at + us(HOLDER_SILENT_SECONDS) > d.now:",
                "if False:",
            ),
        ),
        87,
    ),
    "release-charged": Bug(
        "a release does not give the charge back",
        (Change(leases._give_back, "step.charged = max(0, step.charged - 1)", "pass"),),
        0,
    ),
    "unwritten-heartbeat": Bug(
        "a heartbeat is answered with a new expiry that is not written",
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
        "the sweeper's tick believes a cached expiry although a heartbeat has moved it",
        (Change(batch.decide_cached, " or isinstance(item.command, TIME_COMMANDS)", ""),),
        23,
    ),
    "answer-by-heartbeat": Bug(
        "a repeated message is not known again once a heartbeat has come between",
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
        "a repeated message is not known again",
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
        "a save does not look at the version: whoever read before a completion overwrites it",
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
        "a commit of unknown fate is answered as if it had happened",
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
        "a commit of unknown fate that did happen is carried out again",
        (Change(batch._answer_proven, "if not proofs:", "if True:"),),
        24,
    ),
    "hash-chain": Bug(
        "an event's hash does not cover the one before it",
        (Change(Draft.decision, "run.head, run.tenant,", 'b"", run.tenant,'),),
        0,
    ),
    # ------------------------------------------------------------------------------------------ caps
    "cap-without-lock": Bug(
        "live leases are counted before the claim's own transaction",
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
        "a run that is claimed as it is created does not ask for the cap",
        (Change(_capped, "return any(", "return False and any("),),
        15,
    ),
    "rate-not-counted": Bug(
        "max_runs_per_min is not looked at",
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
        "whoever asks counts as an approver",
        (
            Change(
                waits.decide_approval,
                "check_distinct_person(d, c.approver, behind | {approval.requester}, _MAY_NOT_DECIDE)",
                "None",
            ),
        ),
        5,
    ),
    "voted-twice": Bug(
        "one person counts twice",
        (
            Change(waits.decide_approval, "if c.approve and c.approver in votes:", "if False:"),
            Change(check_second_approver, "if one is not None:", "if False:"),
        ),
        26,
    ),
    "event-id": Bug(
        "an event that is delivered twice counts twice",
        (Change(waits.deliver_event, "if run.inbox_total and", "if False and"),),
        4,
    ),
    "early-event": Bug(
        "an event that came early is not taken by the wait for it",
        (Change(termination.take_early_events, "if row is not None:", "if False:"),),
        280,
    ),
    "child-not-settled": Bug(
        "a child's end does not settle the wait for it",
        (Change(waits.finish_child, 'if wait is not None and wait.state == "open":', "if False:"),),
        4,
    ),
    "human-time": Bug(
        "the run's deadline goes on while a person is waited for",
        (
            Change(
                Draft.show,
                'if status == "waiting_approval" and run.deadline_at is not None and not self.spec().wall_clock:',
                "if False:",
            ),
        ),
        14,
    ),
    # ------------------------------------------------------------------------------- steps and closing
    "retry-too-early": Bug(
        "a retry begins before its backoff is over",
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
        "a cancel forgets the steps that nobody has leased",
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
        "a step is opened although another one it needs is open",
        (Change(termination.end_step, "behind.needs_left -= 1", "behind.needs_left = 0"),),
        0,
    ),
    "needs-kept": Bug(
        "a failed allow-failure step keeps its dependents waiting",
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
        "a step that is skipped still counts as open",
        (Change(termination.end_step, "run.steps_open -= 1", 'run.steps_open -= step.state != "skipped"'),),
        0,
    ),
    "skipped-and-handed-out": Bug(
        "a step whose condition is false is handed out",
        (Change(resolutions._resolve, "if made.skipped:", "if False:"),),
        21,
    ),
    "input-of-the-last-try": Bug(
        "a step is tried again with the input that was made for the try before",
        (Change(ready_steps.make_ready, 'if step.resolution == "each":', "if False:"),),
        33,
    ),
    "input-never-made": Bug(
        "nobody is asked to make a step's input",
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
        "a paused run's steps can be claimed",
        (Change(ready_steps.make_ready, "not run.paused and ", ""),),
        68,
    ),
    "key-never-again": Bug(
        "a run that waits for its concurrency key never looks again",
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
        "a planner that says nothing is waited for without an end",
        (Change(admit, 'if run.status == "planning" and', "if False and"),),
        44,
    ),
    "outbox-forgotten": Bug(
        "what is owed to another run is deleted without being delivered",
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
        "a delivered row stays and is delivered for ever",
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
        "an action of an earlier attempt is said to have failed although it was done",
        (
            Change(act_outcomes.settle, 'c.state == "succeeded"', 'c.state == "succeeded" and own'),
            Change(act_outcomes.settle, "if not own:", "if False:"),
            Change(act_outcomes.settle, 'elif c.state == "failed":', 'elif c.state == "failed" or not own:'),
        ),
        270,
    ),
    "act-key-shared": Bug(
        "two runs do the action of one key",
        (
            Change(
                acts.intend, "if holder is not None:", "if holder is not None and holder.run_id == d.run.id:"
            ),
        ),
        84,
    ),
    "act-intended-for-ever": Bug(
        "what is intended stays so when its step ends",
        (Change(receipts.lose_intended_receipts, 'row.state == "intent"', "False"),),
        62,
    ),
    "act-write-not-given-back": Bug(
        "a write that did not happen stays counted",
        (Change(receipts.give_back_write, "run_spend.writes - 1", "run_spend.writes"),),
        5,
    ),
    "act-unapproved": Bug(
        "an action is done without the approval that it needs",
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
        "a process waits for what is due by its host's clock, which may be behind the store's time",
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
