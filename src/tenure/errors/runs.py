"""Errors of runs, steps, leases, waits, approvals, schedules, profiles and stores."""

from __future__ import annotations

from tenure.errors.spec import ErrorSpec

CODES: dict[str, ErrorSpec] = {
    # ------------------------------------------------------------------------------------- lifecycle
    "RUN_NOT_FOUND": ErrorSpec(404, "The tenant has no such run.", "Check the id with `tenure runs list`."),
    "RUN_INVALID_TRANSITION": ErrorSpec(
        409,
        "The run or step is in a state that does not allow this. Nothing was changed.",
        "Look at the state with `tenure runs show RUN`.",
    ),
    "RUN_TERMINAL_STATE": ErrorSpec(
        409,
        "The run has finished and cannot change.",
        "Start a new run with `resume` or `rerun`. Labels and metadata can still be updated.",
    ),
    "RUN_ORPHANED": ErrorSpec(
        500,
        "The worker of the run was lost, and the run has no checkpoint to resume from.",
        "Rerun it with `tenure runs rerun RUN`. A run that records checkpoints can be resumed.",
    ),
    "RUN_RESUME_FAILED": ErrorSpec(
        500,
        "A step that is neither resumable nor idempotent had started, so it cannot be started again.",
        "Find out whether its effect happened. Then resume the run with `tenure runs resume RUN --happened STEP` or `--repeat STEP`, or rerun it.",
    ),
    "RUN_TIMED_OUT": ErrorSpec(
        504, "The run passed its deadline.", "Give it a longer timeout, or make it faster."
    ),
    "RUN_CANCELED": ErrorSpec(
        409, "The run was canceled.", "If that was a mistake, rerun it with `tenure runs rerun RUN`."
    ),
    "RUN_CANCELING": ErrorSpec(
        409, "Cancellation has been requested.", "Stop the work and acknowledge the cancellation."
    ),
    "RUN_ID_TAKEN": ErrorSpec(
        409, "Another run has this id.", "Try again: each attempt uses a new id.", retryable=True
    ),
    "RUN_NOT_SEALED": ErrorSpec(409, "The run is not sealed, so it cannot be deleted.", "Seal it first."),
    "RUN_MOVED_ON": ErrorSpec(
        409,
        "The run has new events since its evidence was built.",
        "Build the evidence again. A sealer does so automatically.",
        retryable=True,
    ),
    "EVIDENCE_BROKEN": ErrorSpec(
        409,
        "The run's history does not match its hashes: the database was changed from outside.",
        "Run `tenure doctor`. The run is neither sealed nor deleted until it is repaired.",
    ),
    "EVIDENCE_NOT_FOUND": ErrorSpec(
        404, "The run's evidence has no such part.", "List the parts with `tenure evidence list RUN`."
    ),
    "PLAN_FAILED": ErrorSpec(
        422, "The planner failed or took too long.", "Look at the planner's error, then start a new run."
    ),
    "PLAN_INVALID": ErrorSpec(
        422,
        "The plan is invalid. For example, it has a cycle, a duplicate name or an unknown need.",
        "Correct the steps that the details name.",
    ),
    "WORKFLOW_INVALID": ErrorSpec(
        422,
        "The workflow file is invalid. The details name each problem by line and column.",
        "Correct the places that the details name. docs/declared.md describes the format.",
    ),
    "COMMANDS_UNCONFINED": ErrorSpec(
        422,
        "On this host, commands of workflow files could read the worker's secrets and database.",
        "Start the worker as root (commands then run as another user), or on a host that allows user namespaces, or accept the risk with"
        " `--allow-unconfined-commands` (in Python `allow_unconfined_commands=True`).",
    ),
    "WORKFLOW_FAILED": ErrorSpec(
        500,
        "The workflow's code failed outside of its steps.",
        "Read the traceback with `tenure runs logs RUN`, correct the code, then rerun the run.",
    ),
    "EXPRESSION_FAILED": ErrorSpec(
        422,
        "An expression of a workflow has no value, or one of the wrong type.",
        "Check the value that the message names. Guard values that may be missing with `has(...)` or `? :`.",
    ),
    "STEP_NOT_FOUND": ErrorSpec(
        404, "The run has no such step.", "Check its name with `tenure runs show RUN`."
    ),
    "STEP_TIMED_OUT": ErrorSpec(
        504, "The step passed its timeout.", "Give it a longer timeout, or make it faster."
    ),
    "STEP_STALLED": ErrorSpec(
        504,
        "The step reported no progress for too long.",
        "Look at its last progress. Call `tenure.current().progress(…)` more often, or give it more time.",
    ),
    "STEP_LOST": ErrorSpec(
        500,
        "The step lost its lease in every attempt it had.",
        "Look in the workers' logs for the reason why they stop, then rerun the run.",
    ),
    "STEP_NOT_BEGUN": ErrorSpec(
        503,
        "The worker was stopped before the step began. Nothing was done.",
        "Nothing to do: another worker runs the step.",
        retryable=True,
    ),
    "STEP_FAILED": ErrorSpec(500, "The step failed.", "Look at its error with `tenure runs show RUN`."),
    "STEP_CANCELED": ErrorSpec(409, "A required step was canceled, but the run was not.", "Rerun the run."),
    "STEP_SKIPPED": ErrorSpec(
        409, "A required step was skipped.", "Look at the error of the step that it needs."
    ),
    "INTERNAL_ERROR": ErrorSpec(
        500,
        "An unexpected failure: a defect of Tenure or of its environment.",
        "Find the request's id in the log, and report the defect with the traceback.",
    ),
    # ---------------------------------------------------------------------------------------- leases
    "LEASE_STALE": ErrorSpec(
        409,
        "The lease has ended, or another worker holds it. The message changed nothing.",
        "Stop the work and claim again.",
    ),
    "LEASE_NOT_ACTIVE": ErrorSpec(409, "The lease was not acknowledged.", "Acknowledge it first."),
    "LEASE_NOT_FOUND": ErrorSpec(404, "There is no such lease.", "Claim again."),
    "MESSAGE_OUT_OF_ORDER": ErrorSpec(
        409,
        "A message of this lease with a higher number was accepted before.",
        "Number the messages in the order of sending.",
    ),
    "HEARTBEAT_TOO_SLOW": ErrorSpec(
        422,
        "The heartbeat interval is longer than a third of the lease.",
        "Send heartbeats more often, or ask for a longer lease.",
    ),
    "CHECKPOINT_CONFLICT": ErrorSpec(
        409,
        "The checkpoint was recorded before with different contents.",
        "The code or its arguments have changed. Run the code that recorded the checkpoint, or rerun the run.",
    ),
    "CHECKPOINT_OPEN": ErrorSpec(
        409,
        "The step has started a checkpoint that can be neither skipped nor repeated, so it cannot give up its lease now.",
        "Record the checkpoint as done (resumable) or failed, then suspend.",
    ),
    "CHECKPOINT_LIMIT": ErrorSpec(
        422,
        "The run has too many checkpoints.",
        "Record fewer, larger checkpoints, or continue in a new run with `tenure.restart(…)`.",
    ),
    # --------------------------------------------------------------------------- waits and approvals
    "WAIT_NOT_FOUND": ErrorSpec(404, "The step has no such wait.", "Open the wait first."),
    "WAIT_EXPIRED": ErrorSpec(
        504, "The event or answer did not come in time.", "Allow more time, or handle the expiry in the code."
    ),
    "WAIT_LIMIT": ErrorSpec(422, "The run has too many open waits.", "Open fewer waits at the same time."),
    "EVENT_BUFFER_FULL": ErrorSpec(
        429,
        "Too many events are buffered for this run.",
        "Try again when the run has taken some of them.",
        retryable=True,
    ),
    "APPROVAL_NOT_FOUND": ErrorSpec(
        404, "There is no such approval.", "List the approvals with `tenure approvals list`."
    ),
    "APPROVAL_DECIDED": ErrorSpec(409, "The approval is decided.", "Nothing to do."),
    "APPROVAL_EXPIRED": ErrorSpec(
        409, "The approval expired before it was decided.", "Rerun or resume the run to ask again."
    ),
    "APPROVAL_DIGEST_MISSING": ErrorSpec(
        422,
        "The answer does not name the digest of what was shown.",
        "Look at the question with `tenure approvals list`, and repeat its digest in the answer.",
    ),
    "APPROVAL_STALE": ErrorSpec(
        409,
        "The question was revised: this answer is to an older revision.",
        "Look at the newest revision, and decide again.",
    ),
    "APPROVAL_NOT_GIVEN": ErrorSpec(
        409, "This person has not approved, so there is no approval to withdraw.", "Nothing to do."
    ),
    "APPROVAL_REJECTED": ErrorSpec(
        409, "A person rejected the proposal.", "Change the proposal and ask again."
    ),
    "APPROVER_IS_REQUESTER": ErrorSpec(
        403,
        "A person who started, changed or sent data to the run cannot approve it. Neither can anybody who is treated as the same person.",
        "Ask another person. docs/separation-of-duties.md says who is involved in a run, and how an edit is confirmed.",
    ),
    "TOO_MANY_BEHIND": ErrorSpec(
        409,
        "Too many people are involved in this run, so nobody can be shown to be a second person.",
        "Reject the approval or cancel the run, and start a run in which fewer people are involved.",
    ),
    "ACCOUNT_NOT_LINKED": ErrorSpec(
        409,
        "An external account that is not linked to a person started this run or sent data to it. It may be the approver's own.",
        "Reject or cancel this run. Link the account to its owner (in Slack with `/tenure link`; an admin sets a GitHub login), and start the run again.",
    ),
    "APPROVER_COUNTED": ErrorSpec(
        409,
        "This person has already approved. Each person counts once.",
        "Ask a second person, who answers through a server with their own key.",
    ),
    "APPROVER_NOT_IN_GROUP": ErrorSpec(
        403,
        "Only members of the approval's group may approve.",
        "Ask a member of the group. An admin sets the members with `tenure people change --group`.",
    ),
    "CHILD_NOT_KNOWN": ErrorSpec(
        409,
        "The child run has restarted, and the parent does not know its new run yet.",
        "Nothing to do: the message is delivered again automatically.",
        retryable=True,
    ),
    "CHILD_FAILED": ErrorSpec(
        500, "A child run did not succeed.", "Look at the child's error with `tenure runs show CHILD`."
    ),
    # ------------------------------------------------------------------------- idempotency and limits
    "IDEMPOTENCY_CONFLICT": ErrorSpec(
        409,
        "A run that has not finished uses this idempotency key for a different request.",
        "Use a new key for a new request.",
    ),
    "IDEMPOTENCY_KEY_REUSED": ErrorSpec(
        422, "The idempotency key was used for a different request.", "Use a new key for a new request."
    ),
    "IDEMPOTENCY_EXPIRED": ErrorSpec(
        409,
        "The response for this idempotency key is no longer stored. The details name the run that the key created.",
        "Look at that run with `tenure runs show RUN`. For a new request, use a new key.",
    ),
    "PAYLOAD_TOO_LARGE": ErrorSpec(
        413,
        "The payload is larger than the limit.",
        "Store it elsewhere (a file, a bucket, a table), and pass its location.",
    ),
    "ARTIFACT_LOST": ErrorSpec(
        500,
        "A large payload that was stored as an artifact is missing or damaged.",
        "Restore the artifacts of this run from a backup and resume it, or rerun it.",
    ),
    "ARTIFACT_STORE_REFUSED": ErrorSpec(
        500,
        "The server may not write to the place of the artifacts, so the logs and files of jobs are refused.",
        "Give the server's credentials the right to write to the folder or bucket in TENURE_ARTIFACTS, and run the job again.",
    ),
    "LIMIT_EXCEEDED": ErrorSpec(422, "A limit was exceeded. The message names it.", "Stay within the limit."),
    "TENANT_RATE_LIMITED": ErrorSpec(
        429,
        "The tenant has reached max_runs_per_min.",
        "Try again after the time in the message.",
        retryable=True,
    ),
    "QUEUE_FULL": ErrorSpec(
        503, "Too many commands are waiting for the database.", "Try again in a moment.", retryable=True
    ),
    "INVALID_INPUT": ErrorSpec(
        422, "The input is invalid. The details say where.", "Correct the places that the details name."
    ),
    # ------------------------------------------------------------------------- schedules and workflows
    "SCHEDULE_INVALID": ErrorSpec(
        422,
        "The schedule's cron expression, time zone or catch-up policy is invalid.",
        "Correct the places that the details name. `tenure schedule create --help` explains the options; docs/schedules.md explains the form.",
    ),
    "SCHEDULE_NOT_FOUND": ErrorSpec(
        404, "The tenant has no such schedule.", "List the schedules with `tenure schedule list`."
    ),
    "SCHEDULE_EXISTS": ErrorSpec(
        409, "The tenant has a schedule of this name.", "Choose another name, or delete that schedule first."
    ),
    "SCHEDULE_CHANGED": ErrorSpec(
        409,
        "The schedule was changed or deleted since you read it.",
        "Read it again, then repeat the change if it still applies.",
        retryable=True,
    ),
    "WORKFLOW_CHANGED": ErrorSpec(
        409,
        "This version of the workflow is registered with different contents.",
        "Give the changed workflow a new version. Runs that have started keep their version.",
    ),
    # ---------------------------------------------------------------------------------------- profiles
    "PROFILE_NOT_FOUND": ErrorSpec(
        404, "There is no such profile.", "List the profiles with `tenure lifecycle list`."
    ),
    "PROFILE_NOT_HERE": ErrorSpec(
        503,
        "This process does not have the run's profile, so it cannot change the run. Another process may have it.",
        "Start every process with the same TENURE_PROFILES (see docs/profiles.md), then try again.",
        retryable=True,
    ),
    "PROFILE_INVALID": ErrorSpec(
        422,
        "The profile file is invalid, or contradicts the kernel's lifecycle.",
        "Correct the places that the details name. `tenure lifecycle show NAME --toml` prints a valid file,"
        " and docs/profiles.md explains the format.",
    ),
    # ------------------------------------------------------------------------------------------ stores
    "STORE_UNAVAILABLE": ErrorSpec(
        502,
        "The database cannot be reached.",
        "Check the address, that the database server is running, and the permissions of the file.",
        retryable=True,
    ),
    "STORE_BUSY": ErrorSpec(
        503,
        "The database stayed locked until the command's deadline.",
        "Try again. If it happens often, look for long transactions of other programs.",
        retryable=True,
    ),
    "STORE_READ_ONLY": ErrorSpec(
        503,
        "The database cannot be written.",
        "Check that its folder exists, that folder and file are writable, and that the disk is not mounted read-only.",
    ),
    "STORE_PERMISSION_DENIED": ErrorSpec(
        503,
        "The database role lacks a privilege.",
        "Connect as the role that ran `tenure migrate`, or grant the privilege that the message names.",
    ),
    "STORE_POOLER_REFUSED": ErrorSpec(
        503,
        "The connection pooler does not support prepared statements.",
        "Use pgbouncer 1.21 or newer with `max_prepared_statements` above 0 (docs/operating.md), or connect to"
        " PostgreSQL directly.",
    ),
    "STORE_FULL": ErrorSpec(
        503, "The disk is full. Nothing was written.", "Free some space, then try again.", retryable=True
    ),
    "STORE_TOO_NEW": ErrorSpec(
        500, "A newer version of Tenure made this database.", "Upgrade this installation."
    ),
    "STORE_NOT_MIGRATED": ErrorSpec(
        500, "The database is empty, or an older version of Tenure made it.", "Run `tenure migrate`."
    ),
    "STORE_NOT_A_DATABASE": ErrorSpec(
        422,
        "The file or DSN is not a Tenure database.",
        "Check the path or DSN. `tenure migrate` creates a database.",
    ),
    "COMMAND_FAILED": ErrorSpec(
        500,
        "The step's command could not be started, or its exit code was not 0.",
        "Look at the end of its output in the message.",
    ),
    "COMMAND_DEADLINE": ErrorSpec(
        504,
        "The command was not committed before its deadline. It may still take effect.",
        "Read the state, then repeat the command if necessary.",
        retryable=True,
    ),
}
