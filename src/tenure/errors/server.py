"""Errors of the server: requests, credentials, and what tenants have registered."""

from __future__ import annotations

from tenure.errors.spec import ErrorSpec, spec

CODES: dict[str, ErrorSpec] = {
    # -------------------------------------------------------------------------------------------- HTTP
    "REQUEST_MALFORMED": spec(400, "The request is malformed.", "Correct what the message names."),
    "CURSOR_INVALID": spec(
        400,
        "The cursor does not belong to this list and tenant.",
        "Use `next_cursor` of the page before with the same filters, or start without a cursor.",
    ),
    "FILTER_CHANGED": spec(
        409,
        "The token is for another filter, or the matching runs have changed since.",
        "Repeat the request without the token, look at the matching runs, and send the new token.",
    ),
    "UNAUTHENTICATED": spec(
        401,
        "The credential is missing, unknown, expired or revoked.",
        "Set a valid key in TENURE_KEY or TENURE_KEY_FILE. Create one with `tenure keys create`.",
        at_api="a key is sent as `Authorization: Bearer tn_...`, a lease's token as `Authorization: Bearer tl_...`",
    ),
    "SIGNATURE_INVALID": spec(
        401,
        "The signature does not match the body, or its timestamp is too old or too new. Nothing was recorded.",
        "Check the secret on both sides, and the sender's clock.",
    ),
    "FORBIDDEN": spec(
        403,
        "This credential does not have the role for this request.",
        "See docs/roles.md for the role that is needed, and ask an admin for it. Some requests need the operator's key.",
    ),
    "ORIGIN_REFUSED": spec(
        403,
        "A page of another site used the browser's session.",
        "Send the request from this server's pages, or use a key instead of the session.",
    ),
    "APPROVER_NOT_ELIGIBLE": spec(
        403,
        "Only a person with the role approver, in the approval's group, may decide.",
        "Ask such a person. A client's key cannot decide.",
    ),
    "NOT_FOUND": spec(
        404,
        "There is no such address at this server.",
        "Check the address. A server of another version may not have it.",
        at_api="GET /openapi.json lists the addresses",
    ),
    "METHOD_NOT_ALLOWED": spec(
        405,
        "This address does not support the method.",
        "Use a supported method.",
        at_api="the `Allow` header lists its methods",
    ),
    "STREAM_RESET": spec(
        410,
        "The events after this id are no longer stored.",
        "Read the current state, then follow the stream from now on.",
        at_api="read GET /runs, then open the stream without Last-Event-ID",
    ),
    "UNSUPPORTED_MEDIA_TYPE": spec(
        415,
        "This address does not accept the body's content type.",
        "Send JSON.",
        at_api="send `Content-Type: application/json`",
    ),
    "RATE_LIMITED": spec(
        429,
        "This credential exceeds its request rate, or too many invalid credentials came from this address.",
        "Wait, then try again.",
        retryable=True,
        at_api="the `Retry-After` header says how long to wait",
    ),
    "TOO_MANY_CONNECTIONS": spec(
        429,
        "This client address has too many connections or unfinished request bodies.",
        "Close or reuse connections. The limits are in docs/server.md.",
        retryable=True,
        at_api="the `Retry-After` header says when to try again",
    ),
    "TOO_MANY_STREAMS": spec(
        429,
        "This credential, or its tenant, has too many open streams.",
        "Close a stream first. One stream can follow many runs.",
        retryable=True,
        at_api="`run=` may be repeated",
    ),
    "SERVER_BUSY": spec(
        503,
        "The server has reached its limit of connections, request bytes or queued work.",
        "Try again in a moment. If it happens often, start more servers or raise the limit (docs/server.md).",
        retryable=True,
        at_api="the `Retry-After` header says when to try again",
    ),
    "UPSTREAM_UNAVAILABLE": spec(
        502,
        "The database or another service that this server needs cannot be reached.",
        "Try again later.",
        retryable=True,
        at_api="GET /readyz tells when",
    ),
    "NOT_READY": spec(
        503,
        "The server is starting, stopping or cannot reach its database.",
        "Try again later.",
        retryable=True,
    ),
    "LISTEN_REFUSED": spec(
        422,
        "The server cannot listen at this address.",
        "Choose a free port. For an address other than loopback, give --tls-cert and --tls-key, or --behind-proxy.",
    ),
    "EXTRA_MISSING": spec(
        500,
        "An optional part of Tenure is not installed.",
        "Install it: pip install 'tenure[server]'.",
    ),
    "NLM_UNAVAILABLE": spec(
        502, "The language model cannot be reached.", "Start a new run later.", retryable=True
    ),
    "AGENT_TIMEOUT": spec(504, "The agent exceeded its timeout.", "Give it more time or less work."),
    # ------------------------------------------------------------------------- who asks, and their things
    "TENANT_NOT_FOUND": spec(404, "There is no such tenant.", "List the tenants with `tenure tenants list`."),
    "CLIENT_NOT_FOUND": spec(404, "There is no such client.", "List the clients with `tenure clients list`."),
    "PERSON_NOT_FOUND": spec(404, "There is no such person.", "List the people with `tenure people list`."),
    "KEY_NOT_FOUND": spec(404, "There is no such key.", "List the keys with `tenure keys list`."),
    "ALREADY_EXISTS": spec(409, "This id is taken.", "Choose another id."),
    "CHANGED_MEANWHILE": spec(
        409,
        "It was changed since you read it.",
        "Read it again, then repeat the change if it still applies.",
        retryable=True,
    ),
    "SLACK_APP_NOT_REGISTERED": spec(
        403,
        "The operator has not registered a Slack app for this team. Without one, people cannot link accounts or decide in Slack.",
        "Ask the operator to register it: `tenure tenants slack-app TENANT TEAM --secret REFERENCE`.",
    ),
    "SLACK_APP_NOT_FOUND": spec(
        404, "There is no Slack app of this team.", "List the apps with `tenure tenants slack-apps TENANT`."
    ),
    "ENROLMENT_INVALID": spec(
        401,
        "The enrolment code is unknown, used or expired.",
        "Ask an admin for a new one: `tenure people enrol`.",
    ),
    "SLACK_CODE_INVALID": spec(
        422,
        "The code from Slack is unknown, used or expired.",
        "Type `/tenure link` in Slack for a new code. It is valid for ten minutes.",
    ),
    "HOOK_NOT_FOUND": spec(
        404,
        "There is no such hook.",
        "List the hooks with `tenure hooks list`.",
        at_api="GET /hooks lists them",
    ),
    "DELIVERY_NOT_FOUND": spec(
        404,
        "There is no such delivery.",
        "List the deliveries with `tenure hooks deliveries HOOK`.",
        at_api="GET /hooks/{id}/deliveries lists them",
    ),
    "WEBHOOK_NOT_FOUND": spec(
        404,
        "There is no such subscription.",
        "List the subscriptions at the server.",
        at_api="GET /webhooks lists them",
    ),
    "WORKFLOW_NOT_FOUND": spec(
        404,
        "There is no such workflow, or no such version of it.",
        "List the workflows with `tenure workflows list`. Start a worker that has it, or register it with `tenure workflows register`.",
        at_api="GET /workflows lists what is registered",
    ),
    "ARTIFACT_NOT_FOUND": spec(
        404,
        "The run has no such artifact.",
        "List the artifacts with `tenure runs artifacts RUN`. Use `--step NAME --attempt N` for one that was not accepted.",
        at_api="GET /runs/{id}/artifacts lists them, ?step=NAME&attempt=N choose one",
    ),
    "ARTIFACT_AMBIGUOUS": spec(
        409,
        "Several steps of the run have an artifact of this name.",
        "Choose one with `--step NAME --attempt N`. List them with `tenure runs artifacts RUN`.",
        at_api="add ?step=NAME&attempt=N",
    ),
    "SECRET_UNAVAILABLE": spec(
        500,
        "The reference of a secret points to a variable or file that is missing here.",
        "Set the variable, or write the file, on the host that runs the server.",
    ),
}
