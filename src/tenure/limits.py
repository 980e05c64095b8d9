"""All limits, each with its unit in its name."""

from __future__ import annotations

PAYLOAD_BYTES_MAX = 256 * 1024
"""Payloads in the database. A larger payload is an artifact."""
CANONICAL_DIGITS_MAX = 4_000_000
"""The digits of all doubles from 1e21 on in one value, written in full as digests need them."""
CHECKPOINT_OUTPUT_BYTES_MAX = 512
"""Outputs in the row of their checkpoint. A longer output is a payload of its own."""
ARTIFACT_BYTES_MAX = 64 * 1024 * 1024
ARTIFACTS_PER_RUN_MAX = 10_000
"""Uploaded files of all attempts together."""
ARTIFACT_PART_BYTES_MAX = 16 * 1024 * 1024
ARTIFACT_PARTS_MAX = 320
"""Parts of an artifact or a cache: 5 GiB in all."""
UPLOADS_PER_ATTEMPT_MAX = 100
"""Uploads of an attempt that are not complete."""
METADATA_BYTES_MAX = 64 * 1024
META_BYTES_MAX = 4 * 1024
"""The metadata of a checkpoint: agent, tokens, duration, cost."""
DIGEST_BYTES_MAX = 64
NAME_CHARS_MAX = 200
"""Names of tenants, workspaces, workflows, steps, queues, tools, workers and events; ids of people."""
KEY_CHARS_MAX = 255
"""Idempotency keys as requests contain them, concurrency keys, event ids, causes."""
KEY_TEXT_CHARS_MAX = 512
"""Idempotency keys with their owner: `api:CLIENT:KEY`."""
LABEL_CHARS_MAX = 1_000
"""Names of checkpoints and waits (a path of scopes and a name), references, progress messages, costs of tries."""
CODE_CHARS_MAX = 64
RETRIES_MAX = 1_000
MOMENT_US_MAX = 253_402_300_799_999_999
"""The last microsecond of the year 9999."""
INTEGER_MAX = 2**31 - 1
"""Numbers of steps, attempts, messages and waits; priorities."""
STEPS_PER_RUN_MAX = 20_000
REUSE_SCOPES_MAX = 8
"""Further scopes in which an earlier result of a step is looked for."""
REUSE_CANDIDATES_MAX = 5
"""Earlier results of a step that are examined, newest first; if their outputs are gone, the step runs."""
ROWS_DECIDED_ON_LOOP_MAX = 200
"""Steps, waits or children that a decision may look at on the event loop. A longer decision is made in a thread."""
ROWS_WRITTEN_ON_LOOP_MAX = 2_000
"""Rows of a commit that are written or encoded on the event loop. A larger commit is made in a thread."""
CHECKPOINTS_PER_RUN_MAX = 1_000_000
"""The limit of the store. The limit of a workflow (`steps_max`) is far below."""
WORKFLOW_STEPS_RECORDED_MAX = 10_000
"""The default of `steps_max`: the recorded steps of a code-first run. A replay reads them all."""
WORKFLOW_STEPS_WARNED_SHARE = 0.8
"""The share of its limit from which a run logs a warning."""
OPEN_WAITS_PER_RUN_MAX = 20_000
INVOLVED_PEOPLE_MAX = 100
"""In addition to the requester."""
EVENTS_BUFFERED_PER_RUN_MAX = 20_000
"""Delivered events that no wait has taken yet."""
EVENT_IDS_PER_RUN_MAX = 50_000
"""Event ids that a run keeps to recognise repeats."""
CHILDREN_PER_RUN_MAX = 20_000
CLAIM_STEPS_MAX = 500
BATCH_COMMANDS_MAX = 512
QUEUE_COMMANDS_MAX = 10_000
"""Waiting commands of an orchestrator. More are refused with QUEUE_FULL."""
COMMAND_SECONDS_MAX = 30.0
"""A command that takes longer fails with COMMAND_DEADLINE."""
SNAPSHOTS_CACHED_MAX = 20_000
RUN_TIMEOUT_SECONDS_MAX = 366 * 86_400.0
LEASE_SECONDS_MIN = 1.0
LEASE_SECONDS_MAX = 86_400.0
HEARTBEATS_PER_LEASE_MIN = 3
"""A lease must survive two lost heartbeats in a row."""
CALL_MARGIN_SECONDS = 0.5
"""A call must end this long before its lease expires."""
CALL_SECONDS_MIN = 0.5
"""With less time left in the lease no call is started, unless its own limit is shorter."""
SPENT_MICROS_MAX = 10**15
COST_COUNT_MAX = 10**12
COST_TOTAL_MAX = 2**62
"""Sums of costs saturate here."""
COSTS_PER_MESSAGE_MAX = 100
COST_LINES_PER_RUN_MAX = 500
"""Costs beyond it are counted under `others`."""
CURRENCIES_PER_RUN_MAX = 8
COST_WORD_CHARS_MAX = 100
"""The name of a provider or a model."""
COST_CURRENCY_CHARS_MAX = 8
RECEIPT_SECONDS = 7 * 86_400.0
"""The default time for people to settle an unknown action."""
KEY_POLL_SECONDS = 5.0
"""How often the first run in line for a concurrency key checks again, in case a wake-up was lost."""
KEY_LINE_POLL_SECONDS = 30.0
"""How often a run with others before it checks again."""
KEY_HORIZON_SECONDS = KEY_LINE_POLL_SECONDS + KEY_POLL_SECONDS
"""A run that checks again within this time is in line for its key. A run that is delayed longer is not."""
IDEMPOTENCY_DONE_SECONDS = 86_400.0
"""How long the response to a key is stored after its run has succeeded."""
IDEMPOTENCY_FAILED_SECONDS = 3_600.0
IDEMPOTENCY_LOCK_SECONDS = 300.0
"""How long the process that handles a request owns its key."""
IDEMPOTENCY_TRIES_MAX = 3
"""How often a request may be tried under its key if the failures are not its own fault."""
DELIVERY_TRIES_MAX = 20
"""A delivery that could not be processed in so many tries is set aside."""
DELIVERY_CRASHES_MAX = 4
"""A delivery is set aside if its process ended so often while processing it."""
DELIVERY_PAUSE_SECONDS_MAX = 300.0
"""The pauses between the tries double up to this."""
FEED_SECONDS = 86_400.0
"""How long the feed is stored, for streams that resume and webhooks that were disabled."""
FEED_ROWS_MAX = 5_000_000
"""Commits in the feed, if there are more within `FEED_SECONDS`."""
NOTICE_DEAD_SECONDS = 30 * 86_400.0
"""How long an undeliverable webhook is listed."""
SWEEP_SECONDS = 0.25
SWEEP_TIMERS_MAX = 500
SET_ASIDE_MAX = 10_000
"""Due items that a sweeper or scheduler leaves to other processes, because it lacks their profile."""
PROFILE_BYTES_MAX = 256 * 1024
PROFILES_OWN_MAX = 100
WORKFLOW_BYTES_MAX = 256 * 1024
WORKFLOW_DEPTH_MAX = 32
"""Nested lists and maps in a workflow file."""
WORKFLOW_NODES_MAX = 20_000
"""Keys and values in a workflow file."""
WORKFLOW_STEPS_MAX = 1_000
PROBLEMS_MAX = 50
"""Reported problems of one file or one input."""
SUGGESTIONS_MAX = 10
""""Did you mean ...?" in the errors of one document."""
EXPRESSION_BYTES_MAX = 2 * 1024
COMPREHENSIONS_MAX = 8
COMPREHENSIONS_NESTED_MAX = 2
EXPRESSION_DEPTH_MAX = 50
"""Nested parentheses, operators and fields."""
EXPRESSION_WORK_MAX = 10_000_000
"""The work of one expression in the worst case, in units of about 10 ns."""
EXPRESSIONS_WORK_MAX = 20_000_000
"""The work of all expressions of one plan, step, delivery or verdict."""
EXPRESSION_MEMORY_BYTES_MAX = 64 * 1024 * 1024
EXPRESSION_VALUE_BYTES_MAX = 4 * 1024 * 1024
"""A value that an expression may use, as JSON."""
POLICY_RULES_MAX = 1_000
POLICY_RULES_PER_OPERATION_MAX = 100
"""A verdict names all rules for its operation."""
POLICY_CASES_MAX = 1_000
POLICY_PEOPLE_MAX = 20
"""Approvers that a rule may require."""
SHADOWED_MAX = 10_000
"""Decisions that are evaluated with another policy at once."""
POLICIES_CACHED_MAX = 500
"""Tenants whose active policy a process keeps compiled."""
COMMAND_OUTPUT_BYTES_MAX = 128 * 1024
"""The end of each output of a command that is kept. Both outputs together fit into a payload."""
COMMAND_LINE_BYTES_MAX = 16 * 1024
"""A longer line of a command's output is split."""
COMMAND_MESSAGE_BYTES_MAX = 4 * 1024
"""The end of a failed command's output that its error repeats."""
COMMAND_GRACE_SECONDS = 10.0
"""The time between SIGTERM and SIGKILL."""
WORKER_BEAT_SECONDS = 10.0
"""How often a worker updates its row."""
HOLDER_SILENT_SECONDS = 2.2
"""A proof of death counts only if the holder was silent for so long. Workers send heartbeats every two seconds."""
WORKER_SILENT_SECONDS = 45.0
"""A worker that was silent for longer counts as gone."""
WORKER_FORGOTTEN_SECONDS = 86_400.0
LOG_LINES_PER_RUN_MAX = 10_000
"""Beyond it the oldest lines are deleted."""
LOG_TEXT_CHARS_MAX = 4_000
LOG_FIELDS_BYTES_MAX = 8 * 1024
LATE_UPLOAD_SECONDS = 600.0
"""How long after its end the uploads and logs of a lease are accepted, and marked late."""
LOG_CHUNK_BYTES_MAX = 1024 * 1024
JOB_OUTPUT_BYTES_MAX = 1024 * 1024 * 1024
"""What the programs of one attempt of a job print. Nothing below it is dropped."""
LOG_BYTES_PER_ATTEMPT_MAX = JOB_OUTPUT_BYTES_MAX + 64 * 1024
"""The log of one attempt of a job, with room for the runner's line that says where it ends. More is refused."""
LOG_CHUNKS_PER_ATTEMPT_MAX = 100_000
LOG_READ_BYTES_MAX = 4 * 1024 * 1024
"""The bytes of a log in one response."""
CACHE_BYTES_PER_REPOSITORY_MAX = 10 * 1024 * 1024 * 1024
"""The caches of a repository. The least recently used are deleted."""
CACHES_PER_REPOSITORY_MAX = 10_000
CACHE_KEY_CHARS_MAX = 512
CACHE_FALLBACKS_MAX = 20
FAILED_CASES_PER_REPORT_MAX = 1_000
"""Failed tests that a report names. All are counted."""
PASSED_TESTS_PER_REPORT_MAX = 20_000
TEST_MESSAGE_CHARS_MAX = 4_000
TEST_NOTES_MAX = 200
TEST_REPORT_BYTES_MAX = 4 * 1024 * 1024
TESTS_ASKED_MAX = 1_000
TESTS_REMEMBERED_MAX = 50_000
"""Tests with a history in one scope of a repository. Beyond it the oldest failures are forgotten."""
FILE_SWEEP_SECONDS = 30.0
FILE_SWEEP_ROWS_MAX = 100
FILE_DELETION_RETRY_SECONDS_MAX = 3_600.0
SCHEDULE_SECONDS = 1.0
SCHEDULES_AT_ONCE_MAX = 100
SCHEDULE_LATE_SECONDS = 60.0
"""A slot that is found later was missed; the schedule's catch-up policy decides."""
CATCH_UP_RUNS_MAX = 100
SLOTS_SHOWN_MAX = 1_000
PIPELINE_JOBS_MAX = 1_000
"""Jobs of a pipeline file, before matrices multiply them."""
PIPELINE_PROJECTS_MAX = 5_000
"""Folders of a project graph, declared and discovered."""
MATRIX_COMBINATIONS_MAX = 256
"""Combinations of one job's matrix."""
CI_JOBS_MAX = 10_000
"""The most jobs of one plan that the settings of a repository can allow."""
CI_FILES_MAX = 500_000
"""Files of a commit."""
CI_CHANGED_FILES_MAX = 200_000
CI_PYTHON_FILES_MAX = 50_000
"""Python files whose imports are read for one plan."""
CI_PYTHON_FILE_BYTES_MAX = 1 << 20
"""A longer Python file is not parsed."""
CI_PYTHON_BYTES_MAX = 128 << 20
"""Python files that are parsed for one plan, together."""
CI_NEEDS_MAX = 200_000
"""Needs of all jobs of one plan, after matrices have multiplied them."""
CI_PLAN_BYTES_MAX = 8 << 20
"""The inputs of all jobs of one plan."""
