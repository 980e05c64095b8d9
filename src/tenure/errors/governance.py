"""Errors of governed effects: policies, actions, connectors, seals, the ledger."""

from __future__ import annotations

from tenure.errors.spec import ErrorSpec

CODES: dict[str, ErrorSpec] = {
    # ------------------------------------------------------------------------------------------ policy
    "POLICY_INVALID": ErrorSpec(
        422,
        "The policy file is invalid. The details name each problem by line and column.",
        "Correct the places that the details name. docs/policy.md describes the format.",
    ),
    "POLICY_NOT_FOUND": ErrorSpec(
        404, "The tenant has no policy of this version.", "List the versions with `tenure policy list`."
    ),
    "POLICY_DENIED": ErrorSpec(
        403,
        "The policy denies the action. Nothing was called.",
        "See which rules denied it with `tenure policy explain RUN`. Change the action, or ask for a change of the policy.",
    ),
    "POLICY_MISSING": ErrorSpec(
        403,
        "The tenant has no active policy. Without a policy every action is denied.",
        "Publish a policy with `tenure policy publish FILE` and activate it with `tenure policy activate VERSION`.",
    ),
    "POLICY_NO_RULE": ErrorSpec(
        403,
        "No rule of the policy matches the action. An action without a rule is denied.",
        "Add a rule for its connector and operation. Try it with `tenure policy test FILE`.",
    ),
    "POLICY_ERROR": ErrorSpec(
        403,
        "A condition of the policy could not be evaluated. The action is denied.",
        "See which rule failed with `tenure policy explain RUN`. Guard fields that may be missing with `has(...)`.",
    ),
    "POLICY_FACTS_CHANGED": ErrorSpec(
        409,
        "The policy, or a fact that it used, kept changing before the call. Nothing was called.",
        "Nothing to do: the act is retried. If rules read `run.writes` or `run.spent`, run fewer acts of a run at once.",
        retryable=True,
    ),
    "SECOND_PERSON_NEEDED": ErrorSpec(
        403,
        "The change needs a second person. The person who proposed it cannot confirm it.",
        "Ask another person with the same role to repeat the command.",
    ),
    "FROZEN": ErrorSpec(
        409,
        "Actions of this tenant, workflow or connector are frozen.",
        "See the freezes with `tenure freeze --list`. Two people can end one with `tenure thaw`.",
    ),
    # ----------------------------------------------------------------------------------------- actions
    "ACTION_CHANGED": ErrorSpec(
        409,
        "The workflow recorded a different action at this place before. Its code is not deterministic.",
        "Compute the target, fields and key of an action only from the input and from recorded results.",
    ),
    "LEASE_TOO_SHORT": ErrorSpec(
        409,
        "The lease expires too soon for a call. Nothing was called.",
        "Nothing to do: the act is retried after the next heartbeat.",
        retryable=True,
    ),
    "WRITES_EXCEEDED": ErrorSpec(
        403,
        "The run has reached max_writes_per_run. Nothing was called.",
        "Write less in one run, or raise the cap with `tenure tenants caps TENANT --max-writes-per-run`.",
    ),
    "BUDGET_EXCEEDED": ErrorSpec(
        403,
        "The run has spent more than its budget.",
        "Look at its costs with `tenure runs show RUN`. To continue, rerun it with a larger budget.",
    ),
    "RECEIPT_NOT_FOUND": ErrorSpec(
        404, "The run has no such receipt.", "List its receipts with `tenure receipts list --run RUN`."
    ),
    "RECEIPT_SETTLED": ErrorSpec(
        409, "The receipt is settled: the outcome of the action is known.", "Nothing to do."
    ),
    "RECEIPT_UNKNOWN": ErrorSpec(
        409,
        "The answer of an action was lost, and nobody settled its receipt in time.",
        "Find out whether the action happened. Settle the receipt with `tenure receipts settle`, then resume the run.",
    ),
    "ACT_IN_STEP": ErrorSpec(
        422,
        "tenure.act was called inside a step. A step may be repeated as a whole, so it cannot contain an act.",
        "Call tenure.act in the workflow function. Let the step return the values that the act needs.",
    ),
    "ACTION_FAILED": ErrorSpec(
        502,
        "The action did not happen: the service refused it, or a person settled its receipt as not done.",
        "The message says why. It is safe to do the action again.",
    ),
    "ACTION_CONFLICT": ErrorSpec(
        409,
        "The action could not be undone: its target has changed since. Nothing was changed.",
        "Look at the target, and agree with the person who changed it on what to do.",
    ),
    "ACTION_BUSY": ErrorSpec(
        409,
        "Another run is carrying out the action with this key.",
        "Nothing to do: the act is retried.",
        retryable=True,
    ),
    "ACTION_LATE": ErrorSpec(
        503,
        "The call's deadline passed before the call was sent. Nothing was sent.",
        "Nothing to do: the act is retried.",
        retryable=True,
    ),
    # -------------------------------------------------------------------------------------- connectors
    "CONNECTORS_INVALID": ErrorSpec(
        422,
        "The connectors file is invalid. The details name each problem by line and column.",
        "Correct the places that the details name. docs/connectors.md describes the format.",
    ),
    "UNKNOWN_OPERATION": ErrorSpec(
        422,
        "No configured connector has this operation.",
        "Write it as `connector.operation`; docs/connectors.md lists the operations. Configure the connector in the connectors file.",
    ),
    "SECRET_NOT_A_REFERENCE": ErrorSpec(
        422,
        "A field for a secret has a value that is not a reference.",
        "Write `env:NAME` or `file:/PATH`. If you sent the secret itself, replace the secret.",
    ),
    "OUTGOING_REFUSED": ErrorSpec(
        403,
        "The request's host is not listed in its connector's settings, or has a private address. Nothing was sent.",
        "Add the host to the connector's settings. docs/connectors.md says which addresses are refused, and why.",
    ),
    "CONNECTOR_UNREACHABLE": ErrorSpec(
        503,
        "The service could not be reached. Nothing was sent.",
        "Try again. If that fails too, check its host name, port and certificate.",
        retryable=True,
    ),
    "CONNECTOR_RATE_LIMITED": ErrorSpec(
        429,
        "The service refused the call because of its rate limit. Nothing was done.",
        "Try again after the time in the message.",
        retryable=True,
    ),
    "CONNECTOR_REJECTED": ErrorSpec(
        422,
        "The service rejected the call. Nothing was done.",
        "Read the service's answer in the message, and correct the target, the fields or the permissions.",
    ),
    "CONNECTOR_ANSWER_LOST": ErrorSpec(
        502,
        "The call was sent, and its answer was lost. It may have happened.",
        "Check in the service whether it happened, then settle the receipt with `tenure receipts settle`.",
    ),
    # ------------------------------------------------------------------------------- seals and the ledger
    "SIGNING_KEY_UNAVAILABLE": ErrorSpec(
        500,
        "The signing key is not where its reference points, or cannot be used. Nothing was signed.",
        "The message says what is wrong with the key. docs/ledger.md explains the references.",
    ),
    "SIGNING_KEY_UNKNOWN": ErrorSpec(
        409,
        "The configured key is not the signing key of this tenant, or is revoked.",
        "Let the old key endorse the new one with `tenure signing-keys rotate`. List the keys with `tenure signing-keys list`.",
    ),
    "SEAL_UNTRUSTED": ErrorSpec(
        422,
        "The signature is not by a key that was trusted at its time.",
        "Get the trust file from the sealer by another channel than the bundle. Do not rely on the bundle until then.",
    ),
    "LEDGER_CHECKPOINT_INVALID": ErrorSpec(
        422,
        "The file is not a signed checkpoint of this ledger.",
        "Use the file that `tenure ledger export` wrote, unchanged.",
    ),
    "LEDGER_BROKEN": ErrorSpec(
        500,
        "The ledger differs from what was signed: entries were changed, removed or restored.",
        "Find the place with `tenure ledger check`, and restore the database from a backup. Nothing is signed until then.",
    ),
}
