"""Errors of runs, steps, leases, waits, approvals, schedules, profiles and stores."""

from __future__ import annotations

from tenure.errors.spec import ErrorSpec, spec

CODES: dict[str, ErrorSpec] = {
    # ------------------------------------------------------------------------------------- lifecycle
    "RUN_NOT_FOUND": spec(404, "The tenant has no such run.", "Check the id with `tenure runs list`."),
    "RUN_INVALID_TRANSITION": spec(
        409,
        "The run or step is in a state that does not allow this. Nothing was changed.",
        "Look at the state with `tenure runs show RUN`.",
    ),
    "RUN_TERMINAL_STATE": spec(
        409,
        "The run has finished and cannot change.",
        "Start a new run with `resume` or `rerun`. Labels and metadata can still be updated.",
    ),
    "RUN_ORPHANED": spec(
        500,
        "The worker of the run was lost, and the run has no checkpoint to resume from.",
        "Rerun it. Record checkpoints so that a run can resume.",
    ),
    "RUN_RESUME_FAILED": spec(
        500,
        "A step had started that is neither resumable nor idempotent, so it cannot be started again.",
        "Find out whether its effect happened. Then resume the run and say so, or rerun it.",
    ),
    "RUN_TIMED_OUT": spec(
        504, "The run passed its deadline.", "Give it a longer timeout, or make it faster."
    ),
    "RUN_CANCELED": spec(409, "The run was canceled.", "Rerun it if that was a mistake."),
    "RUN_CANCELING": spec(
        409, "Cancellation has been requested.", "Stop working and acknowledge the cancel."
    ),
    "RUN_ID_TAKEN": spec(409, "Another run has this id.", "Try again: a new id is made.", retryable=True),
    "RUN_NOT_SEALED": spec(409, "The run is not sealed, so it cannot be deleted.", "Seal it first."),
    "RUN_MOVED_ON": spec(
        409,
        "The run has new events since its evidence was built.",
        "Build the evidence again. A sealer does that by itself.",
        retryable=True,
    ),
    "EVIDENCE_BROKEN": spec(
        409,
        "The run's history does not match its hashes: the database was changed from outside.",
        "Run `tenure doctor`. The run is neither sealed nor deleted until it is repaired.",
    ),
    "EVIDENCE_NOT_FOUND": spec(
        404, "The run's evidence has no such part.", "List the parts with `tenure evidence list RUN`."
    ),
    "PLAN_FAILED": spec(
        422, "The planner failed or took too long.", "Look at the planner's error, then start a new run."
    ),
    "PLAN_INVALID": spec(
        422,
        "The plan is invalid, for example by a cycle, a duplicate name or an unknown need.",
        "Correct the steps that the details name.",
    ),
    "WORKFLOW_INVALID": spec(
        422,
        "The workflow file is invalid. The details name each problem by line and column.",
        "Correct the places that the details name. docs/declared.md describes the format.",
    ),
    "COMMANDS_UNCONFINED": spec(
        422,
        "On this host, commands of workflow files could read the worker's secrets and database.",
        "Start the worker as root (commands then run as another user), or on a host that allows user namespaces, or accept the risk with"
        " `--allow-unconfined-commands` (in Python `allow_unconfined_commands=True`).",
    ),
    "WORKFLOW_FAILED": spec(
        500,
        "The workflow's code failed outside of its steps.",
        "Read the traceback with `tenure runs logs RUN`, correct the code, then rerun the run.",
    ),
    "EXPRESSION_FAILED": spec(
        422,
        "An expression of a workflow has no value, or one of the wrong type.",
        "Check the value that the message names. Guard values that may be missing with `has(...)` or `? :`.",
    ),
    "STEP_NOT_FOUND": spec(404, "The run has no such step.", "Check its name with `tenure runs show RUN`."),
    "STEP_TIMED_OUT": spec(
        504, "The step passed its timeout.", "Give it a longer timeout, or make it faster."
    ),
    "STEP_STALLED": spec(
        504,
        "The step reported no progress for too long.",
        "Look at its last progress. Call `tenure.current().progress(…)` more often, or give it more time.",
    ),
    "STEP_LOST": spec(
        500, "The step lost its lease in every attempt it had.", "Find out why its workers stop."
    ),
    "STEP_NOT_BEGUN": spec(
        503,
        "The worker was stopped before the step began. Nothing was done.",
        "Nothing to do: another worker runs the step.",
        retryable=True,
    ),
    "STEP_FAILED": spec(500, "The step failed.", "Look at its error with `tenure runs show RUN`."),
    "STEP_CANCELED": spec(409, "A required step was canceled, and not the whole run.", "Rerun the run."),
    "STEP_SKIPPED": spec(409, "A required step was skipped.", "Look at the error of the step that it needs."),
    "INTERNAL_ERROR": spec(
        500,
        "An unexpected failure: a defect of Tenure or of its environment.",
        "Look for the id of the request in the log, and report the defect.",
    ),
    # ---------------------------------------------------------------------------------------- leases
    "LEASE_STALE": spec(
        409,
        "The lease has ended, or another worker holds it. The message changed nothing.",
        "Stop the work and claim again.",
    ),
    "LEASE_NOT_ACTIVE": spec(409, "The lease was not acknowledged.", "Acknowledge it first."),
    "LEASE_NOT_FOUND": spec(404, "There is no such lease.", "Claim again."),
    "MESSAGE_OUT_OF_ORDER": spec(
        409,
        "A message of this lease with a higher number was accepted before.",
        "Number the messages in the order of sending.",
    ),
    "HEARTBEAT_TOO_SLOW": spec(
        422,
        "The heartbeat interval is longer than a third of the lease.",
        "Send heartbeats more often, or ask for a longer lease.",
    ),
    "CHECKPOINT_CONFLICT": spec(
        409,
        "The checkpoint was recorded before with other contents.",
        "The code or its arguments changed since. Run the code that recorded it, or rerun the run.",
    ),
    "CHECKPOINT_OPEN": spec(
        409,
        "The step has begun something that can be neither skipped nor repeated, so it cannot give up its lease now.",
        "Record its end as done (resumable) or failed, then suspend.",
    ),
    "CHECKPOINT_LIMIT": spec(
        422,
        "The run has too many checkpoints.",
        "Record fewer, larger checkpoints, or continue in a new run with `tenure.restart(…)`.",
    ),
    # --------------------------------------------------------------------------- waits and approvals
    "WAIT_NOT_FOUND": spec(404, "The step has no such wait.", "Open the wait first."),
    "WAIT_EXPIRED": spec(
        504, "The event or answer did not come in time.", "Wait longer, or handle the expiry in the code."
    ),
    "WAIT_LIMIT": spec(422, "The run has too many open waits.", "Wait for fewer things at once."),
    "EVENT_BUFFER_FULL": spec(
        429,
        "Too many events are buffered for this run.",
        "Try again when the run has taken some of them.",
        retryable=True,
    ),
    "APPROVAL_NOT_FOUND": spec(
        404, "There is no such approval.", "List the approvals with `tenure approvals list`."
    ),
    "APPROVAL_DECIDED": spec(409, "The approval is decided.", "Nothing to do."),
    "APPROVAL_EXPIRED": spec(
        409, "The approval expired before it was decided.", "Rerun or resume the run to ask again."
    ),
    "APPROVAL_DIGEST_MISSING": spec(
        422,
        "The answer does not name the digest of what was shown.",
        "Look at the question, and give its digest with the answer.",
    ),
    "APPROVAL_STALE": spec(
        409,
        "The question was revised: this answer is to an older revision.",
        "Look at the newest revision, and decide again.",
    ),
    "APPROVAL_NOT_GIVEN": spec(
        409, "This person has not approved, so there is no approval to withdraw.", "Nothing to do."
    ),
    "APPROVAL_REJECTED": spec(409, "A person rejected the proposal.", "Change the proposal and ask again."),
    "APPROVER_IS_REQUESTER": spec(
        403,
        "A person who caused, changed or fed the run cannot approve it, nor can anybody who counts as the same person.",
        "Ask another person. docs/separation-of-duties.md says who is involved in a run, and how an edit is confirmed.",
    ),
    "TOO_MANY_BEHIND": spec(
        409,
        "Too many people are involved in this run, so nobody can be shown to be a second person.",
        "Reject the approval or cancel the run, and start a run in which fewer people are involved.",
    ),
    "ACCOUNT_NOT_LINKED": spec(
        409,
        "An external account that is not linked to a person caused or fed this run. It may be the approver's own.",
        "Reject or cancel this run. Link the account to its owner (in Slack with `/tenure link`; an admin sets a GitHub login), and start the run again.",
    ),
    "APPROVER_COUNTED": spec(
        409,
        "This person has approved before, and counts once.",
        "Ask a second person, who answers through a server with their own key.",
    ),
    "APPROVER_NOT_IN_GROUP": spec(
        403,
        "Only members of the approval's group may approve.",
        "Ask a member of the group. An admin sets the members with `tenure people change --group`.",
    ),
    "CHILD_NOT_KNOWN": spec(
        409,
        "The child run has restarted, and the parent does not know its new run yet.",
        "Nothing to do: the message is delivered again.",
        retryable=True,
    ),
    "CHILD_FAILED": spec(500, "A child run did not succeed.", "Look at the child's error."),
    # ------------------------------------------------------------------------- idempotency and limits
    "IDEMPOTENCY_CONFLICT": spec(
        409,
        "A run that has not finished uses this idempotency key for a different request.",
        "Use a new key for a new request.",
    ),
    "IDEMPOTENCY_KEY_REUSED": spec(
        422, "The idempotency key was used for a different request.", "Use a new key for a new request."
    ),
    "IDEMPOTENCY_EXPIRED": spec(
        409,
        "The answer for this idempotency key is no longer stored. The details name the run.",
        "Look at the run.",
    ),
    "PAYLOAD_TOO_LARGE": spec(
        413,
        "The payload is larger than the limit.",
        "Store it elsewhere (a file, a bucket, a table), and pass its location.",
    ),
    "ARTIFACT_LOST": spec(
        500,
        "A large payload that was stored as an artifact is missing or damaged.",
        "Restore the artifacts of this run from a backup and resume it, or rerun it.",
    ),
    "LIMIT_EXCEEDED": spec(422, "A limit was exceeded. The details name it.", "Stay within the limit."),
    "TENANT_RATE_LIMITED": spec(
        429,
        "The tenant has reached max_runs_per_min.",
        "Try again after the time in the message.",
        retryable=True,
    ),
    "QUEUE_FULL": spec(503, "Too many commands are waiting.", "Try again after a moment.", retryable=True),
    "INVALID_INPUT": spec(
        422, "The input is invalid. The details say where.", "Correct the places that the details name."
    ),
    # ------------------------------------------------------------------------- schedules and workflows
    "SCHEDULE_INVALID": spec(
        422,
        "The schedule's cron expression, time zone or catch-up policy is invalid.",
        "Correct the places that the details name. `tenure schedule create --help` explains the form.",
    ),
    "SCHEDULE_NOT_FOUND": spec(
        404, "The tenant has no such schedule.", "List the schedules with `tenure schedule list`."
    ),
    "SCHEDULE_EXISTS": spec(
        409, "The tenant has a schedule of this name.", "Choose another name, or delete that schedule first."
    ),
    "SCHEDULE_CHANGED": spec(
        409,
        "The schedule was changed or deleted since you read it.",
        "Read it again, then repeat the change if it still applies.",
        retryable=True,
    ),
    "WORKFLOW_CHANGED": spec(
        409,
        "This version of the workflow is registered with different contents.",
        "Give the changed workflow a new version. Runs that have started keep their version.",
    ),
    # ---------------------------------------------------------------------------------------- profiles
    "PROFILE_NOT_FOUND": spec(
        404, "There is no such profile.", "List the profiles with `tenure lifecycle list`."
    ),
    "PROFILE_NOT_HERE": spec(
        503,
        "This process does not have the run's profile, so it cannot change the run. Another process may have it.",
        "Start every process with the same TENURE_PROFILES (see docs/profiles.md), then try again.",
        retryable=True,
    ),
    "PROFILE_INVALID": spec(
        422,
        "The profile file is invalid, or contradicts the kernel's lifecycle.",
        "Correct the places that the details name. `tenure lifecycle show NAME --toml` prints a valid file,"
        " and docs/profiles.md explains the format.",
    ),
    # ------------------------------------------------------------------------------------------ stores
    "STORE_UNAVAILABLE": spec(
        502,
        "The database cannot be reached.",
        "Check the address, that the server runs, and the file's permissions.",
        retryable=True,
    ),
    "STORE_BUSY": spec(
        503,
        "The database was locked until the command's deadline.",
        "Try again. Look for long transactions of other programs.",
        retryable=True,
    ),
    "STORE_READ_ONLY": spec(
        503,
        "The database cannot be written.",
        "Check that its folder exists, the permissions of folder and file, and the disk.",
    ),
    "STORE_PERMISSION_DENIED": spec(
        503,
        "The database role lacks a privilege.",
        "Connect as the role that ran `tenure migrate`, or grant the privilege that the message names.",
    ),
    "STORE_POOLER_REFUSED": spec(
        503,
        "The connection pooler does not support prepared statements.",
        "Use pgbouncer 1.21 or newer with `max_prepared_statements` above 0 (docs/operating.md), or connect to"
        " PostgreSQL directly.",
    ),
    "STORE_FULL": spec(
        503, "The disk is full. Nothing was written.", "Free some space, then try again.", retryable=True
    ),
    "STORE_TOO_NEW": spec(500, "A newer version of Tenure made this database.", "Upgrade this installation."),
    "STORE_NOT_MIGRATED": spec(
        500, "The database is empty, or an older version of Tenure made it.", "Run `tenure migrate`."
    ),
    "STORE_NOT_A_DATABASE": spec(422, "The file or DSN is not a Tenure database.", "Check the path or DSN."),
    "COMMAND_FAILED": spec(
        500,
        "The step's command could not be started, or its exit code was not 0.",
        "Look at the end of its output in the message.",
    ),
    "COMMAND_DEADLINE": spec(
        504,
        "The command was not committed before its deadline. It may still take effect.",
        "Read the state, then repeat the command if necessary.",
        retryable=True,
    ),
}
