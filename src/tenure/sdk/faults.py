"""What a workflow can be told, and the signals that end its body.

Laws:
1. What user code may catch is an Exception here: a failed step, a refusal, an expiry.
2. What ends a body and is nobody's to catch (a suspension, code that no longer fits, a restart) is a
   `Signal`, a BaseException: `except Exception` lets it through, and one that was swallowed all the same is
   raised again at the next durable call.
"""

from __future__ import annotations

from typing import Any

from tenure.errors import TenureError


class Failure(Exception):
    """Raise it in a step or tool to fail with a code of your own; `retryable` overrides the profile's rules."""

    def __init__(self, code: str, message: str = "", *, retryable: bool | None = None) -> None:
        self.code = code
        self.message = message
        self.retryable = retryable
        super().__init__(f"{code}: {message}" if message else code)


class StepFailed(Exception):
    """A step failed for good: it may not be retried, or its tries are used up. The same at every replay."""

    def __init__(self, step: str, code: str, message: str, tries: int) -> None:
        self.step = step
        self.code = code
        self.message = message
        self.tries = tries
        super().__init__(self.told("" if code == "STEP_FAILED" else f" with {code}"))

    def told(self, code: str = "") -> str:
        """What happened, in a sentence: without its code, where that is told beside it."""
        often = "" if self.tries == 1 else f" after {self.tries} tries"
        return f"step {self.step!r} failed{often}{code}: {self.message}"


class ApprovalRejected(TenureError):
    """A person said no."""

    def __init__(self, action: str, reason: str | None = None) -> None:
        self.action = action
        self.reason = reason
        said = f": {reason}" if reason else ""
        super().__init__("APPROVAL_REJECTED", f"{action!r} was rejected{said}")


class ApprovalExpired(TenureError):
    """Nobody answered in time."""

    def __init__(self, action: str) -> None:
        self.action = action
        super().__init__("APPROVAL_EXPIRED", f"nobody answered {action!r} in time")


class WaitExpired(TenureError):
    """What was waited for did not come in time."""

    def __init__(self, event: str) -> None:
        self.event = event
        super().__init__("WAIT_EXPIRED", f"{event!r} did not come in time")


class ChildFailed(TenureError):
    """A child run did not succeed."""

    def __init__(self, run_id: str, status: str, reason: str, error: Any) -> None:
        self.run_id = run_id
        self.status = status
        self.reason = reason
        self.error = error
        said = f": {error}" if error else ""
        super().__init__("CHILD_FAILED", f"child {run_id} {status} ({reason}){said}")


class ActionFailed(TenureError):
    """An action was not done, and will not be: it is known not to have happened. The same at every replay."""

    def __init__(self, action: str, code: str, message: str) -> None:
        self.action = action
        self.fault = code
        """What went wrong, as its connector calls it."""
        said = f": {message}" if message else ""
        super().__init__("ACTION_FAILED", f"{action} was not done ({code}){said}")


class ActionConflict(TenureError):
    """What was to be taken back is no longer what we wrote."""

    def __init__(self, action: str, message: str) -> None:
        self.action = action
        super().__init__("ACTION_CONFLICT", f"{action} was not done: {message}")


class Signal(BaseException):
    """A body ends here; see law 2."""


class Suspended(Signal):
    """Everything it could do is done, the rest waits; the run goes on elsewhere, later."""


class ResumeFailed(Signal):
    """What was begun can be neither reused nor repeated: the run ends with RUN_RESUME_FAILED."""


class StartRefused(Signal):
    """A child that the code started cannot be: the code has gone on without it meanwhile, so the run fails."""

    def __init__(self, refused: TenureError) -> None:
        self.refused = refused
        super().__init__(refused.code)


class Misfit(Signal):
    """The code does not fit what was recorded; `why` names the first step that differs."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


class Restart(Signal):
    """Go on as a new run with this input."""

    def __init__(self, input_: bytes) -> None:
        self.input = input_
        super().__init__("restart")


class LeaseLost(Signal):
    """The run is somebody else's now, or was canceled or ended: nothing said here counts any more."""


class ActionLate(Signal):
    """An action was not made in time, as often as it may be tried under one lease. It is certain that it was not made, so this attempt
    fails and the next one tries it under a lease of its own."""


class Interrupted(Signal):
    """The store could not be reached in time: what was said last may not be recorded, so the run is given back."""


class HandedOver(Interrupted):
    """The worker ends, and nothing of the run is at work: another worker goes on with it."""


class NotBegun(Signal):
    """The worker ends: what was about to begin does not begin here."""
