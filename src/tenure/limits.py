"""Every limit in one place, with its unit in its name."""

from __future__ import annotations

PAYLOAD_BYTES_MAX = 256 * 1024
"""Payloads kept in the database; of anything larger pass a reference."""
CANONICAL_DIGITS_MAX = 4_000_000
"""Digits that the doubles from 1e21 on of one value may have when they are written in full, as digests write them."""
CHECKPOINT_OUTPUT_BYTES_MAX = 512
"""Outputs kept in the row of their checkpoint; longer ones are payloads of their own."""
ARTIFACT_BYTES_MAX = 64 * 1024 * 1024
"""Payloads kept beside the database, among the artifacts."""
ARTIFACTS_PER_RUN_MAX = 10_000
"""Named files of a run, of all its attempts together."""
METADATA_BYTES_MAX = 64 * 1024
META_BYTES_MAX = 4 * 1024
"""What a checkpoint says about itself: agent, tokens, duration, cost."""
DIGEST_BYTES_MAX = 64
NAME_CHARS_MAX = 200
"""Names of tenants, workspaces, workflows, steps, queues, tools, workers and events; ids of people."""
KEY_CHARS_MAX = 255
"""Idempotency keys as they are given, concurrency keys, event ids, causes."""
KEY_TEXT_CHARS_MAX = 512
"""Idempotency keys with whose they are: `api:CLIENT:KEY`."""
LABEL_CHARS_MAX = 1_000
"""Names of checkpoints and waits (a path of scopes and a name), references, words of progress, costs of tries."""
CODE_CHARS_MAX = 64
"""Codes of failures, and reasons."""
RETRIES_MAX = 1_000
MOMENT_US_MAX = 253_402_300_799_999_999
"""The last moment of the year 9999, in microseconds."""
INTEGER_MAX = 2**31 - 1
"""Numbers of steps, attempts, messages and waits; priorities."""
STEPS_PER_RUN_MAX = 20_000
ROWS_DECIDED_ON_LOOP_MAX = 200
"""Steps, waits or children that one decision looks at in the event loop's thread. What looks at more is decided in another thread, so that the loop
turns."""
ROWS_WRITTEN_ON_LOOP_MAX = 2_000
"""Rows of one commit that are written, or made ready to be sent, in the event loop's thread; likewise."""
CHECKPOINTS_PER_RUN_MAX = 1_000_000
"""What the store takes of one run. A workflow's own limit (`steps_max`) comes long before."""
WORKFLOW_STEPS_RECORDED_MAX = 10_000
"""Recorded steps of a code-first run, where its workflow does not set `steps_max`: a replay reads them all."""
WORKFLOW_STEPS_WARNED_SHARE = 0.8
"""From this share of its limit on a run's log warns."""
OPEN_WAITS_PER_RUN_MAX = 20_000
INVOLVED_PEOPLE_MAX = 100
"""Besides the requester."""
EVENTS_BUFFERED_PER_RUN_MAX = 20_000
"""Delivered events nobody has waited for yet."""
EVENT_IDS_PER_RUN_MAX = 50_000
"""Events a run remembers for deduplication."""
CHILDREN_PER_RUN_MAX = 20_000
CLAIM_STEPS_MAX = 500
"""Steps one claim may take."""
BATCH_COMMANDS_MAX = 512
"""Commands in one commit."""
QUEUE_COMMANDS_MAX = 10_000
"""Commands waiting in one orchestrator before it says QUEUE_FULL."""
COMMAND_SECONDS_MAX = 30.0
"""How long a command may take before its caller is told COMMAND_DEADLINE."""
SNAPSHOTS_CACHED_MAX = 20_000
RUN_TIMEOUT_SECONDS_MAX = 366 * 86_400.0
LEASE_SECONDS_MIN = 1.0
LEASE_SECONDS_MAX = 86_400.0
HEARTBEATS_PER_LEASE_MIN = 3
"""Two lost heartbeats in a row must not cost a lease."""
CALL_MARGIN_SECONDS = 0.5
"""How long before the end of its lease a call on the world has to be over."""
CALL_SECONDS_MIN = 0.5
"""With less than this left of its lease no call is intended, unless it may not take longer anyway."""
SPENT_MICROS_MAX = 10**15
"""What one cost may be, in micro-units."""
COST_COUNT_MAX = 10**12
"""Tokens or calls of one cost."""
COST_TOTAL_MAX = 2**62
"""Where sums of costs stop growing."""
COSTS_PER_MESSAGE_MAX = 100
COST_LINES_PER_RUN_MAX = 500
"""What comes later is counted as others."""
CURRENCIES_PER_RUN_MAX = 8
COST_WORD_CHARS_MAX = 100
"""The name of a provider or a model."""
COST_CURRENCY_CHARS_MAX = 8
RECEIPT_SECONDS = 7 * 86_400.0
"""How long people have to say how an unknown action ended, where nothing else says it."""
KEY_POLL_SECONDS = 5.0
"""How often a run that waits for its concurrency key looks again, should the wake-up be lost."""
KEY_LINE_POLL_SECONDS = 30.0
"""How often it does so while others are before it."""
KEY_HORIZON_SECONDS = KEY_LINE_POLL_SECONDS + KEY_POLL_SECONDS
"""Whoever looks again within this is in line for its key; a run delayed for longer is not yet."""
IDEMPOTENCY_DONE_SECONDS = 86_400.0
"""How long the answer to a key is kept once its run has succeeded."""
IDEMPOTENCY_FAILED_SECONDS = 3_600.0
IDEMPOTENCY_LOCK_SECONDS = 300.0
"""Whoever processes a request under a key has it to itself for so long."""
IDEMPOTENCY_TRIES_MAX = 3
"""How often a request that fails by no fault of its own is tried under its key."""
DELIVERY_TRIES_MAX = 20
"""How often a hook's delivery is begun that could not be done; then it is set aside."""
DELIVERY_CRASHES_MAX = 4
"""How often one is begun whose process never said what became of it."""
DELIVERY_PAUSE_SECONDS_MAX = 300.0
"""Pauses between its tries double up to here."""
FEED_SECONDS = 86_400.0
"""How long it is kept what happened, for streams that resume and webhooks that were off."""
FEED_ROWS_MAX = 5_000_000
"""Commits of which that is kept, should there be more within this time."""
NOTICE_DEAD_SECONDS = 30 * 86_400.0
"""How long a webhook that could not be delivered is listed."""
SWEEP_SECONDS = 0.25
SWEEP_TIMERS_MAX = 500
SET_ASIDE_MAX = 10_000
"""Things that are due and left to other processes, which have the profile, by one sweeper or scheduler."""
PROFILE_BYTES_MAX = 256 * 1024
"""The file of a user's own profile."""
PROFILES_OWN_MAX = 100
WORKFLOW_BYTES_MAX = 256 * 1024
"""A workflow file."""
WORKFLOW_DEPTH_MAX = 32
"""Lists and maps inside each other in a workflow file."""
WORKFLOW_NODES_MAX = 20_000
"""Keys and values of a workflow file."""
WORKFLOW_STEPS_MAX = 1_000
PROBLEMS_MAX = 50
"""Problems told about one file or one input; whoever has more starts with these."""
SUGGESTIONS_MAX = 10
"""Suggestions of what was meant in one document: "did you mean ...?"."""
EXPRESSION_BYTES_MAX = 2 * 1024
COMPREHENSIONS_MAX = 8
"""In one expression."""
COMPREHENSIONS_NESTED_MAX = 2
EXPRESSION_DEPTH_MAX = 50
"""Levels of an expression: parentheses, operators and fields inside each other."""
EXPRESSION_WORK_MAX = 10_000_000
"""Work of one expression in units of about 10 ns, by `declared.expression_cost`, in the worst case."""
EXPRESSIONS_WORK_MAX = 20_000_000
"""Work of all expressions of one plan, step, delivery or verdict together."""
EXPRESSION_MEMORY_BYTES_MAX = 64 * 1024 * 1024
"""Memory that one expression may need, in the worst case."""
EXPRESSION_VALUE_BYTES_MAX = 4 * 1024 * 1024
"""What one expression may look at, as JSON."""
POLICY_RULES_MAX = 1_000
"""Rules of one policy."""
POLICY_RULES_PER_OPERATION_MAX = 100
"""Rules of one policy that are about the same operation: each verdict names them all."""
POLICY_CASES_MAX = 1_000
"""Tests in its file."""
POLICY_PEOPLE_MAX = 20
"""People a rule may ask for."""
SHADOWED_MAX = 10_000
"""Decisions that another policy is asked about at once."""
POLICIES_CACHED_MAX = 500
"""Tenants whose active policy one process keeps compiled."""
COMMAND_OUTPUT_BYTES_MAX = 128 * 1024
"""What is kept of each of a command's outputs, from the end; both together fit a payload."""
COMMAND_LINE_BYTES_MAX = 16 * 1024
"""A line of a command's output as it is handed on; longer ones are handed on in pieces."""
COMMAND_MESSAGE_BYTES_MAX = 4 * 1024
"""How much of a failed command's output its error repeats."""
COMMAND_GRACE_SECONDS = 10.0
"""How long a command may take to end after TERM before it is killed."""
WORKER_BEAT_SECONDS = 10.0
"""How often a worker says that it is there."""
HOLDER_SILENT_SECONDS = 2.2
"""How long a holder must be silent before a proof of death counts; workers send heartbeats every two seconds."""
WORKER_SILENT_SECONDS = 45.0
"""A worker that has said nothing for so long is not counted on any more."""
WORKER_FORGOTTEN_SECONDS = 86_400.0
LOG_LINES_PER_RUN_MAX = 10_000
"""Lines kept of a run's log: beyond it the oldest go."""
LOG_TEXT_CHARS_MAX = 4_000
LOG_FIELDS_BYTES_MAX = 8 * 1024
SCHEDULE_SECONDS = 1.0
"""How often a scheduler looks for slots that have come."""
SCHEDULES_AT_ONCE_MAX = 100
"""Schedules that one look takes up."""
SCHEDULE_LATE_SECONDS = 60.0
"""A slot that is found later than this was missed: the schedule's catch-up decides."""
CATCH_UP_RUNS_MAX = 100
"""Missed slots a schedule may ask to have caught up."""
SLOTS_SHOWN_MAX = 1_000
