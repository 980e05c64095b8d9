"""Errors of CI: settings of repositories, pipelines, git."""

from __future__ import annotations

from tenure.errors.spec import ErrorSpec

CODES: dict[str, ErrorSpec] = {
    "CI_SETTINGS_INVALID": ErrorSpec(
        422,
        "The file with the settings of repositories has problems.",
        "Correct the places that the message names; `tenure ci check --settings FILE` checks the file.",
    ),
    "PLAN_NOT_FOUND": ErrorSpec(
        404,
        "The run has no plan that could be explained: it is not a CI run, it is still being planned, or planning failed.",
        "Look at the run with `tenure runs show RUN`.",
    ),
    "REPOSITORY_UNKNOWN": ErrorSpec(
        404, "The settings have no such repository.", "Add it to the file with the settings of repositories."
    ),
    "REPOSITORY_REFUSED": ErrorSpec(
        422,
        "The repository cannot be fetched: it does not exist, does not let us in, or is not allowed by its settings or by the owner of the runner.",
        "Check its URL, its credentials and its allowed protocols in the settings, and what the runner may fetch (--git-protocol, --git-config, --secrets).",
    ),
    "NETWORK_FETCH_FAILED": ErrorSpec(
        502,
        "Fetching the repository failed. It may work later.",
        "Check that the host can be reached; a plan is tried again.",
        retryable=True,
    ),
    "REPOSITORY_TOO_LARGE": ErrorSpec(
        422,
        "The repository or one of its commits is larger than its settings or the limits allow.",
        "Raise `fetch.size` in the settings, or make the repository smaller.",
    ),
    "COMMIT_NOT_FOUND": ErrorSpec(
        404,
        "The repository has no such commit. A force push may have removed it.",
        "Name a commit that a branch contains.",
    ),
    "PIPELINE_NOT_FOUND": ErrorSpec(
        422,
        "The commit has no pipeline file.",
        "Add `.tenure/ci.yaml`, or set `config` in the settings of the repository.",
    ),
    "PIPELINE_INVALID": ErrorSpec(
        422,
        "The pipeline file has problems, or asks for more than the repository's settings allow.",
        "Correct the places that the message names; `tenure ci check` checks the file.",
    ),
}
