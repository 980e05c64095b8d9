"""Errors that workflow code may catch or raise."""

from __future__ import annotations

from typing import Any

from tenure.errors import TenureError


class Failure(Exception):
    """Raise it in a step or tool to fail with your own code; `retryable` overrides the profile's rules."""

    def __init__(self, code: str, message: str = "", *, retryable: bool | None = None) -> None:
        self.code = code
        self.message = message
        self.retryable = retryable
        super().__init__(f"{code}: {message}" if message else code)


class StepFailed(Exception):
    """A step failed finally: its error is not retryable, or no tries are left. A replay raises the same."""

    def __init__(self, step: str, code: str, message: str, tries: int) -> None:
        self.step = step
        self.code = code
        self.message = message
        self.tries = tries
        super().__init__(self.describe("" if code == "STEP_FAILED" else f" with {code}"))

    def describe(self, code: str = "") -> str:
        """What happened, in a sentence. The code is left out by default: it is usually shown next to it."""
        often = "" if self.tries == 1 else f" after {self.tries} tries"
        return f"step {self.step!r} failed{often}{code}: {self.message}"


class ApprovalRejected(TenureError):
    def __init__(self, action: str, reason: str | None = None) -> None:
        self.action = action
        self.reason = reason
        because = f": {reason}" if reason else ""
        super().__init__("APPROVAL_REJECTED", f"{action!r} was rejected{because}")


class ApprovalExpired(TenureError):
    def __init__(self, action: str) -> None:
        self.action = action
        super().__init__("APPROVAL_EXPIRED", f"{action!r} was not approved in time")


class WaitExpired(TenureError):
    def __init__(self, event: str) -> None:
        self.event = event
        super().__init__("WAIT_EXPIRED", f"event {event!r} did not come in time")


class ChildFailed(TenureError):
    def __init__(self, run_id: str, status: str, reason: str, error: Any) -> None:
        self.run_id = run_id
        self.status = status
        self.reason = reason
        self.error = error
        because = f": {error}" if error else ""
        super().__init__("CHILD_FAILED", f"child {run_id} {status} ({reason}){because}")


class ActionFailed(TenureError):
    """An action failed finally, and is known not to have happened. A replay raises the same."""

    def __init__(self, action: str, code: str, message: str) -> None:
        self.action = action
        self.fault = code
        """The connector's code of the error."""
        because = f": {message}" if message else ""
        super().__init__("ACTION_FAILED", f"{action} was not done ({code}){because}")


class ActionConflict(TenureError):
    """The target of a reversal is no longer what was written."""

    def __init__(self, action: str, message: str) -> None:
        self.action = action
        super().__init__("ACTION_CONFLICT", f"{action} was not done: {message}")
