"""Samples of every message between a runner and its server. Every field is set in at least one of them."""

from __future__ import annotations

from typing import Any

from tenure import ids
from tenure.kernel import commands as c
from tenure.kernel.costs import Cost
from tenure.kernel.lease_types import Lease, LeaseReply
from tenure.kernel.run_terms import RunTerms
from tenure.sdk.act_request import ActRequest, ActResult
from tenure.store.replay import ReplayAct, ReplayCheckpoint, ReplayWait

RUN, CHILD = 1_760_000_000 << 26 | 1, 1_760_000_000 << 26 | 2
AT = 1_760_000_000_123_456
ENVELOPE: dict[str, Any] = {
    "run_id": RUN,
    "idx": 3,
    "n": 2,
    "tenant": "acme",
    "context": c.Context("worker:one", "system", "cause"),
}
SPENT = (Cost("acme", "large", 10, 20, 1_500_000, "USD"), Cost("acme", "small", 1, 2, 3, "EUR"))

_CHECKPOINT = c.RecordCheckpoint(
    **ENVELOPE,
    seq=7,
    name="gather[1]/build#2",
    state="failed",
    output=b'{"a":[1,2.50,null]}',
    error="BROKEN",
    message="it läuft nicht".encode(),
    arguments=bytes(range(8)),
    resumable=False,
    idempotent=False,
    tries=3,
    next_at=AT,
    input=b"[1]",
    closes=4,
    meta='{"us":12,"agent":"x"}',
    spent=SPENT,
)
_CHILD_RUN = c.StartChild(
    run_id=CHILD,
    workflow="build",
    code_version="2",
    profile="ci",
    input=b'{"x":1}',
    plan=(
        c.StepSpec(name="one", tool="t.a", needs=(), input=b'"in"', retries=2, timeout_seconds=1.5),
        c.StepSpec(
            name="two",
            kind="approval",
            needs=("one",),
            required=False,
            queue="fast",
            backoff=c.BackoffSpec((1.0, 2.0), 0.1),
            lease_seconds=30.0,
            idempotency_key="k",
            approval=c.ApprovalSpec("ship", "high", 2, 60.0, "ab", "ops"),
            wait=c.WaitSpec("push", "github", 5.0),
        ),
    ),
    on_close="wait",
    timeout_seconds=90.0,
    terms=RunTerms(budget=5_250_000, currency="USD", compensate=True),
)
_PLAIN_CHILD = c.StartChild(run_id=CHILD, workflow="build")

COMMANDS: dict[str, c.LeaseCommand] = {
    "ack": c.AckLease(**ENVELOPE, seq=1),
    "heartbeat": c.Heartbeat(**ENVELOPE, seq=0, progress="half"),
    "heartbeat bare": c.Heartbeat(**ENVELOPE, seq=0),
    "checkpoint": _CHECKPOINT,
    "checkpoint bare": c.RecordCheckpoint(**ENVELOPE, seq=2, name="a"),
    "checkpoint null": c.RecordCheckpoint(**ENVELOPE, seq=2, name="a", output=b"null", state="started"),
    "checkpoint text": c.RecordCheckpoint(**ENVELOPE, seq=2, name="a", output=b"no json", input=b"\xff\x00"),
    "uploading": c.BeginUpload(**ENVELOPE, seq=3),
    "suspend": c.Suspend(**ENVELOPE, seq=4, waits=(1, 2)),
    "wait approval": c.OpenWait(
        **ENVELOPE, seq=5, label="w", approval=c.ApprovalSpec("ship"), question=b'{"q":1}', fatal=True
    ),
    "wait event": c.OpenWait(**ENVELOPE, seq=5, label="w", event=c.WaitSpec("push", "github", 5.0)),
    "wait time": c.OpenWait(**ENVELOPE, seq=5, label="w", until=AT),
    "start": c.OpenWait(**ENVELOPE, seq=6, label="s", child=_CHILD_RUN, fatal=True),
    "start bare": c.OpenWait(**ENVELOPE, seq=6, label="s", child=_PLAIN_CHILD),
    "propose": c.OpenWait(
        **ENVELOPE, seq=7, label="p", proposal=c.ApprovalSpec("ship", "med"), question=b"[]"
    ),
    "cost": c.ReportCost(**ENVELOPE, seq=8, cost="1 USD", spent=SPENT),
    "complete": c.Complete(
        **ENVELOPE,
        seq=9,
        output=b'{"ok":true}',
        cost="1 USD",
        spent=SPENT,
        last=_CHECKPOINT,
        restart=_CHILD_RUN,
    ),
    "complete bare": c.Complete(**ENVELOPE, seq=9),
    "complete plan": c.Complete(
        **ENVELOPE,
        seq=9,
        plan=(
            c.StepSpec(
                name="one",
                tool="t.a",
                input=b'"in"',
                reuse=c.ReuseSpec(scope="site/pull/5", digest="ab" * 32, also=("site/trusted",)),
            ),
            c.StepSpec(name="two", needs=("one",), condition="inputs.x == 2", skipped=True),
        ),
    ),
    "complete empty plan": c.Complete(**ENVELOPE, seq=9, plan=()),
    "fail": c.Fail(
        **ENVELOPE, seq=10, code="BROKEN", message=b"it broke", retryable=False, cost="1 USD", spent=SPENT
    ),
    "fail bare": c.Fail(**ENVELOPE, seq=10),
    "release": c.Release(**ENVELOPE, seq=11),
    "park": c.Park(**ENVELOPE, seq=12, why="step 'a' differs"),
    "cancel-ack": c.AckCancel(**ENVELOPE, seq=13),
}
REPLIES = {
    "reply": LeaseReply("go_on", True, AT, 4, "approved", None, (1, 2), True),
    "reply bare": LeaseReply(),
}
LEASES = {
    "lease": Lease(
        run_id=RUN,
        idx=3,
        n=2,
        tenant="acme",
        workflow="build",
        code_version="2",
        profile="ci",
        name="main",
        kind="body",
        tool="",
        idempotency_key="key",
        expires_at=AT,
        timeout_at=AT + 1,
        heartbeat_seconds=2.5,
        lease_seconds=30.0,
        input_ref=None,
        recorded=True,
        input=b'{"x":1}',
        trace="00-aa-bb-01",
        granted_at=AT - 5,
        asked_at=12.5,
    )
}
CHECKPOINTS = {
    "row": ReplayCheckpoint(
        "a", 1, "failed", 2, False, True, b"\x01\x02", AT, 3, AT + 9, "BROKEN", '{"us":1}', 0, b'"out"'
    ),
    "row erased": ReplayCheckpoint("a", 1, "done", 2, True, True, b"", AT, 1, None, None, None, 0, None),
    "row bare": ReplayCheckpoint("a", 1, "done", 2, True, True, b"", AT, 1, None, None, None, None, None),
}
WAITS = {
    "wait": ReplayWait(
        1, "w", "approval", "ship", "settled", "approved", AT, AT + 1, AT + 2, b"[1]", 2, "ada", b'"why"',
        None, None, None, None, None,
    ),
    "wait child": ReplayWait(
        2, "s", "child", str(CHILD), "settled", "finished", AT, None, AT + 2, None, None, None, None,
        CHILD, "failed", "BROKEN", b"null", b'"no"',
    ),
    "wait open": ReplayWait(
        3, "t", "timer", "", "open", None, AT, None, None, None, None, None, None, None, None, None, None, None
    ),
}  # fmt: skip
ACTS = {
    "act": ReplayAct(
        "act:a.b", 1, 2, False, "a", "b.c", "key", b"", "failed", 2, "", AT, 0, AT + 1, False, AT + 2, "BROKEN", 4,
        b'{"target":{}}', b'"no"',
    ),
    "act bare": ReplayAct(
        "act:a.b", 1, 1, True, "a", "b", "key", b"", "intent", 1, "", AT, 0, None, False, None, None, None, None, None
    ),
}  # fmt: skip
ACT_CALLS = {
    "call": ActRequest(
        label="act:a.b",
        action="a.b",
        target={"repo": "x"},
        fields={"n": 1},
        key="k",
        why="because",
        reverses=(ids.run_text(RUN), 3),
        expects={"n": 0},
        retries=2,
        fresh=True,
    ),
    "call bare": ActRequest(label="act:a.b", action="a.b"),
}
ACT_REPLIES = {
    "result": ActResult(
        state="failed",
        result={"id": 1},
        no=4,
        code="BROKEN",
        message="no",
        retry_at=AT,
        tried=True,
        receipt=7,
    ),
    "result bare": ActResult(state="done"),
}
