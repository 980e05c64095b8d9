"""Errors at the API: one shape, with codes of the one registry.

Laws:
1. Every answer with status 400 or above is `{"error": {code, message, details, type, request_id, retryable}}`.
2. A defect is answered with INTERNAL_ERROR and the request's id. Only the log says what it was, under that id.
"""

from __future__ import annotations

import re
import traceback
from typing import Any

import msgspec
import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException

from tenure.errors import CODES, Detail, TenureError

log = structlog.get_logger(__name__)

_AT_THE_API = {"STORE_UNAVAILABLE": "UPSTREAM_UNAVAILABLE"}
"""Codes that would tell clients about our internals, and the codes that clients get instead."""
_NO_BODY = "Object missing required field `data`"
"""The framework's message for a missing body: `data` is the handler's argument."""
_BY_STATUS = {
    400: "REQUEST_MALFORMED",
    401: "UNAUTHENTICATED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    413: "PAYLOAD_TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    422: "INVALID_INPUT",
    429: "RATE_LIMITED",
    503: "UPSTREAM_UNAVAILABLE",
}


_UNKNOWN = re.compile(r"Object contains unknown field `(.+)`")


class ApiError(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong."""

    code: str
    message: str
    details: tuple[Detail, ...] = ()
    type: str
    """Where this server says what the code means and what to do: a URI reference, as in RFC 9457."""
    request_id: str
    retryable: bool


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every answer from 400 on."""

    error: ApiError


def error_type_url(code: str) -> str:
    """The `type` of an error: a public page of this server (`routes.server_info`)."""
    return f"/errors/{code}"


def api_error(error: TenureError, request_id: str) -> ApiError:
    return ApiError(
        type=error_type_url(error.code),
        code=error.code,
        message=error.spec.api_message(error.message),
        details=error.details,
        request_id=request_id,
        retryable=error.retryable,
    )


def encode_error(error: TenureError, request_id: str) -> bytes:
    return msgspec.json.encode(ErrorBody(api_error(error, request_id)))


def encode_run_failure(error: TenureError, request_id: str) -> ErrorBody:
    """The error of a run that has failed. It is final, so the request is not retryable."""
    return ErrorBody(msgspec.structs.replace(api_error(error, request_id), retryable=False))


def error_headers(error: TenureError) -> dict[str, str]:
    """The headers of an error: Retry-After, WWW-Authenticate, Connection and Allow."""
    headers: dict[str, str] = {}
    if error.spec.status == 429 or error.code in (
        "NOT_PUBLISHED",
        "QUEUE_FULL",
        "SERVER_BUSY",
        "STORE_BUSY",
    ):
        headers["Retry-After"] = str(error.data.get("retry_after", 1))
    if error.spec.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if "close" in error.data:  # the rest of its body is not read
        headers["Connection"] = "close"
    if "allow" in error.data:
        headers["Allow"] = str(error.data["allow"])
    return headers


def to_tenure_error(fault: Exception) -> TenureError:
    """Any exception as a TenureError."""
    if isinstance(fault, TenureError) and fault.code != "INTERNAL_ERROR":
        other = _AT_THE_API.get(fault.code)
        if other is None:
            return fault
        return TenureError(other, "the database cannot be reached", fault.details)
    if isinstance(fault, msgspec.ValidationError):
        return invalid_body(fault)
    if isinstance(fault, msgspec.DecodeError | RecursionError | UnicodeDecodeError):
        what = "it is nested too deeply" if isinstance(fault, RecursionError) else str(fault)
        return TenureError("REQUEST_MALFORMED", f"the body is not JSON: {what}")
    cause = fault.__cause__ if isinstance(fault, HTTPException) else None
    if isinstance(cause, msgspec.ValidationError):
        return invalid_body(cause, within="data")
    if isinstance(cause, msgspec.MsgspecError | RecursionError | UnicodeDecodeError):
        return to_tenure_error(cause)
    if isinstance(fault, NotFoundException):
        return TenureError("NOT_FOUND")
    if isinstance(fault, MethodNotAllowedException):
        return TenureError("METHOD_NOT_ALLOWED", allow=(fault.headers or {}).get("Allow", ""))
    if isinstance(fault, HTTPException):
        return _refused_by_framework(fault)
    return TenureError(
        "INTERNAL_ERROR", "something failed that should not; the log has it under the request's id"
    )


def invalid_body(fault: msgspec.ValidationError, within: str = "") -> TenureError:
    """INVALID_INPUT for a body that does not fit its type, with the path of the problem. `within` is the framework's name of the body."""
    problem, _, where = str(fault).partition(" - at ")
    path = where.strip("`").removeprefix("$").removeprefix(".")
    if within and (path == within or path.startswith((f"{within}.", f"{within}["))):
        path = path.removeprefix(within).removeprefix(".")
    if (
        within
    ):  # a parameter that is named like a Python keyword has an underscore in Python, and none in a query
        path = re.sub(r"^(\w+)_(?=\[|$)", r"\1", path)
    unknown = _UNKNOWN.fullmatch(problem)
    if unknown is not None:
        path = f"{path}.{unknown[1]}" if path else unknown[1]
    path = path or "body"
    if problem == _NO_BODY:
        problem = "a body is needed"
    return TenureError("INVALID_INPUT", f"{path}: {problem}", (Detail(path, problem),))


def _refused_by_framework(fault: HTTPException) -> TenureError:
    """The error for a refusal of the framework."""
    code = _BY_STATUS.get(
        fault.status_code, "INTERNAL_ERROR" if fault.status_code >= 500 else "REQUEST_MALFORMED"
    )
    extra = fault.extra if isinstance(fault.extra, list) else []
    details = tuple(
        Detail(str(one.get("key", "")) or "request", str(one.get("message", "")))
        for one in extra
        if isinstance(one, dict)
    )
    if code == "REQUEST_MALFORMED" and details:  # it was parsed, but a value is wrong
        code = "INVALID_INPUT"
    return TenureError(code, details[0].problem if details else fault.detail, details)


def log_and_convert(fault: Exception, request_id: str, path: str) -> TenureError:
    """Any exception as a TenureError; a defect is logged (law 2)."""
    error = to_tenure_error(fault)
    if error.code == "INTERNAL_ERROR":
        trace = "".join(traceback.format_exception(fault))
        log.error("request_failed", request_id=request_id, path=path, traceback=trace)
    return error


def handle_exception(request: Request[Any, Any, Any], fault: Exception) -> Response[bytes]:
    request_id = request.scope["state"].get("request_id", "")
    error = log_and_convert(fault, request_id, request.scope["path"])
    request.scope["state"]["code"] = error.code
    return Response(
        content=encode_error(error, request_id),
        status_code=error.spec.status,
        media_type="application/json",
        headers=error_headers(error),
    )


assert set(_AT_THE_API.values()) | set(_BY_STATUS.values()) <= set(CODES)
