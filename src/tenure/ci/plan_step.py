"""A plan step: a change is fetched, and planned in a process of its own.

Laws:
1. This process talks to git and the network, and parses nothing of the commit but lists of paths. The process that parses (`planner_process`) is
   started by a launcher, which puts it into the sandbox.
2. What fails says why with a code: a retryable one (NETWORK_*) if it may work later, PIPELINE_INVALID with file, line and column if the commit is
   wrong, PLAN_FAILED if the planner crashed or took too long.
3. If there is nothing to compare with (a new repository, a base that a force push has removed), everything is planned, and each job says so.
4. The planner's answer is checked (`plan_check`): a plan gets nothing beyond the settings, whatever a commit has made of the planner.
5. Imports of files are kept by the id of their content. Only plans of trusted changes add to them, so that nobody else decides what a trusted
   plan believes. Each repository of each tenant has its own, because each decides itself whom it trusts.
6. A change is fetched within the bounds of this host's owner (`GitSettings`), whatever its settings say.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import msgspec

from tenure import private_files
from tenure.ci.change import NO_COMMIT, Change
from tenure.ci.git_commands import GitCommandFailed, GitCommandTimedOut, LocalRepository, check_commit
from tenure.ci.mirror import GitMirror, GitSettings
from tenure.ci.plan_check import check_planned_change
from tenure.ci.planner import (
    REGULAR_MODES,
    BlobsNeeded,
    CommitFile,
    PlanAnswer,
    PlannedChange,
    PlanRefused,
    PlanRequest,
)
from tenure.ci.python_imports import Imports
from tenure.ci.secrets_gate import add_secrets_gate
from tenure.ci.settings import RepositorySettings
from tenure.errors import Detail, TenureError
from tenure.limits import CI_PYTHON_BYTES_MAX, WORKFLOW_BYTES_MAX

PLANNER_ARGUMENTS = ("-I", "-m", "tenure.ci.planner_process")
ROUNDS_MAX = 3
"""How often the planner is asked: once, and again with the contents that it needs."""
IMPORTS_FILE_BYTES_MAX = 64 << 20

PlannerLauncher = Callable[[bytes, float], bytes]
"""Starts the planner with a request on stdin and returns what it wrote, within some seconds. PLAN_FAILED if it crashed or took too long."""


def launch_planner(request: bytes, seconds: float) -> bytes:
    """Run the planner as a plain process without the environment of this one. Outside of a sandbox it is for trusted commits."""
    try:
        done = subprocess.run(
            [sys.executable, *PLANNER_ARGUMENTS],
            input=request,
            capture_output=True,
            timeout=seconds,
            env={"LC_ALL": "C.UTF-8"},
            cwd="/",
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise TenureError("PLAN_FAILED", f"the planner took longer than {seconds:g} seconds") from late
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[-500:]
        raise TenureError("PLAN_FAILED", f"the planner ended with {done.returncode}: {said}")
    return done.stdout


def plan_in_process(request: bytes, seconds: float) -> bytes:
    """Run the planner in this process: for a look at one's own checkout."""
    from tenure.ci.planner_process import answer_request

    del seconds  # people can interrupt it
    return answer_request(request)


def execute_plan_step(
    change: Change,
    cache: Path,
    owner: GitSettings,
    launch: PlannerLauncher = launch_planner,
    stop: Callable[[], bool] | None = None,
) -> PlannedChange:
    """Fetch a change into its mirror and plan it. `stop` says whether a fetch that runs must be ended."""
    settings = change.repository
    until = monotonic() + settings.planning_seconds
    try:
        mirror = GitMirror(cache, settings, owner, stop)
        head, base, whole = _fetch(change, mirror, settings.planning_seconds)
        kept = _KeptImports(mirror.folder.with_suffix(f".{_name_imports(settings)}.imports"))
        plan = plan_commits(
            mirror.repository, change, head, base, whole, until=until, launch=launch, imports=kept.read()
        )
        if change.trusted:
            kept.add(plan.imports)
    except GitCommandTimedOut as late:
        raise TenureError("PLAN_FAILED", f"planning {settings.name} took too long: {late}") from late
    except GitCommandFailed as fault:
        raise TenureError("PLAN_FAILED", f"planning {settings.name} failed: {fault}") from fault
    return add_secrets_gate(change, plan)


def _name_imports(settings: RepositorySettings) -> str:
    return hashlib.sha256(msgspec.json.encode((settings.tenant, settings.name))).hexdigest()[:16]


def _fetch(change: Change, mirror: GitMirror, seconds: float) -> tuple[str, str | None, str]:
    """The head, the commit to compare it with, and why there is none."""
    default = f"refs/heads/{change.repository.default_branch}"
    given = "" if change.base == NO_COMMIT else change.base
    for commit in filter(None, (given, change.head)):
        check_commit(commit)
    compare_ref = change.base_ref or default
    # Hosts give out commits of forks by their id, so a commit that a person names must be part of the ref that is trusted.
    named = change.event == "manual" and bool(change.head)
    wanted = (given or compare_ref, *((change.ref,) if named else ()))
    head = mirror.fetch_change(change.ref, change.head, *wanted, seconds=seconds)
    if named and not mirror.contains(change.ref, head):
        raise TenureError(
            "COMMIT_NOT_FOUND", f"{change.ref} of {change.repository.name} does not contain {head}"
        )
    if given and not mirror.repository.has_commit(given):
        return head, None, f"the base {given[:12]} is not in the repository any more (a force push)"
    base = given or mirror.find_ref(compare_ref)
    if base is None:
        return head, None, f"there is no {compare_ref} to compare with"
    found = mirror.repository.find_merge_base(base, head)
    if found == head and not given and change.ref == compare_ref:
        return head, None, f"there is no commit of {compare_ref} before it to compare with"
    if found == head and not given:
        return head, None, f"{compare_ref} has this commit already"
    return head, found, "" if found else f"{base[:12]} and {head[:12]} have no common history"


def plan_commits(
    repository: LocalRepository,
    change: Change,
    head: str,
    base: str | None,
    whole: str = "",
    *,
    until: float,
    launch: PlannerLauncher,
    imports: dict[str, Imports | None] | None = None,
) -> PlannedChange:
    """Plan the difference of two commits that are there. `until` is a moment of `time.monotonic`."""
    settings = change.repository
    request = PlanRequest(
        change=change,
        head=head,
        base=base or "",
        config=read_config(repository, settings, head),
        base_config=None if base is None else _read_base_config(repository, settings, base),
        changed=None if base is None else tuple(repository.list_changed(base, head)),
        whole=whole,
        files=tuple(repository.list_files(head)),
    )
    for _ in range(ROUNDS_MAX):
        left = until - monotonic()
        if left <= 0:
            raise TenureError(
                "PLAN_FAILED", f"planning took longer than {settings.planning_seconds:g} seconds"
            )
        answer = _decode(launch(msgspec.json.encode(request), left))
        if isinstance(answer, PlanRefused):
            raise answer.error()
        if isinstance(answer, PlannedChange):
            check_planned_change(change, head, answer)
            return answer
        request = _answer_need(repository, request, answer, imports or {})
    raise TenureError("PLAN_FAILED", "the planner asks for more and more files")


def _decode(data: bytes) -> PlanAnswer:
    try:
        answer: PlanAnswer = msgspec.json.decode(data, type=PlanAnswer)
    except msgspec.DecodeError as fault:
        raise TenureError("PLAN_FAILED", f"the planner gave no answer: {fault}") from fault
    return answer


def _answer_need(
    repository: LocalRepository, request: PlanRequest, need: BlobsNeeded, known: dict[str, Imports | None]
) -> PlanRequest:
    """The request with what the planner asked for: imports that are known, and contents of files of this commit."""
    own = {file.blob for file in request.files if file.mode in REGULAR_MODES}
    wanted = [blob for blob in need.blobs if blob in own]
    kept = {blob: known[blob] for blob in wanted if blob in known}
    contents = repository.read_blobs((blob for blob in wanted if blob not in kept), CI_PYTHON_BYTES_MAX)
    return msgspec.structs.replace(request, imports=request.imports | kept, blobs=request.blobs | contents)


def read_config(repository: LocalRepository, settings: RepositorySettings, commit: str) -> str:
    """The text of the pipeline file of a commit. A link, a submodule or a file that is too large is refused."""
    path = settings.config
    folders = path.split("/")[:-1]
    for i in range(1, len(folders) + 1):
        _find_entry(repository, settings, commit, "/".join(folders[:i]), ("040000",))
    found = _find_entry(repository, settings, commit, path, REGULAR_MODES)
    try:
        content = repository.read_blobs([found.blob], WORKFLOW_BYTES_MAX)[found.blob]
    except TenureError as fault:
        if fault.code != "REPOSITORY_TOO_LARGE":
            raise
        raise _refuse(settings, 1, 1, fault.message) from fault
    try:
        return content.decode()
    except UnicodeDecodeError as fault:
        line = content[: fault.start].count(b"\n") + 1
        column = fault.start - content[: fault.start].rfind(b"\n")
        raise _refuse(settings, line, column, "the file is not UTF-8 text") from fault


def _find_entry(
    repository: LocalRepository, settings: RepositorySettings, commit: str, at: str, modes: tuple[str, ...]
) -> CommitFile:
    found = repository.find_file(commit, at)
    if found is None:
        raise TenureError("PIPELINE_NOT_FOUND", f"commit {commit[:12]} has no {settings.config}")
    if found.mode not in modes:
        what = {"120000": "a symbolic link", "160000": "a submodule", "040000": "a folder"}.get(
            found.mode, "a file"
        )
        raise _refuse(settings, 1, 1, f"{at} is {what}; it must be a plain file of the repository")
    return found


def _refuse(settings: RepositorySettings, line: int, column: int, problem: str) -> TenureError:
    """A problem of the pipeline file that was found before it was parsed."""
    place = f"{settings.config}:{line}:{column}"
    return TenureError("PIPELINE_INVALID", f"{place}: {problem}", (Detail(place, problem),))


def _read_base_config(repository: LocalRepository, settings: RepositorySettings, base: str) -> str | None:
    try:
        return read_config(repository, settings, base)
    except TenureError:
        return None


class _KeptImports:
    """Imports by blob, in a file beside a mirror."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> dict[str, Imports | None]:
        try:
            if self._file.stat().st_size > IMPORTS_FILE_BYTES_MAX:
                return {}
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, Imports | None])
        except (OSError, msgspec.DecodeError):
            return {}

    def add(self, imports: dict[str, Imports | None]) -> None:
        if imports:
            with private_files.replace_file(self._file) as file:
                file.write(msgspec.json.encode(self.read() | imports))
