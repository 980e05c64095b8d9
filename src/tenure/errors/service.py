"""The server: requests, and who asks."""

from __future__ import annotations

from tenure.errors.spec import ErrorSpec, spec

CODES: dict[str, ErrorSpec] = {
    # -------------------------------------------------------------------------------------------- HTTP
    "REQUEST_MALFORMED": spec(
        400, "The request cannot be read.", "Correct it; the message says what is wrong with it."
    ),
    "CURSOR_INVALID": spec(
        400,
        "The cursor is not one of this list and this tenant.",
        "Take it from `next_cursor` of the page before, with the same filters; or begin without one.",
    ),
    "FILTER_CHANGED": spec(
        409,
        "The token is for another filter, or the runs that fit have changed since.",
        "Ask once more without the token, look at what fits now, and send the new one.",
    ),
    "UNAUTHENTICATED": spec(
        401,
        "There is no credential, or it is not known, expired or revoked.",
        "Give a key that is valid, in TENURE_KEY or TENURE_KEY_FILE; `tenure keys create` makes one.",
        at_api="a key is sent as `Authorization: Bearer tn_...`, a lease's token as `Authorization: Bearer tl_...`",
    ),
    "SIGNATURE_INVALID": spec(
        401,
        "The signature does not fit the bytes, or its time is too far off. Nothing was recorded.",
        "Check the secret on both sides, and the sender's clock.",
    ),
    "FORBIDDEN": spec(
        403,
        "This credential may not do that.",
        "docs/roles.md says who may. An admin gives roles; the installation's operator has a key of their own.",
    ),
    "ORIGIN_REFUSED": spec(
        403,
        "A browser's session was used from another site.",
        "Send the request from this server's own pages, or use a key instead of the cookie.",
    ),
    "APPROVER_NOT_ELIGIBLE": spec(
        403,
        "Only a person who is an approver, in the group that was asked, decides.",
        "Ask somebody who is; a service's key never decides.",
    ),
    "NOT_FOUND": spec(
        404,
        "There is nothing at this address.",
        "Check the address; a server of another version may not have it.",
        at_api="GET /openapi.json lists the addresses",
    ),
    "METHOD_NOT_ALLOWED": spec(
        405,
        "This address has no such method.",
        "Use a method that it has.",
        at_api="the `Allow` header lists its methods",
    ),
    "STREAM_RESET": spec(
        410,
        "The events after this id are no longer kept.",
        "Read the state anew, then follow from there.",
        at_api="read GET /runs, then open the stream without Last-Event-ID",
    ),
    "UNSUPPORTED_MEDIA_TYPE": spec(
        415,
        "The body has another content type than this address takes.",
        "Send JSON.",
        at_api="send `Content-Type: application/json`",
    ),
    "RATE_LIMITED": spec(
        429,
        "This credential asks more often than it may, or too many wrong ones came from this address.",
        "Wait, then try again.",
        retryable=True,
        at_api="the `Retry-After` header says how long to wait",
    ),
    "TOO_MANY_CONNECTIONS": spec(
        429,
        "This address has as many connections, or as many half-sent bodies, as one address may have.",
        "Close some, or reuse them. The limits are in docs/server.md.",
        retryable=True,
        at_api="the `Retry-After` header says when to try again",
    ),
    "TOO_MANY_STREAMS": spec(
        429,
        "This credential, or its tenant, listens to as many streams as it may.",
        "Close one first. One stream can follow many runs.",
        retryable=True,
        at_api="`run=` may be repeated",
    ),
    "SERVER_BUSY": spec(
        503,
        "The server has as many connections, holds as many bytes of requests, or has as much heavy work waiting, as it may.",
        "Try again in a moment; start more servers, or raise the limit (docs/server.md).",
        retryable=True,
        at_api="the `Retry-After` header says when to try again",
    ),
    "UPSTREAM_UNAVAILABLE": spec(
        502,
        "What is behind this server cannot be reached.",
        "Try again later.",
        retryable=True,
        at_api="GET /readyz tells when",
    ),
    "NOT_READY": spec(503, "The server cannot do its work now.", "Try again later.", retryable=True),
    "LISTEN_REFUSED": spec(
        422,
        "The server may not, or cannot, listen at this address.",
        "Beyond this machine it needs --tls-cert and --tls-key, or --behind-proxy; else choose a free port.",
    ),
    "EXTRA_MISSING": spec(
        500,
        "A part of Tenure is needed that is not installed.",
        "Install it: pip install 'tenure[server]'.",
    ),
    "NLM_UNAVAILABLE": spec(
        502, "The language model cannot be reached.", "Try again later, by a new run.", retryable=True
    ),
    "AGENT_TIMEOUT": spec(504, "The agent took longer than it may.", "Give it more time, or less to do."),
    # ------------------------------------------------------------------------- who asks, and their things
    "TENANT_NOT_FOUND": spec(404, "There is no such tenant.", "List them with `tenure tenants list`."),
    "CLIENT_NOT_FOUND": spec(404, "There is no such client.", "List them with `tenure clients list`."),
    "PERSON_NOT_FOUND": spec(404, "There is no such person.", "List them with `tenure people list`."),
    "KEY_NOT_FOUND": spec(404, "There is no such key.", "List them with `tenure keys list`."),
    "ALREADY_EXISTS": spec(409, "There is one of this id already.", "Choose another id."),
    "CHANGED_MEANWHILE": spec(
        409,
        "Somebody else has changed it meanwhile.",
        "Look at it again, then repeat what still makes sense.",
        retryable=True,
    ),
    "SLACK_APP_NOT_REGISTERED": spec(
        403,
        "People link accounts and decide only through a Slack app that the installation's operator has registered for this team.",
        "Ask the operator to register it: `tenure tenants slack-app TENANT TEAM --secret REFERENCE`.",
    ),
    "SLACK_APP_NOT_FOUND": spec(
        404, "There is no Slack app of this team.", "List them with `tenure tenants slack-apps TENANT`."
    ),
    "ENROLMENT_INVALID": spec(
        401,
        "The enrolment code is not known, used or expired.",
        "Ask an admin for a new one: `tenure people enrol`.",
    ),
    "SLACK_CODE_INVALID": spec(
        422,
        "The code from Slack is not known here, used or expired.",
        "Type `/tenure link` in Slack for a new one; it is good for ten minutes.",
    ),
    "HOOK_NOT_FOUND": spec(
        404,
        "There is no such hook.",
        "List them with `tenure hooks list`.",
        at_api="GET /hooks lists them",
    ),
    "DELIVERY_NOT_FOUND": spec(
        404,
        "There is no such delivery.",
        "List them with `tenure hooks deliveries HOOK`.",
        at_api="GET /hooks/{id}/deliveries lists them",
    ),
    "WEBHOOK_NOT_FOUND": spec(
        404, "There is no such subscription.", "List them at the server.", at_api="GET /webhooks lists them"
    ),
    "WORKFLOW_NOT_FOUND": spec(
        404,
        "There is no such workflow, or not in this version.",
        "See `tenure workflows list`; start a worker that has it, or register it: `tenure workflows register`.",
        at_api="GET /workflows lists what is registered",
    ),
    "ARTIFACT_NOT_FOUND": spec(
        404,
        "The run has no such artifact.",
        "List them with `tenure runs artifacts RUN`; `--step NAME --attempt N` choose one that is not accepted.",
        at_api="GET /runs/{id}/artifacts lists them, ?step=NAME&attempt=N choose one",
    ),
    "ARTIFACT_AMBIGUOUS": spec(
        409,
        "Several steps of the run have an artifact of this name.",
        "Name the one that is meant with `--step NAME --attempt N`; `tenure runs artifacts RUN` lists them.",
        at_api="add ?step=NAME&attempt=N",
    ),
    "SECRET_UNAVAILABLE": spec(
        500,
        "A secret's reference leads nowhere here.",
        "Set the variable or write the file that the reference names, where the server runs.",
    ),
}
