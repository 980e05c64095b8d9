"""Errors of the server: requests, credentials, and what tenants have registered."""

from __future__ import annotations

from tenure.errors.spec import ErrorSpec

CODES: dict[str, ErrorSpec] = {
    # -------------------------------------------------------------------------------------------- HTTP
    "REQUEST_MALFORMED": ErrorSpec(400, "The request is malformed.", "Correct what the message names."),
    "CURSOR_INVALID": ErrorSpec(
        400,
        "The cursor does not belong to this list and tenant.",
        "Use `next_cursor` of the page before with the same filters, or start without a cursor.",
    ),
    "FILTER_CHANGED": ErrorSpec(
        409,
        "The token is for another filter, or the matching runs have changed since.",
        "Repeat the request without the token, look at the matching runs, and send the new token.",
    ),
    "UNAUTHENTICATED": ErrorSpec(
        401,
        "The credential is missing, unknown, expired or revoked.",
        "Set a valid key in TENURE_KEY or TENURE_KEY_FILE. Create one with `tenure keys create`.",
        at_api="a key is sent as `Authorization: Bearer tn_...`, a lease's token as `Authorization: Bearer tl_...`",
    ),
    "SIGNATURE_INVALID": ErrorSpec(
        401,
        "The signature does not match the body, or its timestamp is too old or too new; or the shared secret or password is wrong. Nothing was"
        " recorded.",
        "Check the secret on both sides, and the sender's clock.",
    ),
    "FORBIDDEN": ErrorSpec(
        403,
        "This credential does not have the role that the request needs.",
        "docs/roles.md lists the role for each request. Ask an admin for the role. Some requests need the operator's key.",
    ),
    "ORIGIN_REFUSED": ErrorSpec(
        403,
        "A page of another site used the browser's session.",
        "Send the request from this server's pages, or use a key instead of the session.",
    ),
    "APPROVER_NOT_ELIGIBLE": ErrorSpec(
        403,
        "Only a person with the role approver, in the approval's group, may decide.",
        "Ask such a person. A client's key cannot decide.",
    ),
    "NOT_FOUND": ErrorSpec(
        404,
        "There is no such address at this server.",
        "Check the address. A server of another version may not have it.",
        at_api="GET /openapi.json lists the addresses",
    ),
    "NOT_PUBLISHED": ErrorSpec(
        404,
        "The document has not been published yet, or does not exist.",
        "Try again in a moment. If it stays, check the id, and whether a publisher runs (`tenure serve --publish`, `tenure publish`).",
        retryable=True,
    ),
    "METHOD_NOT_ALLOWED": ErrorSpec(
        405,
        "This address does not support the method.",
        "Use a supported method.",
        at_api="the `Allow` header lists its methods",
    ),
    "STREAM_RESET": ErrorSpec(
        410,
        "The events after this id are no longer stored.",
        "Read the current state, then follow the stream from now on.",
        at_api="read GET /runs, then open the stream without Last-Event-ID",
    ),
    "UNSUPPORTED_MEDIA_TYPE": ErrorSpec(
        415,
        "This address does not accept the body's content type.",
        "Send JSON.",
        at_api="send `Content-Type: application/json`",
    ),
    "RATE_LIMITED": ErrorSpec(
        429,
        "This credential exceeds its request rate, or too many invalid credentials came from this address.",
        "Wait, then try again.",
        retryable=True,
        at_api="the `Retry-After` header says how long to wait",
    ),
    "TOO_MANY_CONNECTIONS": ErrorSpec(
        429,
        "This client address has too many connections or unfinished request bodies.",
        "Close or reuse connections. The limits are in docs/server.md.",
        retryable=True,
        at_api="the `Retry-After` header says when to try again",
    ),
    "TOO_MANY_STREAMS": ErrorSpec(
        429,
        "This credential, or its tenant, has too many open streams.",
        "Close a stream first. One stream can follow many runs.",
        retryable=True,
        at_api="`run=` may be repeated",
    ),
    "SERVER_BUSY": ErrorSpec(
        503,
        "The server has reached its limit of connections, request bytes or queued work.",
        "Try again in a moment. If it happens often, start more servers or raise the limit (docs/server.md).",
        retryable=True,
        at_api="the `Retry-After` header says when to try again",
    ),
    "UPSTREAM_UNAVAILABLE": ErrorSpec(
        502,
        "The database or another service that this server needs cannot be reached.",
        "Try again later.",
        retryable=True,
        at_api="GET /readyz answers 200 when it can be reached again",
    ),
    "NOT_READY": ErrorSpec(
        503,
        "The server is starting, is stopping, or cannot reach its database.",
        "Try again later.",
        retryable=True,
    ),
    "LISTEN_REFUSED": ErrorSpec(
        422,
        "The server cannot listen at this address.",
        "Choose a free port. For an address other than loopback, give --tls-cert and --tls-key, or --behind-proxy.",
    ),
    "EXTRA_MISSING": ErrorSpec(
        500,
        "An optional part of Tenure is not installed.",
        "Install it: pip install 'tenure[server]'.",
    ),
    "NLM_UNAVAILABLE": ErrorSpec(
        502, "The language model cannot be reached.", "Try again later with a new run.", retryable=True
    ),
    "AGENT_TIMEOUT": ErrorSpec(
        504, "The agent exceeded its timeout.", "Give the agent a longer timeout or less work."
    ),
    # ----------------------------------------------------------------- identities, and what tenants register
    "TENANT_NOT_FOUND": ErrorSpec(
        404, "There is no such tenant.", "List the tenants with `tenure tenants list`."
    ),
    "CLIENT_NOT_FOUND": ErrorSpec(
        404, "There is no such client.", "List the clients with `tenure clients list`."
    ),
    "PERSON_NOT_FOUND": ErrorSpec(
        404, "There is no such person.", "List the people with `tenure people list`."
    ),
    "KEY_NOT_FOUND": ErrorSpec(404, "There is no such key.", "List the keys with `tenure keys list`."),
    "ALREADY_EXISTS": ErrorSpec(409, "This id is in use.", "Choose another id."),
    "CHANGED_MEANWHILE": ErrorSpec(
        409,
        "The object was changed since you read it.",
        "Read it again, then repeat the change if it still applies.",
        retryable=True,
    ),
    "SLACK_APP_NOT_REGISTERED": ErrorSpec(
        403,
        "The operator has not registered a Slack app for this team. Without one, people cannot link accounts or decide in Slack.",
        "Ask the operator to register it: `tenure tenants slack-app TENANT TEAM --secret REFERENCE`.",
    ),
    "SLACK_APP_NOT_FOUND": ErrorSpec(
        404, "There is no Slack app of this team.", "List the apps with `tenure tenants slack-apps TENANT`."
    ),
    "ENROLMENT_INVALID": ErrorSpec(
        401,
        "The enrolment code is unknown, used or expired.",
        "Ask an admin for a new one: `tenure people enrol`.",
    ),
    "SLACK_CODE_INVALID": ErrorSpec(
        422,
        "The code from Slack is unknown, used or expired.",
        "Type `/tenure link` in Slack for a new code. It is valid for ten minutes.",
    ),
    "HOOK_NOT_FOUND": ErrorSpec(
        404,
        "There is no such hook.",
        "List the hooks with `tenure hooks list`.",
        at_api="GET /hooks lists them",
    ),
    "DELIVERY_NOT_FOUND": ErrorSpec(
        404,
        "There is no such delivery.",
        "List the deliveries with `tenure hooks deliveries HOOK`.",
        at_api="GET /hooks/{id}/deliveries lists them",
    ),
    "REPORT_NOT_FOUND": ErrorSpec(
        404,
        "The run has no report: it has no VCS target, or no server reports runs.",
        "List the reports with `tenure ci reports list`. docs/vcs-reports.md says how a run gets a target.",
        at_api="GET /reports lists them",
    ),
    "REPORT_NOT_RETRYABLE": ErrorSpec(
        409,
        "The report is finished, or a server is working on it.",
        "Nothing to do: the VCS has accepted the final state, or a try is under way. See `tenure ci reports list`.",
        at_api="GET /reports lists them",
    ),
    "VCS_SETTINGS_INVALID": ErrorSpec(
        422,
        "The VCS settings file is invalid. The details name each problem by line and column.",
        "Correct the places that the details name. docs/vcs-reports.md describes the format.",
    ),
    "WEBHOOK_NOT_FOUND": ErrorSpec(
        404,
        "There is no such subscription.",
        "Check the subscription's id. The server lists the subscriptions of a tenant.",
        at_api="GET /webhooks lists them",
    ),
    "WORKFLOW_NOT_FOUND": ErrorSpec(
        404,
        "There is no such workflow, or no such version of it.",
        "List the workflows with `tenure workflows list`. Start a worker that has it, or register it with `tenure workflows register`.",
        at_api="GET /workflows lists what is registered",
    ),
    "ARTIFACT_NOT_FOUND": ErrorSpec(
        404,
        "The run has no such artifact.",
        "List the artifacts with `tenure runs artifacts RUN`. Use `--step NAME --attempt N` for one that was not accepted.",
        at_api="GET /runs/{id}/artifacts lists them, ?step=NAME&attempt=N choose one",
    ),
    "ARTIFACT_EXPIRED": ErrorSpec(
        410,
        "The artifact was deleted at the end of its retention.",
        "Run the job again, or give its artifacts a longer retention.",
    ),
    "RANGE_NOT_SATISFIABLE": ErrorSpec(
        416, "The file has no such range of bytes.", "Ask for a range within the size of the file."
    ),
    "UPLOAD_NOT_FOUND": ErrorSpec(
        404,
        "The lease has no such upload: it was never begun, was replaced, or was given up after the end of the lease.",
        "Begin the upload again.",
    ),
    "CACHE_NOT_FOUND": ErrorSpec(
        404,
        "There is no cache for the key or the prefixes.",
        "Go on without it, and save one at the end of the job.",
    ),
    "LOG_NOT_FOUND": ErrorSpec(
        404,
        "The step has no such attempt, or the attempt has no log of a job.",
        "List the attempts with `tenure runs show RUN`. Lines of code workflows are in `tenure runs logs RUN`.",
    ),
    "ARTIFACT_AMBIGUOUS": ErrorSpec(
        409,
        "Several steps of the run have an artifact of this name.",
        "Choose one with `--step NAME --attempt N`. List them with `tenure runs artifacts RUN`.",
        at_api="add ?step=NAME&attempt=N",
    ),
    "SECRET_UNAVAILABLE": ErrorSpec(
        500,
        "A reference to a secret names a variable or file that is missing on this host.",
        "Set the variable or create the file on the host that runs the server, or correct the reference.",
    ),
}
