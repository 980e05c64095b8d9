"""Every error of Tenure has a stable code; this registry is the one list of them.

`docs/errors/CODE.md` says for each what it means and what to do; the error links to it.
"""

from __future__ import annotations

from typing import Any

import msgspec

DOCS_PREFIX = "docs/errors/"


class ErrorSpec(msgspec.Struct, frozen=True):
    """What is true of every error with this code."""

    status: int
    """The HTTP status it has at the API."""
    retryable: bool
    """Whether the same request may succeed later without being changed."""
    meaning: str
    remedy: str


def _spec(status: int, meaning: str, remedy: str, *, retryable: bool = False) -> ErrorSpec:
    return ErrorSpec(status, retryable, meaning, remedy)


CODES: dict[str, ErrorSpec] = {
    # ------------------------------------------------------------------------------------- lifecycle
    "RUN_NOT_FOUND": _spec(
        404, "There is no such run for this tenant.", "Check the id with `tenure runs list`."
    ),
    "RUN_INVALID_TRANSITION": _spec(
        409,
        "The state does not accept this input.",
        "Look at the state with `tenure runs show`; nothing was changed.",
    ),
    "RUN_TERMINAL_STATE": _spec(
        409,
        "The run is finished and does not change any more.",
        "Start a new run with `resume` or `rerun`; labels and metadata may still be updated.",
    ),
    "RUN_ORPHANED": _spec(
        500,
        "The owner of the run was lost and nothing could be resumed.",
        "Rerun it, or record checkpoints so that it can resume.",
    ),
    "RUN_RESUME_FAILED": _spec(
        500,
        "A step that is neither resumable nor idempotent had started before the crash.",
        "Find out whether its effect happened; then resume and say so, or rerun.",
    ),
    "RUN_TIMED_OUT": _spec(
        504, "The run passed its deadline.", "Give it a longer timeout, or make it faster."
    ),
    "RUN_CANCELED": _spec(409, "The run was canceled.", "Rerun it if that was a mistake."),
    "RUN_CANCELING": _spec(
        409, "Cancellation has been requested.", "Stop working and acknowledge the cancel."
    ),
    "RUN_ID_TAKEN": _spec(409, "Another run has this id.", "Ask again; ids are made anew.", retryable=True),
    "RUN_NOT_SEALED": _spec(409, "The run is not sealed yet, so it may not be deleted.", "Seal it first."),
    "RUN_MOVED_ON": _spec(
        409,
        "The run's history goes on behind what was to be sealed.",
        "Build the evidence anew; a sealer does so by itself.",
        retryable=True,
    ),
    "EVIDENCE_BROKEN": _spec(
        409,
        "The run's history does not recompute: somebody has written into the database.",
        "Run `tenure doctor`. No evidence is made of it, and it is not deleted.",
    ),
    "EVIDENCE_NOT_FOUND": _spec(
        404, "There is no such part of this run's evidence.", "See `tenure evidence list RUN`."
    ),
    "PLAN_FAILED": _spec(
        422, "The planner failed or took too long.", "Look at the planner's error and start a new run."
    ),
    "PLAN_INVALID": _spec(
        422,
        "The plan is not one: a cycle, a duplicate key, an unknown need.",
        "Correct the plan; the details name the steps.",
    ),
    "WORKFLOW_INVALID": _spec(
        422,
        "The workflow file is not one; the details name each place by line and column.",
        "Correct the places named in the details; docs/declared.md says what a file may have.",
    ),
    "WORKFLOW_FAILED": _spec(
        500,
        "The workflow's own code failed, outside of its steps.",
        "Look at its error and at `tenure runs logs`, which has the traceback; then correct the code and rerun the run.",
    ),
    "EXPRESSION_FAILED": _spec(
        422,
        "An expression of a workflow has no value, or one of the wrong type.",
        "Look at the value it names; `has(...)` and `? :` guard what may be missing.",
    ),
    "STEP_NOT_FOUND": _spec(404, "The run has no such step.", "Check the key with `tenure runs show`."),
    "STEP_TIMED_OUT": _spec(
        504, "The step passed its timeout.", "Give it a longer timeout, or make it faster."
    ),
    "STEP_STALLED": _spec(
        504,
        "The step was alive and showed no progress for as long as it may.",
        "Look at its last word of progress; call `tenure.current().progress(…)` more often, or give it more time.",
    ),
    "STEP_LOST": _spec(
        500, "The step's leases were lost as often as it may be tried.", "Look at why its workers die."
    ),
    "STEP_FAILED": _spec(500, "The step failed.", "Look at its error."),
    "STEP_CANCELED": _spec(409, "A required step was canceled by itself.", "Rerun the run."),
    "STEP_SKIPPED": _spec(409, "A required step was skipped.", "Look at the step it needed."),
    "INTERNAL_ERROR": _spec(
        500, "Something failed that has no code of its own.", "Look at the log with the command's id."
    ),
    # ---------------------------------------------------------------------------------------- leases
    "LEASE_STALE": _spec(
        409,
        "The lease has ended or is another's; the message changed nothing.",
        "Drop the work; claim again.",
    ),
    "LEASE_NOT_ACTIVE": _spec(409, "The lease was not acknowledged yet.", "Acknowledge it first."),
    "LEASE_NOT_FOUND": _spec(404, "There is no such lease.", "Claim again."),
    "MESSAGE_OUT_OF_ORDER": _spec(
        409,
        "A newer message of this lease was accepted already.",
        "Number messages in the order they are sent.",
    ),
    "HEARTBEAT_TOO_SLOW": _spec(
        422, "The heartbeat interval is over a third of the lease.", "Beat faster, or ask for a longer lease."
    ),
    "CHECKPOINT_CONFLICT": _spec(
        409,
        "This checkpoint was recorded with another content.",
        "Code or arguments changed since it was recorded: run the code that recorded it, or rerun the run.",
    ),
    "CHECKPOINT_OPEN": _spec(
        409,
        "Something was begun that can be neither skipped nor repeated: the step cannot let go of its lease now.",
        "Let it end and record it as done (resumable) or failed, then suspend.",
    ),
    "CHECKPOINT_LIMIT": _spec(
        422, "The run has too many checkpoints.", "Record fewer and larger ones, or go on in a new run."
    ),
    # --------------------------------------------------------------------------- waits and approvals
    "WAIT_NOT_FOUND": _spec(404, "There is no such wait.", "Open it first."),
    "WAIT_EXPIRED": _spec(
        504, "What was waited for did not come in time.", "Wait longer, or handle the expiry."
    ),
    "WAIT_LIMIT": _spec(422, "Too many open waits.", "Wait for fewer things at once."),
    "EVENT_BUFFER_FULL": _spec(
        429, "Too many events are buffered for this run.", "Let the run consume some first.", retryable=True
    ),
    "APPROVAL_NOT_FOUND": _spec(404, "There is no such approval.", "List them with `tenure approvals list`."),
    "APPROVAL_DECIDED": _spec(409, "The approval has been decided already.", "Nothing to do."),
    "APPROVAL_EXPIRED": _spec(409, "The approval expired before it was decided.", "Ask again."),
    "APPROVAL_DIGEST_MISSING": _spec(
        422,
        "The answer has to name what was shown.",
        "Look at the question, and say its digest with the answer.",
    ),
    "APPROVAL_STALE": _spec(
        409,
        "The approval was revised; this answers an older question.",
        "Look at the newest revision and decide again.",
    ),
    "APPROVAL_NOT_GIVEN": _spec(409, "There is no yes of this person to be taken back.", "Nothing to do."),
    "APPROVAL_REJECTED": _spec(409, "A person said no.", "Change what is proposed and ask again."),
    "APPROVER_IS_REQUESTER": _spec(403, "Whoever asks does not approve.", "Ask somebody else."),
    "APPROVER_COUNTED": _spec(
        409,
        "This person has said yes already, and counts once.",
        "Ask somebody else: a second person answers over a server, with a key of their own.",
    ),
    "APPROVER_NOT_IN_GROUP": _spec(
        403,
        "The approval is for the people of a group.",
        "Ask somebody who is in it; an admin says who is (`tenure people change --group`).",
    ),
    "CHILD_NOT_KNOWN": _spec(
        409,
        "The child's restart has not been heard of yet.",
        "Nothing to do: it is told again.",
        retryable=True,
    ),
    "CHILD_FAILED": _spec(500, "A child run did not succeed.", "Look at the child's error."),
    # ------------------------------------------------------------------------- idempotency and limits
    "IDEMPOTENCY_CONFLICT": _spec(
        409, "The key is in use for another request.", "Use a new key for a new request."
    ),
    "IDEMPOTENCY_KEY_REUSED": _spec(
        422, "The key was used for another request.", "Use a new key for a new request."
    ),
    "IDEMPOTENCY_EXPIRED": _spec(
        409, "The answer to this key is no longer kept; the details name the run.", "Look at the run."
    ),
    "PAYLOAD_TOO_LARGE": _spec(
        413,
        "The payload is over the inline limit.",
        "Keep it elsewhere (a file, a bucket, a table) and pass where it is.",
    ),
    "ARTIFACT_LOST": _spec(
        500,
        "A large payload that was kept among the artifacts is gone or damaged.",
        "Restore the artifacts of this run from a backup, then resume it; or rerun it.",
    ),
    "LIMIT_EXCEEDED": _spec(422, "A limit was passed; the details name it.", "Stay below it."),
    "TENANT_RATE_LIMITED": _spec(
        429, "The tenant starts more runs a minute than it may.", "Try again later.", retryable=True
    ),
    "QUEUE_FULL": _spec(503, "Too many commands are waiting.", "Try again after a moment.", retryable=True),
    "INVALID_INPUT": _spec(
        422, "The input does not have the right form; the details say where.", "Correct it."
    ),
    # ------------------------------------------------------------------------- schedules and workflows
    "SCHEDULE_INVALID": _spec(
        422,
        "The schedule has no meaning: its cron expression, its time zone or its policy.",
        "Correct the places named in the details; `tenure schedule create --help` explains the form.",
    ),
    "SCHEDULE_NOT_FOUND": _spec(
        404, "There is no such schedule for this tenant.", "List them with `tenure schedule list`."
    ),
    "SCHEDULE_EXISTS": _spec(
        409, "There is a schedule of this name already.", "Choose another name, or delete that one first."
    ),
    "SCHEDULE_CHANGED": _spec(
        409,
        "Somebody else has changed or deleted the schedule meanwhile.",
        "Look at it again, then repeat what still makes sense.",
        retryable=True,
    ),
    "WORKFLOW_CHANGED": _spec(
        409,
        "This version of the workflow is registered with another text.",
        "Give the changed workflow a new version: runs under way go on with the one they began with.",
    ),
    # -------------------------------------------------------------------------------------------- HTTP
    "REQUEST_MALFORMED": _spec(
        400, "The request cannot be read.", "Correct it; the message says what is wrong with it."
    ),
    "CURSOR_INVALID": _spec(
        400,
        "The cursor is not one of this list and this tenant.",
        "Take it from `next_cursor` of the page before, with the same filters; or begin without one.",
    ),
    "FILTER_CHANGED": _spec(
        409,
        "The token is for another filter, or the runs that fit have changed since.",
        "Ask once more without the token, look at what fits now, and send the new one.",
    ),
    "UNAUTHENTICATED": _spec(
        401,
        "There is no credential, or it is not known, expired or revoked.",
        "Send `Authorization: Bearer tn_...`; make a key with `tenure keys create`.",
    ),
    "SIGNATURE_INVALID": _spec(
        401,
        "The signature does not fit the bytes, or its time is too far off. Nothing was recorded.",
        "Check the secret on both sides, and the sender's clock.",
    ),
    "FORBIDDEN": _spec(
        403, "This credential may not do that.", "docs/roles.md says which role may; ask an admin for it."
    ),
    "ORIGIN_REFUSED": _spec(
        403,
        "A browser's session was used from another site.",
        "Send the request from this server's own pages, or use a key instead of the cookie.",
    ),
    "APPROVER_NOT_ELIGIBLE": _spec(
        403,
        "Only a person who is an approver, in the group that was asked, decides.",
        "Ask somebody who is; a service's key never decides.",
    ),
    "NOT_FOUND": _spec(404, "There is nothing at this address.", "GET /openapi.json lists the addresses."),
    "METHOD_NOT_ALLOWED": _spec(
        405, "This address has no such method.", "The `Allow` header lists its methods."
    ),
    "STREAM_RESET": _spec(
        410,
        "The events after this id are no longer kept.",
        "Read the state anew (GET /runs), then open the stream without Last-Event-ID.",
    ),
    "UNSUPPORTED_MEDIA_TYPE": _spec(
        415,
        "The body has another content type than this address takes.",
        "Send `Content-Type: application/json`.",
    ),
    "RATE_LIMITED": _spec(
        429,
        "This credential asks more often than it may.",
        "Wait as long as Retry-After says.",
        retryable=True,
    ),
    "UPSTREAM_UNAVAILABLE": _spec(
        502,
        "What is behind this server cannot be reached.",
        "Try again; GET /readyz tells when.",
        retryable=True,
    ),
    "NOT_READY": _spec(503, "The server cannot do its work now.", "Try again later.", retryable=True),
    "LISTEN_REFUSED": _spec(
        422,
        "The server may not, or cannot, listen at this address.",
        "Beyond this machine it needs --tls-cert and --tls-key, or --behind-proxy; else choose a free port.",
    ),
    "EXTRA_MISSING": _spec(
        500,
        "A part of Tenure is needed that is not installed.",
        "Install it: pip install 'tenure[server]'.",
    ),
    "NLM_UNAVAILABLE": _spec(
        502, "The language model cannot be reached.", "Try again later, by a new run.", retryable=True
    ),
    "AGENT_TIMEOUT": _spec(504, "The agent took longer than it may.", "Give it more time, or less to do."),
    # ------------------------------------------------------------------------- who asks, and their things
    "TENANT_NOT_FOUND": _spec(404, "There is no such tenant.", "List them with `tenure tenants list`."),
    "CLIENT_NOT_FOUND": _spec(404, "There is no such client.", "List them with `tenure clients list`."),
    "PERSON_NOT_FOUND": _spec(404, "There is no such person.", "List them with `tenure people list`."),
    "KEY_NOT_FOUND": _spec(404, "There is no such key.", "List them with `tenure keys list`."),
    "ALREADY_EXISTS": _spec(409, "There is one of this id already.", "Choose another id."),
    "CHANGED_MEANWHILE": _spec(
        409,
        "Somebody else has changed it meanwhile.",
        "Look at it again, then repeat what still makes sense.",
        retryable=True,
    ),
    "ENROLMENT_INVALID": _spec(
        401,
        "The enrolment code is not known, used or expired.",
        "Ask an admin for a new one: `tenure people enrol`.",
    ),
    "SLACK_CODE_INVALID": _spec(
        422,
        "The code from Slack is not known here, used or expired.",
        "Type `/tenure link` in Slack for a new one; it is good for ten minutes.",
    ),
    "HOOK_NOT_FOUND": _spec(404, "There is no such hook.", "List them with GET /hooks."),
    "DELIVERY_NOT_FOUND": _spec(
        404, "There is no such delivery.", "List them with GET /hooks/{id}/deliveries."
    ),
    "WEBHOOK_NOT_FOUND": _spec(404, "There is no such subscription.", "List them with GET /webhooks."),
    "WORKFLOW_NOT_FOUND": _spec(
        404,
        "There is no such workflow, or not in this version.",
        "Start a worker that has it, or register it: `tenure workflows register`.",
    ),
    "ARTIFACT_NOT_FOUND": _spec(
        404, "The run has no such artifact.", "List them with GET /runs/{id}/artifacts."
    ),
    "SECRET_UNAVAILABLE": _spec(
        500,
        "A secret's reference leads nowhere here.",
        "Set the variable or write the file that the reference names, where the server runs.",
    ),
    # ------------------------------------------------------------------------------------------ policy
    "POLICY_INVALID": _spec(
        422,
        "The policy file is not one; the details name each place by line and column.",
        "Correct the places named in the details; docs/policy.md says what a file may have.",
    ),
    "POLICY_NOT_FOUND": _spec(
        404, "There is no such version of the policy.", "List them with `tenure policy list`."
    ),
    "POLICY_DENIED": _spec(
        403,
        "The policy does not allow the action, so nothing was called.",
        "`tenure policy explain RUN` names the rules; change the action, or have the policy changed.",
    ),
    "POLICY_MISSING": _spec(
        403,
        "The tenant has no active policy, and without one everything is denied.",
        "Publish one and activate it: `tenure policy publish FILE`, `tenure policy activate VERSION`.",
    ),
    "POLICY_NO_RULE": _spec(
        403,
        "No rule of the policy speaks for the action, and what nobody allows is denied.",
        "Add a rule for its connector and operation; `tenure policy test FILE` shows what it says.",
    ),
    "POLICY_ERROR": _spec(
        403,
        "The policy, or a condition of it, could not be evaluated: that is a denial.",
        "`tenure policy explain RUN` names the rule; guard what may be missing with `has(...)`.",
    ),
    "SECOND_PERSON_NEEDED": _spec(
        403,
        "A second person must say it: whoever proposed it does not confirm it.",
        "Ask another person with the role to repeat the command.",
    ),
    "FROZEN": _spec(
        409,
        "Actions of this tenant, workflow or connector are frozen.",
        "`tenure freeze --list` shows what is; two people end it with `tenure thaw`.",
    ),
    # ------------------------------------------------------------------------------- seals and the ledger
    "SIGNING_KEY_UNAVAILABLE": _spec(
        500,
        "The key that seals is not where its reference says, or may not be used as it lies there.",
        "The message says what is wrong with it; docs/ledger.md explains the references. Nothing was signed.",
    ),
    "SIGNING_KEY_UNKNOWN": _spec(
        409,
        "The key that is configured is not the one that seals here, or it is revoked.",
        "Let the old key endorse it with `tenure signing-keys rotate`; `tenure signing-keys list` shows which there are.",
    ),
    "SEAL_UNTRUSTED": _spec(
        422,
        "A signature is not one of a key that is trusted for its time.",
        "Ask whoever sealed it for the trust file, on another way than the one the bundle came; believe nothing until then.",
    ),
    "LEDGER_CHECKPOINT_INVALID": _spec(
        422,
        "This is no signed checkpoint of a ledger, or not of this one.",
        "Take the file that `tenure ledger export` wrote, as it was written.",
    ),
    "LEDGER_BROKEN": _spec(
        500,
        "The ledger is not the one that was signed: something was changed, dropped or put back.",
        "`tenure ledger check` names the place. Nothing is signed over it; restore the database from an honest backup.",
    ),
    # ----------------------------------------------------------------------------------------- actions
    "ACTION_CHANGED": _spec(
        409,
        "Another action was recorded at this place of the workflow: its code does not do the same again.",
        "Let target, fields and key of an action depend only on the input and on what was recorded.",
    ),
    "LEASE_TOO_SHORT": _spec(
        409,
        "Too little is left of the lease for a call to be made under it.",
        "Nothing to do: it is asked for again after the next heartbeat.",
        retryable=True,
    ),
    "WRITES_EXCEEDED": _spec(
        403,
        "The run has made as many writes as max_writes_per_run allows. Nothing was called.",
        "Let the workflow write less in one run, or raise the cap with `tenure tenants caps TENANT --max-writes-per-run`.",
    ),
    "BUDGET_EXCEEDED": _spec(
        403,
        "The run has spent more than its budget.",
        "Look at its costs; start it again with a larger budget if it is worth that.",
    ),
    "RECEIPT_NOT_FOUND": _spec(404, "The run has no such receipt.", "List them with `tenure runs receipts`."),
    "RECEIPT_SETTLED": _spec(409, "It is known already how this action ended.", "Nothing to do."),
    "RECEIPT_UNKNOWN": _spec(
        409,
        "Nobody said in time whether an action happened whose answer was lost.",
        "Find out and settle the receipt; then resume the run.",
    ),
    "ACT_IN_STEP": _spec(
        422,
        "tenure.act was called inside a step; a step is one thing that is done or not, and may be done again.",
        "Call it from the workflow itself: let the step return what is to be done, and act on it there.",
    ),
    "ACTION_FAILED": _spec(
        502,
        "An action was not done: the other side refused it, or a person said that it did not happen.",
        "The message says why. It is known not to have happened, so that it may be done again.",
    ),
    "ACTION_CONFLICT": _spec(
        409,
        "What an action was to take back is no longer what we wrote: it was left alone.",
        "Look at the target; whoever changed it knows what it should be.",
    ),
    "ACTION_BUSY": _spec(
        409,
        "Another run is doing the action of this key, and its end is not known yet.",
        "Nothing to do: it is asked for again.",
        retryable=True,
    ),
    "ACTION_LATE": _spec(
        503,
        "The time for a call was over before it was made, so that it was not made.",
        "Nothing to do: it is tried again.",
        retryable=True,
    ),
    # -------------------------------------------------------------------------------------- connectors
    "CONNECTORS_INVALID": _spec(
        422,
        "The file of connectors is not one; the details name each place by line and column.",
        "Correct the places named in the details; docs/connectors.md says what a file may have.",
    ),
    "UNKNOWN_OPERATION": _spec(
        422,
        "No connector that is set up here has this operation.",
        "Look for it in docs/connectors.md; it is written `connector.operation`, and its connector is set up in the file of connectors.",
    ),
    "SECRET_NOT_A_REFERENCE": _spec(
        422,
        "A field that holds a secret was given something else than a reference to one.",
        "Give `env:NAME` or `file:/PATH`. If the secret itself was sent, change it.",
    ),
    "OUTGOING_REFUSED": _spec(
        403,
        "A request was to go where requests may not go: a host that is not listed, or a private address. Nothing was sent.",
        "List the host at its connector; docs/connectors.md says what is out of reach and why.",
    ),
    "CONNECTOR_UNREACHABLE": _spec(
        503,
        "The other service could not be reached; nothing was sent.",
        "Try again; if it goes on, look at its name, its port and its certificate.",
        retryable=True,
    ),
    "CONNECTOR_RATE_LIMITED": _spec(
        429,
        "The other service takes no more calls for now; nothing was done.",
        "Try again after the time that it names.",
        retryable=True,
    ),
    "CONNECTOR_REJECTED": _spec(
        422,
        "The other service refused the call; nothing was done.",
        "Look at what it said, which the message repeats, and correct target, fields or permissions.",
    ),
    "CONNECTOR_ANSWER_LOST": _spec(
        502,
        "The call was sent and it is not known what became of it.",
        "Look in the other service whether it was done, and settle the receipt.",
    ),
    # ---------------------------------------------------------------------------------------- profiles
    "PROFILE_NOT_FOUND": _spec(404, "There is no such profile.", "List them with `tenure lifecycle list`."),
    "PROFILE_INVALID": _spec(
        422,
        "The profile file is malformed or breaks the kernel's lifecycle.",
        "Correct the places named in the details; `tenure lifecycle show NAME --json` shows a profile that is right.",
    ),
    # ------------------------------------------------------------------------------------------ stores
    "STORE_UNAVAILABLE": _spec(
        502,
        "The database cannot be reached.",
        "Check the address, then the server or the file's permissions.",
        retryable=True,
    ),
    "STORE_BUSY": _spec(
        503,
        "The database stayed locked past the command's deadline.",
        "Try again; look for long transactions.",
        retryable=True,
    ),
    "STORE_READ_ONLY": _spec(
        503,
        "The database cannot be written.",
        "Check that its folder exists, the permissions of both, and the disk.",
    ),
    "STORE_FULL": _spec(503, "The disk is full.", "Free space; nothing was half-done.", retryable=True),
    "STORE_TOO_NEW": _spec(500, "The database was made by a newer Tenure.", "Upgrade this installation."),
    "STORE_NOT_MIGRATED": _spec(
        500, "The database is empty or older than this Tenure.", "Run `tenure migrate`."
    ),
    "STORE_NOT_A_DATABASE": _spec(
        422, "The file or the DSN is not a database of ours.", "Check the path or DSN."
    ),
    "COMMAND_FAILED": _spec(
        500,
        "A step's command ended with another exit code than 0, or could not be started.",
        "Look at the end of its output, which the message repeats.",
    ),
    "COMMAND_DEADLINE": _spec(
        504,
        "The command did not get through before its deadline.",
        "Ask for the state, then repeat.",
        retryable=True,
    ),
}


class Detail(msgspec.Struct, frozen=True):
    """One problem at one place of the input."""

    path: str
    problem: str


class TenureError(Exception):
    """A refusal with a stable code. It changed nothing."""

    def __init__(self, code: str, message: str = "", details: tuple[Detail, ...] = (), **data: Any) -> None:
        self.spec = CODES[code]
        self.code = code
        self.message = message or self.spec.meaning
        self.details = details
        self.data = data
        super().__init__(f"{code}: {self.message}")

    @property
    def docs(self) -> str:
        """Where the page of this code lies."""
        return f"{DOCS_PREFIX}{self.code}.md"

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.spec.retryable

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.code, self.message, self.details, self.data))


def _rebuild(code: str, message: str, details: tuple[Detail, ...], data: dict[str, Any]) -> TenureError:
    return TenureError(code, message, details, **data)
