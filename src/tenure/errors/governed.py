"""What is done to the world: policies, actions, connectors, seals."""

from __future__ import annotations

from tenure.errors.spec import ErrorSpec, spec

CODES: dict[str, ErrorSpec] = {
    # ------------------------------------------------------------------------------------------ policy
    "POLICY_INVALID": spec(
        422,
        "The policy file is not one; the details name each place by line and column.",
        "Correct the places named in the details; docs/policy.md says what a file may have.",
    ),
    "POLICY_NOT_FOUND": spec(
        404, "There is no such version of the policy.", "List them with `tenure policy list`."
    ),
    "POLICY_DENIED": spec(
        403,
        "The policy does not allow the action, so nothing was called.",
        "`tenure policy explain RUN` names the rules; change the action, or have the policy changed.",
    ),
    "POLICY_MISSING": spec(
        403,
        "The tenant has no active policy, and without one everything is denied.",
        "Publish one and activate it: `tenure policy publish FILE`, `tenure policy activate VERSION`.",
    ),
    "POLICY_NO_RULE": spec(
        403,
        "No rule of the policy speaks for the action, and what nobody allows is denied.",
        "Add a rule for its connector and operation; `tenure policy test FILE` shows what it says.",
    ),
    "POLICY_ERROR": spec(
        403,
        "The policy, or a condition of it, could not be evaluated: that is a denial.",
        "`tenure policy explain RUN` names the rule; guard what may be missing with `has(...)`.",
    ),
    "POLICY_FACTS_CHANGED": spec(
        409,
        "The policy, or a fact that it relied on, kept changing before the action could be intended. Nothing was called.",
        "Nothing to do: it is tried again within the act's retries. Let fewer acts of a run go on at once where rules read "
        "`run.writes` or `run.spent`.",
        retryable=True,
    ),
    "SECOND_PERSON_NEEDED": spec(
        403,
        "A second person must say it: whoever proposed it does not confirm it.",
        "Ask another person with the role to repeat the command.",
    ),
    "FROZEN": spec(
        409,
        "Actions of this tenant, workflow or connector are frozen.",
        "`tenure freeze --list` shows what is; two people end it with `tenure thaw`.",
    ),
    # ----------------------------------------------------------------------------------------- actions
    "ACTION_CHANGED": spec(
        409,
        "Another action was recorded at this place of the workflow: its code does not do the same again.",
        "Let target, fields and key of an action depend only on the input and on what was recorded.",
    ),
    "LEASE_TOO_SHORT": spec(
        409,
        "Too little is left of the lease for a call to be made under it.",
        "Nothing to do: it is asked for again after the next heartbeat.",
        retryable=True,
    ),
    "WRITES_EXCEEDED": spec(
        403,
        "The run has made as many writes as max_writes_per_run allows. Nothing was called.",
        "Let the workflow write less in one run, or raise the cap with `tenure tenants caps TENANT --max-writes-per-run`.",
    ),
    "BUDGET_EXCEEDED": spec(
        403,
        "The run has spent more than its budget.",
        "Look at its costs; start it again with a larger budget if it is worth that.",
    ),
    "RECEIPT_NOT_FOUND": spec(404, "The run has no such receipt.", "List them with `tenure runs receipts`."),
    "RECEIPT_SETTLED": spec(409, "It is known already how this action ended.", "Nothing to do."),
    "RECEIPT_UNKNOWN": spec(
        409,
        "Nobody said in time whether an action happened whose answer was lost.",
        "Find out and settle the receipt; then resume the run.",
    ),
    "ACT_IN_STEP": spec(
        422,
        "tenure.act was called inside a step; a step is one thing that is done or not, and may be done again.",
        "Call it from the workflow itself: let the step return what is to be done, and act on it there.",
    ),
    "ACTION_FAILED": spec(
        502,
        "An action was not done: the other side refused it, or a person said that it did not happen.",
        "The message says why. It is known not to have happened, so that it may be done again.",
    ),
    "ACTION_CONFLICT": spec(
        409,
        "What an action was to take back is no longer what we wrote: it was left alone.",
        "Look at the target; whoever changed it knows what it should be.",
    ),
    "ACTION_BUSY": spec(
        409,
        "Another run is doing the action of this key, and its end is not known yet.",
        "Nothing to do: it is asked for again.",
        retryable=True,
    ),
    "ACTION_LATE": spec(
        503,
        "The time for a call was over before it was made, so that it was not made.",
        "Nothing to do: it is tried again.",
        retryable=True,
    ),
    # -------------------------------------------------------------------------------------- connectors
    "CONNECTORS_INVALID": spec(
        422,
        "The file of connectors is not one; the details name each place by line and column.",
        "Correct the places named in the details; docs/connectors.md says what a file may have.",
    ),
    "UNKNOWN_OPERATION": spec(
        422,
        "No connector that is set up here has this operation.",
        "Look for it in docs/connectors.md; it is written `connector.operation`, and its connector is set up in the file of connectors.",
    ),
    "SECRET_NOT_A_REFERENCE": spec(
        422,
        "A field that holds a secret was given something else than a reference to one.",
        "Give `env:NAME` or `file:/PATH`. If the secret itself was sent, change it.",
    ),
    "OUTGOING_REFUSED": spec(
        403,
        "A request was to go where requests may not go: a host that is not listed, or a private address. Nothing was sent.",
        "List the host at its connector; docs/connectors.md says what is out of reach and why.",
    ),
    "CONNECTOR_UNREACHABLE": spec(
        503,
        "The other service could not be reached; nothing was sent.",
        "Try again; if it goes on, look at its name, its port and its certificate.",
        retryable=True,
    ),
    "CONNECTOR_RATE_LIMITED": spec(
        429,
        "The other service takes no more calls for now; nothing was done.",
        "Try again after the time that it names.",
        retryable=True,
    ),
    "CONNECTOR_REJECTED": spec(
        422,
        "The other service refused the call; nothing was done.",
        "Look at what it said, which the message repeats, and correct target, fields or permissions.",
    ),
    "CONNECTOR_ANSWER_LOST": spec(
        502,
        "The call was sent and it is not known what became of it.",
        "Look in the other service whether it was done, and settle the receipt.",
    ),
    # ------------------------------------------------------------------------------- seals and the ledger
    "SIGNING_KEY_UNAVAILABLE": spec(
        500,
        "The key that seals is not where its reference says, or may not be used as it lies there.",
        "The message says what is wrong with it; docs/ledger.md explains the references. Nothing was signed.",
    ),
    "SIGNING_KEY_UNKNOWN": spec(
        409,
        "The key that is configured is not the one that seals here, or it is revoked.",
        "Let the old key endorse it with `tenure signing-keys rotate`; `tenure signing-keys list` shows which there are.",
    ),
    "SEAL_UNTRUSTED": spec(
        422,
        "A signature is not one of a key that is trusted for its time.",
        "Ask whoever sealed it for the trust file, on another way than the one the bundle came; believe nothing until then.",
    ),
    "LEDGER_CHECKPOINT_INVALID": spec(
        422,
        "This is no signed checkpoint of a ledger, or not of this one.",
        "Take the file that `tenure ledger export` wrote, as it was written.",
    ),
    "LEDGER_BROKEN": spec(
        500,
        "The ledger is not the one that was signed: something was changed, dropped or put back.",
        "`tenure ledger check` names the place. Nothing is signed over it; restore the database from an honest backup.",
    ),
}
