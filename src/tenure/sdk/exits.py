"""The exits that end the execution of a workflow's code.

Law: an exit is a BaseException, so that `except Exception` in a workflow does not catch it. If the code catches it all the same, the
next durable call raises it again.
"""

from __future__ import annotations

from tenure.errors import TenureError


class ExecutionExit(BaseException):
    """The execution ends; see the law above."""


class Suspended(ExecutionExit):
    """Everything left to do waits for something. The run is resumed later, by any worker."""


class ResumeFailed(ExecutionExit):
    """Something was begun that can be neither reused nor repeated. The run ends with RUN_RESUME_FAILED."""


class StartRefused(ExecutionExit):
    """The store refused a child after the code had gone on without waiting for it. The run fails."""

    def __init__(self, refused: TenureError) -> None:
        self.refused = refused
        super().__init__(refused.code)


class ReplayMismatch(ExecutionExit):
    """The code does not match what was recorded. The message names the first difference."""


class Restart(ExecutionExit):
    """The run ends and continues as a new run with this input."""

    def __init__(self, input_: bytes) -> None:
        self.input = input_
        super().__init__("restart")


class LeaseLost(ExecutionExit):
    """The lease is no longer ours: another worker has the run, or it was canceled or has ended."""


class ActionLate(ExecutionExit):
    """An action's deadline passed before the call was sent, as often as one lease may try. Nothing was sent, so this attempt fails and
    the next one tries again under its own lease."""


class Interrupted(ExecutionExit):
    """The store could not be reached in time. The last message may not be recorded, so the run is given back."""


class HandedOver(Interrupted):
    """The worker is stopping and no step of the run is running: another worker takes the run over."""


class NotBegun(ExecutionExit):
    """The worker is stopping: the step that was about to begin does not begin here."""
