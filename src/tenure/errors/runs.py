"""Runs, their steps, leases and waits, and the stores beneath them."""

from __future__ import annotations

from tenure.errors.spec import ErrorSpec, spec

CODES: dict[str, ErrorSpec] = {
    # ------------------------------------------------------------------------------------- lifecycle
    "RUN_NOT_FOUND": spec(
        404, "There is no such run for this tenant.", "Check the id with `tenure runs list`."
    ),
    "RUN_INVALID_TRANSITION": spec(
        409,
        "The state does not accept this input.",
        "Look at the state with `tenure runs show`; nothing was changed.",
    ),
    "RUN_TERMINAL_STATE": spec(
        409,
        "The run is finished and does not change any more.",
        "Start a new run with `resume` or `rerun`; labels and metadata may still be updated.",
    ),
    "RUN_ORPHANED": spec(
        500,
        "The owner of the run was lost and nothing could be resumed.",
        "Rerun it, or record checkpoints so that it can resume.",
    ),
    "RUN_RESUME_FAILED": spec(
        500,
        "A step that is neither resumable nor idempotent had started before the crash.",
        "Find out whether its effect happened; then resume and say so, or rerun.",
    ),
    "RUN_TIMED_OUT": spec(
        504, "The run passed its deadline.", "Give it a longer timeout, or make it faster."
    ),
    "RUN_CANCELED": spec(409, "The run was canceled.", "Rerun it if that was a mistake."),
    "RUN_CANCELING": spec(
        409, "Cancellation has been requested.", "Stop working and acknowledge the cancel."
    ),
    "RUN_ID_TAKEN": spec(409, "Another run has this id.", "Ask again; ids are made anew.", retryable=True),
    "RUN_NOT_SEALED": spec(409, "The run is not sealed yet, so it may not be deleted.", "Seal it first."),
    "RUN_MOVED_ON": spec(
        409,
        "The run's history goes on behind what was to be sealed.",
        "Build the evidence anew; a sealer does so by itself.",
        retryable=True,
    ),
    "EVIDENCE_BROKEN": spec(
        409,
        "The run's history does not recompute: somebody has written into the database.",
        "Run `tenure doctor`. No evidence is made of it, and it is not deleted.",
    ),
    "EVIDENCE_NOT_FOUND": spec(
        404, "There is no such part of this run's evidence.", "See `tenure evidence list RUN`."
    ),
    "PLAN_FAILED": spec(
        422, "The planner failed or took too long.", "Look at the planner's error and start a new run."
    ),
    "PLAN_INVALID": spec(
        422,
        "The plan is not one: a cycle, a duplicate key, an unknown need.",
        "Correct the plan; the details name the steps.",
    ),
    "WORKFLOW_INVALID": spec(
        422,
        "The workflow file is not one; the details name each place by line and column.",
        "Correct the places named in the details; docs/declared.md says what a file may have.",
    ),
    "COMMANDS_UNCONFINED": spec(
        422,
        "Commands of workflow files cannot be kept from the worker's secrets and database here.",
        "Start the worker as root (commands then run as another user) or where the kernel allows user namespaces; or accept it with"
        " `--allow-unconfined-commands` (in Python `allow_unconfined_commands=True`).",
    ),
    "WORKFLOW_FAILED": spec(
        500,
        "The workflow's own code failed, outside of its steps.",
        "Look at its error and at `tenure runs logs`, which has the traceback; then correct the code and rerun the run.",
    ),
    "EXPRESSION_FAILED": spec(
        422,
        "An expression of a workflow has no value, or one of the wrong type.",
        "Look at the value it names; `has(...)` and `? :` guard what may be missing.",
    ),
    "STEP_NOT_FOUND": spec(404, "The run has no such step.", "Check the key with `tenure runs show`."),
    "STEP_TIMED_OUT": spec(
        504, "The step passed its timeout.", "Give it a longer timeout, or make it faster."
    ),
    "STEP_STALLED": spec(
        504,
        "The step was alive and showed no progress for as long as it may.",
        "Look at its last word of progress; call `tenure.current().progress(…)` more often, or give it more time.",
    ),
    "STEP_LOST": spec(
        500, "The step's leases were lost as often as it may be tried.", "Look at why its workers die."
    ),
    "STEP_NOT_BEGUN": spec(
        503,
        "The worker was stopped just before the step began. Nothing was done.",
        "Nothing to do: another worker begins the step.",
        retryable=True,
    ),
    "STEP_FAILED": spec(500, "The step failed.", "Look at its error."),
    "STEP_CANCELED": spec(409, "A required step was canceled by itself.", "Rerun the run."),
    "STEP_SKIPPED": spec(409, "A required step was skipped.", "Look at the step it needed."),
    "INTERNAL_ERROR": spec(
        500, "Something failed that has no code of its own.", "Look at the log with the command's id."
    ),
    # ---------------------------------------------------------------------------------------- leases
    "LEASE_STALE": spec(
        409,
        "The lease has ended or is another's; the message changed nothing.",
        "Drop the work; claim again.",
    ),
    "LEASE_NOT_ACTIVE": spec(409, "The lease was not acknowledged yet.", "Acknowledge it first."),
    "LEASE_NOT_FOUND": spec(404, "There is no such lease.", "Claim again."),
    "MESSAGE_OUT_OF_ORDER": spec(
        409,
        "A newer message of this lease was accepted already.",
        "Number messages in the order they are sent.",
    ),
    "HEARTBEAT_TOO_SLOW": spec(
        422, "The heartbeat interval is over a third of the lease.", "Beat faster, or ask for a longer lease."
    ),
    "CHECKPOINT_CONFLICT": spec(
        409,
        "This checkpoint was recorded with another content.",
        "Code or arguments changed since it was recorded: run the code that recorded it, or rerun the run.",
    ),
    "CHECKPOINT_OPEN": spec(
        409,
        "Something was begun that can be neither skipped nor repeated: the step cannot let go of its lease now.",
        "Let it end and record it as done (resumable) or failed, then suspend.",
    ),
    "CHECKPOINT_LIMIT": spec(
        422, "The run has too many checkpoints.", "Record fewer and larger ones, or go on in a new run."
    ),
    # --------------------------------------------------------------------------- waits and approvals
    "WAIT_NOT_FOUND": spec(404, "There is no such wait.", "Open it first."),
    "WAIT_EXPIRED": spec(
        504, "What was waited for did not come in time.", "Wait longer, or handle the expiry."
    ),
    "WAIT_LIMIT": spec(422, "Too many open waits.", "Wait for fewer things at once."),
    "EVENT_BUFFER_FULL": spec(
        429, "Too many events are buffered for this run.", "Let the run consume some first.", retryable=True
    ),
    "APPROVAL_NOT_FOUND": spec(404, "There is no such approval.", "List them with `tenure approvals list`."),
    "APPROVAL_DECIDED": spec(409, "The approval has been decided already.", "Nothing to do."),
    "APPROVAL_EXPIRED": spec(409, "The approval expired before it was decided.", "Ask again."),
    "APPROVAL_DIGEST_MISSING": spec(
        422,
        "The answer has to name what was shown.",
        "Look at the question, and say its digest with the answer.",
    ),
    "APPROVAL_STALE": spec(
        409,
        "The approval was revised; this answers an older question.",
        "Look at the newest revision and decide again.",
    ),
    "APPROVAL_NOT_GIVEN": spec(409, "There is no yes of this person to be taken back.", "Nothing to do."),
    "APPROVAL_REJECTED": spec(409, "A person said no.", "Change what is proposed and ask again."),
    "APPROVER_IS_REQUESTER": spec(
        403,
        "Whoever caused, changed or fed a run does not approve what it does, nor does anybody who counts as one with them.",
        "Ask somebody else: docs/separation-of-duties.md says who stands behind a run, and how an edit is confirmed.",
    ),
    "TOO_MANY_BEHIND": spec(
        409,
        "So many people have caused, changed or fed this run that nobody can be shown to be a second person.",
        "Reject it or cancel it, and start a new run that fewer people have a hand in.",
    ),
    "ACCOUNT_NOT_LINKED": spec(
        409,
        "An account elsewhere that no person has linked has caused or fed this run: it may be anybody's, the approver's too.",
        "Link it to its owner (in Slack with `link` behind the command; a login at GitHub is set by an admin) and ask for the run again; reject or cancel this one.",
    ),
    "APPROVER_COUNTED": spec(
        409,
        "This person has said yes already, and counts once.",
        "Ask somebody else: a second person answers over a server, with a key of their own.",
    ),
    "APPROVER_NOT_IN_GROUP": spec(
        403,
        "The approval is for the people of a group.",
        "Ask somebody who is in it; an admin says who is (`tenure people change --group`).",
    ),
    "CHILD_NOT_KNOWN": spec(
        409,
        "The child's restart has not been heard of yet.",
        "Nothing to do: it is told again.",
        retryable=True,
    ),
    "CHILD_FAILED": spec(500, "A child run did not succeed.", "Look at the child's error."),
    # ------------------------------------------------------------------------- idempotency and limits
    "IDEMPOTENCY_CONFLICT": spec(
        409, "The key is in use for another request.", "Use a new key for a new request."
    ),
    "IDEMPOTENCY_KEY_REUSED": spec(
        422, "The key was used for another request.", "Use a new key for a new request."
    ),
    "IDEMPOTENCY_EXPIRED": spec(
        409, "The answer to this key is no longer kept; the details name the run.", "Look at the run."
    ),
    "PAYLOAD_TOO_LARGE": spec(
        413,
        "The payload is over the inline limit.",
        "Keep it elsewhere (a file, a bucket, a table) and pass where it is.",
    ),
    "ARTIFACT_LOST": spec(
        500,
        "A large payload that was kept among the artifacts is gone or damaged.",
        "Restore the artifacts of this run from a backup, then resume it; or rerun it.",
    ),
    "LIMIT_EXCEEDED": spec(422, "A limit was passed; the details name it.", "Stay below it."),
    "TENANT_RATE_LIMITED": spec(
        429, "The tenant starts more runs a minute than it may.", "Try again later.", retryable=True
    ),
    "QUEUE_FULL": spec(503, "Too many commands are waiting.", "Try again after a moment.", retryable=True),
    "INVALID_INPUT": spec(
        422, "The input does not have the right form; the details say where.", "Correct it."
    ),
    # ------------------------------------------------------------------------- schedules and workflows
    "SCHEDULE_INVALID": spec(
        422,
        "The schedule has no meaning: its cron expression, its time zone or its policy.",
        "Correct the places named in the details; `tenure schedule create --help` explains the form.",
    ),
    "SCHEDULE_NOT_FOUND": spec(
        404, "There is no such schedule for this tenant.", "List them with `tenure schedule list`."
    ),
    "SCHEDULE_EXISTS": spec(
        409, "There is a schedule of this name already.", "Choose another name, or delete that one first."
    ),
    "SCHEDULE_CHANGED": spec(
        409,
        "Somebody else has changed or deleted the schedule meanwhile.",
        "Look at it again, then repeat what still makes sense.",
        retryable=True,
    ),
    "WORKFLOW_CHANGED": spec(
        409,
        "This version of the workflow is registered with another text.",
        "Give the changed workflow a new version: runs under way go on with the one they began with.",
    ),
    # ---------------------------------------------------------------------------------------- profiles
    "PROFILE_NOT_FOUND": spec(404, "There is no such profile.", "List them with `tenure lifecycle list`."),
    "PROFILE_NOT_HERE": spec(
        503,
        "This process does not have the profile of the run, so it cannot decide about it; another one may.",
        "Start every process with the same TENURE_PROFILES; docs/profiles.md explains it. Then try again.",
        retryable=True,
    ),
    "PROFILE_INVALID": spec(
        422,
        "The profile file is malformed or breaks the kernel's lifecycle.",
        "Correct the places named in the details; `tenure lifecycle show NAME --toml` prints a file that is right,"
        " and docs/profiles.md explains it.",
    ),
    # ------------------------------------------------------------------------------------------ stores
    "STORE_UNAVAILABLE": spec(
        502,
        "The database cannot be reached.",
        "Check the address, then the server or the file's permissions.",
        retryable=True,
    ),
    "STORE_BUSY": spec(
        503,
        "The database stayed locked past the command's deadline.",
        "Try again; look for long transactions.",
        retryable=True,
    ),
    "STORE_READ_ONLY": spec(
        503,
        "The database cannot be written.",
        "Check that its folder exists, the permissions of both, and the disk.",
    ),
    "STORE_PERMISSION_DENIED": spec(
        503,
        "The database's role lacks a right.",
        "Connect as the role that ran `tenure migrate`, or grant the right that the message names.",
    ),
    "STORE_POOLER_REFUSED": spec(
        503,
        "The pooler before PostgreSQL does not keep prepared statements.",
        "Use pgbouncer 1.21 or newer with `max_prepared_statements` above 0 (docs/operating.md), or connect to"
        " PostgreSQL without it.",
    ),
    "STORE_FULL": spec(503, "The disk is full.", "Free space; nothing was half-done.", retryable=True),
    "STORE_TOO_NEW": spec(500, "The database was made by a newer Tenure.", "Upgrade this installation."),
    "STORE_NOT_MIGRATED": spec(
        500, "The database is empty or older than this Tenure.", "Run `tenure migrate`."
    ),
    "STORE_NOT_A_DATABASE": spec(
        422, "The file or the DSN is not a database of ours.", "Check the path or DSN."
    ),
    "COMMAND_FAILED": spec(
        500,
        "A step's command ended with another exit code than 0, or could not be started.",
        "Look at the end of its output, which the message repeats.",
    ),
    "COMMAND_DEADLINE": spec(
        504,
        "The command did not get through before its deadline.",
        "Ask for the state, then repeat.",
        retryable=True,
    ),
}
