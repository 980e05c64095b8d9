"""One attempt of a job: workspace, checkout, caches, services, commands, reports and uploads.

Laws:
1. Everything of the commit is executed in the sandbox, git included. The runner itself only fetches, and touches the workspace while no process
   of the job is left: before the sandbox starts, and after it has been closed.
2. Files that come from outside (caches, artifacts) are put into a folder of their own, and moved into the workspace by the job's user: a link in
   the checkout leads nobody else astray.
3. Secrets are given if the server says that the ref is trusted and the job names them. They are masked in the log, and in reports and messages.
4. A canceled job gets SIGTERM, all of it, and SIGKILL after the grace period. Its log and its artifacts are kept, as far as they exist.
5. A job whose lease is lost is killed at once. Nothing more is uploaded or sent.
6. Whatever a job does ends this job: the result is an outcome with a code, never an exception.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

import msgspec

from tenure import secrets
from tenure.ci.failure_rules import (
    EXCEEDED_CODES,
    PHASE_CODES,
    JobFailure,
    Phase,
    classify,
    classify_tests,
)
from tenure.ci.git_commands import GitCommandFailed, GitCommandTimedOut
from tenure.ci.job import CiJob, JobService
from tenure.ci.junit import ReportProblem, join_reports, read_junit
from tenure.ci.mirror import GitMirror
from tenure.ci_runner.job_host import JobHost
from tenure.ci_runner.job_output import JobOutput
from tenure.ci_runner.job_storage import JobStorage
from tenure.ci_runner.secret_masker import SECRET_BYTES_MIN
from tenure.ci_runner.workspace_files import WorkspaceProblem, check_globs, find_files, resolve_inside
from tenure.errors import TenureError
from tenure.limits import TEST_REPORT_BYTES_MAX
from tenure.logs import get_logger
from tenure.private_files import make_folder, write_file
from tenure.sandbox.bubblewrap import Mount
from tenure.sandbox.network_proxy import parse_hosts, serving_proxy
from tenure.sandbox.sandbox import (
    Sandbox,
    SandboxCommand,
    SandboxEnded,
    SandboxSpec,
    base_environment,
    make_job_folders,
    make_output_pipe,
    open_sandbox,
    shell_argv,
)
from tenure.sandbox.usage_limits import UsageExceeded, UsageLimits
from tenure.shapes.test_reports import TestReport

log = get_logger(__name__)

T = TypeVar("T")

OBJECTS_FOLDER = "/mirror"
"""The objects of the repository's mirror, inside of the sandbox."""
ARTIFACT_BYTES_MAX = 5 << 30
REPORT_FILES_MAX = 2_000
MESSAGE_CHARS_MAX = 3_000
READ_BYTES = 64 * 1024
READY_POLL_SECONDS = 0.2
LINK_SEEN_AS = "/job/workspace"


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is called, in its environment."""

    run_id: str
    name: str
    attempt: int


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True):
    state: Literal["succeeded", "failed", "canceled", "lost"]
    output: dict[str, Any] = {}
    code: str = ""
    message: str = ""


class _JobFailed(Exception):
    def __init__(self, code: str, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.exit_code = exit_code

    @classmethod
    def of_exit(cls, what: str, exit_code: int) -> _JobFailed:
        """The end of a program. The rules give it its code when all output and the reports are there."""
        ended = f"was ended by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
        return cls("", f"{what} {ended}", exit_code)


class _Canceled(Exception):
    """The job was asked to stop."""


class JobAttempt:
    def __init__(
        self,
        host: JobHost,
        slot: int,
        job: CiJob,
        facts: JobFacts,
        storage: JobStorage,
        *,
        begin_upload: Callable[[], Awaitable[None]],
        on_phase: Callable[[Phase], None],
        cancel_grace_seconds: float,
    ) -> None:
        self._host = host
        self._job = job
        self._facts = facts
        self._storage = storage
        self._begin_upload = begin_upload
        self._on_phase = on_phase
        self._grace = cancel_grace_seconds
        self._uid = host.isolation.uid(slot)
        self._top = host.jobs / f"{slot}-{facts.run_id}-{facts.attempt}"
        self._folder = self._top / "files"
        self._sandbox: Sandbox | None = None
        self._interruptible: asyncio.Future[Any] | None = None
        self._work: asyncio.Task[JobOutcome] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._canceled = False
        self._lost = False
        self._exceeded: UsageExceeded | None = None
        self._log = JobOutput(storage, job.limits.log_bytes)
        self._phase: Phase = "checkout"
        self._phase_began = time.monotonic()
        self._phases: dict[str, float] = {}
        self._restored: dict[str, str] = {}
        self._stored: dict[str, str] = {}
        """Name of an artifact -> its digest."""
        self._report: TestReport | None = None

    # ---------------------------------------------------------------------------------- orders from outside

    def cancel(self) -> None:
        """Law 4."""
        if self._canceled or self._lost:
            return
        self._canceled = True
        if self._interruptible is not None:
            self._interruptible.cancel()
        if self._sandbox is not None:
            self._ending = asyncio.ensure_future(self._end_within_grace(self._sandbox))

    async def _end_within_grace(self, sandbox: Sandbox) -> None:
        sandbox.signal_all(signal.SIGTERM)
        await asyncio.sleep(self._grace)
        sandbox.kill()

    def lose(self) -> None:
        """Law 5."""
        self._lost = self._log.abandoned = True
        if self._sandbox is not None:
            self._sandbox.kill()
        if self._work is not None:
            self._work.cancel()

    # --------------------------------------------------------------------------------------------- the work

    async def run(self) -> JobOutcome:
        self._work = asyncio.ensure_future(self._run())
        try:
            return await self._work
        except asyncio.CancelledError:
            if not self._lost:
                self._work.cancel()
                await asyncio.wait([self._work])
                raise
            return JobOutcome(state="lost")
        finally:
            if self._ending is not None:
                self._ending.cancel()
            await asyncio.shield(_remove_folder(self._top))

    async def _run(self) -> JobOutcome:
        failure: _JobFailed | None = None
        try:
            await self._execute()
        except _JobFailed as failed:
            failure = failed
        except _Canceled:
            pass
        except TenureError as refused:
            failure = self._to_failure(refused)
        except asyncio.CancelledError:
            raise
        except Exception as fault:
            log.exception("job_attempt_failed", run=self._facts.run_id, job=self._facts.name)
            failure = _JobFailed("INFRA_RUNNER", f"the runner failed: {fault!r}")
        if self._exceeded is not None and failure is not None and failure.exit_code is not None:
            failure = self._over_limit(self._exceeded)  # found out when the sandbox was closed
        try:
            failure = await self._finish(failure)
        except TenureError as refused:
            failure = failure or self._to_failure(refused)
        except _JobFailed as failed:
            failure = failure or failed
        except Exception as fault:  # law 6
            log.exception("job_end_failed", run=self._facts.run_id, job=self._facts.name)
            failure = failure or _JobFailed("INFRA_RUNNER", f"the runner failed: {fault!r}")
        if self._lost:
            return JobOutcome(state="lost")
        if self._canceled:
            return JobOutcome(state="canceled")
        if failure is None:
            return JobOutcome(state="succeeded", output=self._describe())
        # Without a code, the program failed and its log or reports could not be stored, so no rule was asked.
        return JobOutcome(
            state="failed", code=failure.code or "COMMAND_FAILED", message=self._message(failure)
        )

    def _to_failure(self, refused: TenureError) -> _JobFailed:
        if refused.code == "LEASE_STALE":
            self._lost = self._log.abandoned = True
        if refused.code == "SANDBOX_UNAVAILABLE":
            return _JobFailed("RUNNER_STARTUP_SANDBOX", str(refused))
        if refused.code == "SECRET_UNAVAILABLE":
            return _JobFailed("SECRET_UNAVAILABLE", str(refused))
        code = {"restore": "CACHE_FETCH_FAILED", "upload": "INFRA_UPLOAD_FAILED"}.get(
            self._phase, "INFRA_STORAGE"
        )
        if not refused.retryable:
            code = {"restore": "RESTORE_FAILED", "upload": "UPLOAD_FAILED"}.get(
                self._phase, "STORAGE_REFUSED"
            )
        return _JobFailed(code, str(refused))

    def _describe(self) -> dict[str, Any]:
        """The output of a job that succeeded. It decides whether the results of the jobs behind it are reused, so it covers the artifacts, and
        has nothing that differs without a reason, such as times."""
        report = self._report
        return {
            "isolation": self._host.isolation.kind,
            **({"artifacts": self._stored} if self._stored else {}),
            **({"restored": self._restored} if self._restored else {}),
            **(
                {"tests": {"passed": report.passed, "failed": report.failed, "skipped": report.skipped}}
                if report is not None
                else {}
            ),
        }

    def _message(self, failure: _JobFailed) -> str:
        end = self._log.tail[-MESSAGE_CHARS_MAX // 2 :].decode(errors="replace").strip()
        unsafe = "" if self._host.isolation.kind != "none" else "\n(isolation: none)"
        text = f"{failure}{unsafe}\n{end}" if end else f"{failure}{unsafe}"
        return self._log.mask_text(text)[:MESSAGE_CHARS_MAX]

    # ------------------------------------------------------------------------------------------------ phases

    def _begin_phase(self, phase: Phase) -> None:
        self._check_canceled()
        self._end_phase()
        self._phase, self._phase_began = phase, time.monotonic()
        self._on_phase(phase)

    def _end_phase(self) -> None:
        spent = time.monotonic() - self._phase_began
        self._phases[self._phase] = round(self._phases.get(self._phase, 0.0) + spent, 3)

    def _check_canceled(self) -> None:
        if self._canceled:
            raise _Canceled

    async def _interrupt(self, work: Awaitable[T]) -> T:
        """Wait for work outside of the sandbox, which a cancel interrupts."""
        self._check_canceled()
        self._interruptible = task = asyncio.ensure_future(work)
        try:
            return await task
        except asyncio.CancelledError:
            if self._canceled and not self._lost:
                raise _Canceled from None
            raise
        finally:
            self._interruptible = None

    async def _execute(self) -> None:
        job = self._job
        self._on_phase("checkout")
        given = self._secrets()
        self._log.mask_secrets(map(os.fsencode, given.values()))
        try:
            hosts = parse_hosts(job.network)
        except ValueError as wrong:
            raise _JobFailed("JOB_INVALID", str(wrong)) from None
        make_folder(self._top)
        make_job_folders(self._folder, self._uid)
        await self._log.note(f"isolation: {self._host.isolation}")
        if job.secrets and not given:
            await self._log.note("the secrets of this job are not given: its ref is not trusted")
        mirror = await self._fetch()
        if job.checkout.paths is not None:
            await self._check_out_paths(mirror, job.checkout.paths)
        async with AsyncExitStack() as stack:
            proxy = None
            if hosts and self._host.isolation.kind == "bubblewrap":
                proxy = await stack.enter_async_context(
                    serving_proxy(self._top / "proxy", hosts, self._host.settings.reach)
                )
            spec = self._spec(proxy, mirror if job.checkout.paths is None else None)
            await stack.enter_async_context(self._open(spec))
            if job.checkout.paths is None:
                await self._check_out(spec, mirror, some=False)
            await self._restore(spec)
            env = base_environment(spec, {**self._variables(spec), **job.env, **given})
            await self._start_services(spec, env)
            self._begin_phase("commands")
            for command in job.commands:
                argv = shell_argv(command.run)
                shown = command.name or (
                    command.run if isinstance(command.run, str) else " ".join(command.run)
                )
                title = f"$ {self._log.mask_text(shown.strip())[:500]}"
                code = await self._run_program(
                    SandboxCommand(argv=argv, cwd=self._cwd(spec, command.cwd), env=env, title=title)
                )
                if code:
                    raise _JobFailed.of_exit(shown.strip().splitlines()[0][:200], code)

    def _variables(self, spec: SandboxSpec) -> dict[str, str]:
        checkout, facts = self._job.checkout, self._facts
        return {
            "CI": "true",
            "TENURE_RUN_ID": facts.run_id,
            "TENURE_JOB": facts.name,
            "TENURE_ATTEMPT": str(facts.attempt),
            "TENURE_REPOSITORY": checkout.repository,
            "TENURE_COMMIT": checkout.commit,
            "TENURE_REF": checkout.ref,
            "TENURE_WORKSPACE": spec.inside("workspace"),
        }

    def _secrets(self) -> dict[str, str]:
        """Law 3."""
        if not self._job.trusted:
            return {}
        values: dict[str, str] = {}
        for name in self._job.secrets:
            reference = self._host.settings.secrets.get(name)
            if reference is None:
                raise TenureError(
                    "SECRET_UNAVAILABLE",
                    f"this runner has no secret {name!r}: name it in its file of secrets",
                )
            value = secrets.resolve_own(reference)
            if len(value) < SECRET_BYTES_MIN or b"\0" in value:
                raise TenureError(
                    "SECRET_UNAVAILABLE",
                    f"the value of secret {name!r} cannot be used: it must have at least {SECRET_BYTES_MIN} bytes, and no NUL",
                )
            values[name] = os.fsdecode(value)
        return values

    def _cwd(self, spec: SandboxSpec, folder: str) -> str:
        if folder.startswith("/") or ".." in folder.split("/"):
            raise _JobFailed("JOB_INVALID", f"cwd {folder[:200]!r} leads out of the workspace")
        return spec.inside(f"workspace/{folder}".rstrip("/"))

    # ----------------------------------------------------------------------------------------------- checkout

    async def _fetch(self) -> GitMirror:
        try:
            return await self._interrupt(self._host.fetch(self._job.checkout))
        except TenureError as refused:
            fault = refused.__cause__  # what git said, line by line, if it was git
            output = fault.stderr if isinstance(fault, GitCommandFailed) else refused.message
            await self._log.note(output.strip())
            failure = JobFailure(phase="checkout", output=output.encode())
            code = await asyncio.to_thread(classify, failure, self._job.failure_rules)
            if code == PHASE_CODES["checkout"] and refused.retryable:
                code = refused.code
            raise _JobFailed(code, refused.message) from None

    async def _check_out_paths(self, mirror: GitMirror, globs: Sequence[str]) -> None:
        """Check out only some files, in a sandbox of its own: the job's sandbox does not see the repository."""
        commit = self._job.checkout.commit
        try:
            check_globs(globs)
            paths = await self._interrupt(
                self._host.run_git(lambda _: mirror.repository.find_paths(commit, globs))
            )
        except WorkspaceProblem as wrong:
            raise _JobFailed("JOB_INVALID", f"checkout.paths: {wrong}") from None
        except (GitCommandFailed, GitCommandTimedOut) as fault:
            raise _JobFailed(PHASE_CODES["checkout"], str(fault)) from None
        names = self._folder / "incoming" / "paths"
        await asyncio.to_thread(write_file, names, b"".join(path + b"\0" for path in paths))
        self._give(names)
        spec = self._spec(None, mirror)
        async with self._open(spec):
            await self._check_out(spec, mirror, some=True)

    async def _check_out(self, spec: SandboxSpec, mirror: GitMirror, *, some: bool) -> None:
        objects = OBJECTS_FOLDER if spec.isolation == "bubblewrap" else str(mirror.folder / "objects")
        commit = self._job.checkout.commit
        command = SandboxCommand(
            argv=("sh", "-c", _make_checkout_script(objects, commit, some=some)),
            cwd=spec.inside("workspace"),
            env=base_environment(spec, {"GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0"}),
            title=f"checkout {commit}",
        )
        code = await self._run_program(command)
        if code:
            raise _JobFailed.of_exit(f"checkout of {commit}", code)

    def _give(self, path: Path) -> None:
        """Make the job's user the owner of a file that the runner has made."""
        if self._uid is not None:
            os.lchown(path, self._uid, self._uid)

    # ------------------------------------------------------------------------------------------------ restore

    async def _restore(self, spec: SandboxSpec) -> None:
        job = self._job
        if not job.caches and not job.downloads:
            return
        self._begin_phase("restore")
        for number, cache in enumerate(job.caches):
            into = self._incoming(f"cache-{number}")
            found = await self._interrupt(self._storage.restore_cache(cache.key, cache.fallback, into))
            if found is not None:
                self._restored[cache.key] = found
                await self._move_in(spec, into, ".")
            await self._log.note(
                f"cache {cache.key}: {'not found' if found is None else f'restored from {found}'}"
            )
        for number, download in enumerate(job.downloads):
            into = self._incoming(f"download-{number}")
            await self._interrupt(self._storage.download(download.job, download.artifact, into))
            await self._move_in(spec, into, download.to)
            await self._log.note(f"artifact {download.artifact} of {download.job}: downloaded")

    def _incoming(self, name: str) -> Path:
        """A folder that only the runner can reach."""
        return make_folder(self._top / name)

    async def _move_in(self, spec: SandboxSpec, folder: Path, to: str) -> None:
        """Law 2."""
        target = self._cwd(spec, "" if to in ("", ".") else to)
        if self._uid is not None:
            await _run_quietly("chown", "-hR", f"{self._uid}:{self._uid}", str(folder))
        name = folder.name
        await asyncio.to_thread(os.rename, folder, self._folder / "incoming" / name)
        source = spec.inside(f"incoming/{name}")
        script = 'mkdir -p "$2" && cp -alT --remove-destination "$1" "$2" && rm -rf "$1"'
        code = await self._run_program(
            SandboxCommand(
                argv=("sh", "-c", script, "sh", source, target),
                cwd=spec.inside("workspace"),
                env=base_environment(spec, {}),
            )
        )
        if code:
            raise _JobFailed(
                "RESTORE_FAILED", f"restored files could not be put into {to!r} of the workspace"
            )

    # ----------------------------------------------------------------------------------------------- services

    async def _start_services(self, spec: SandboxSpec, env: Mapping[str, str]) -> None:
        if not self._job.services:
            return
        self._begin_phase("services")
        assert self._sandbox is not None
        for service in self._job.services:
            started = self._sandbox.start_program(
                SandboxCommand(
                    argv=shell_argv(service.run),
                    cwd=spec.inside("workspace"),
                    env=dict(env),
                    title=f"service {service.name}",
                )
            )
            if service.ready is not None:
                await self._await_ready(spec, env, service, service.ready, started)

    async def _await_ready(
        self,
        spec: SandboxSpec,
        env: Mapping[str, str],
        service: JobService,
        ready: tuple[str, ...] | str,
        started: asyncio.Future[int],
    ) -> None:
        deadline = time.monotonic() + service.ready_seconds
        check = SandboxCommand(argv=shell_argv(ready), cwd=spec.inside("workspace"), env=dict(env))
        while await self._run_program(check) != 0:
            if started.done() and not started.exception():
                raise _JobFailed.of_exit(f"service {service.name}", started.result() or 1)
            if time.monotonic() > deadline:
                raise _JobFailed.of_exit(
                    f"service {service.name} was not ready in {service.ready_seconds:g} s", 1
                )
            await asyncio.sleep(READY_POLL_SECONDS)

    # -------------------------------------------------------------------------------------------- the sandbox

    def _spec(self, proxy: Path | None, mirror: GitMirror | None) -> SandboxSpec:
        limits = self._job.limits
        mounts = [Mount(path, path) for path in self._host.settings.tools]
        if mirror is not None:
            mounts.append(Mount(str(mirror.folder / "objects"), OBJECTS_FOLDER))
        return SandboxSpec(
            isolation=self._host.isolation.kind,
            folder=self._folder,
            files=self._host.files,
            mounts=tuple(mounts),
            proxy_folder=proxy,
            uid=self._uid,
            processes=limits.processes,
            file_bytes=limits.disk_bytes,
        )

    @asynccontextmanager
    async def _open(self, spec: SandboxSpec) -> AsyncIterator[None]:
        """A sandbox, its output and its limits. When this ends, all of its output is in the log."""
        limits = self._job.limits
        reading, writing = make_output_pipe()
        pump = asyncio.ensure_future(self._log.read_from(reading))
        try:
            async with open_sandbox(spec, output=writing) as sandbox:
                os.close(writing)
                writing = -1
                measured = self._host.meter.add(
                    sandbox.pid,
                    UsageLimits(
                        memory_bytes=limits.memory_bytes,
                        processes=limits.processes,
                        disk_bytes=limits.disk_bytes,
                    ),
                    (self._folder,),
                    self._exceed,
                )
                self._sandbox = sandbox
                try:
                    yield
                finally:
                    self._sandbox = None
                    await sandbox.close()
                    await self._host.meter.remove(measured)
        finally:
            if writing >= 0:
                os.close(writing)
            await asyncio.wait([pump])
        if self._exceeded is not None:
            raise self._over_limit(self._exceeded)

    def _exceed(self, exceeded: UsageExceeded) -> None:
        self._exceeded = exceeded
        if self._sandbox is not None:
            self._sandbox.kill()

    def _over_limit(self, exceeded: UsageExceeded) -> _JobFailed:
        return _JobFailed(EXCEEDED_CODES[exceeded.resource], f"the job was ended: {exceeded}")

    async def _run_program(self, command: SandboxCommand) -> int:
        """Run a program in the sandbox. Ends with the reason, if the job is ended meanwhile."""
        self._check_canceled()
        assert self._sandbox is not None
        try:
            code = await self._sandbox.run(command)
        except SandboxEnded:
            self._check_canceled()
            if self._exceeded is not None:
                raise self._over_limit(self._exceeded) from None
            raise _JobFailed("INFRA_SANDBOX_ENDED", "the sandbox ended before the job did") from None
        self._check_canceled()
        if self._exceeded is not None:
            raise self._over_limit(self._exceeded)
        return code

    # ------------------------------------------------------------------------------------------------- the end

    async def _finish(self, failure: _JobFailed | None) -> _JobFailed | None:
        """Read reports, give the failure its code, upload what is to be kept, and close the log."""
        if self._lost:
            return failure
        try:
            if self._phase in ("commands", "upload"):
                self._report = await asyncio.to_thread(self._read_reports)
            failure = await self._give_code(failure)
            if self._report is not None:
                await self._storage.send_report(self._report)
            if self._folder.exists():
                failure = await self._upload(failure)
        finally:
            self._end_phase()
            spent = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in self._phases.items())
            await self._log.note(f"time: {spent}")
            await self._log.close()
        if self._log.fault is not None and failure is None:
            return self._to_failure(self._log.fault)
        return failure

    async def _give_code(self, failure: _JobFailed | None) -> _JobFailed | None:
        if failure is None or failure.exit_code is None:
            return failure
        report = self._report
        known = JobFailure(
            phase=self._phase,
            exit_code=failure.exit_code,
            output=self._log.tail,
            failed_tests=0 if report is None else report.failed,
        )
        code = await asyncio.to_thread(classify, known, self._job.failure_rules)
        if report is not None and report.failed_cases:
            with suppress(TenureError):  # without the history the tests count as what they are
                history = await self._storage.failed_before([case.test for case in report.failed_cases])
                code = classify_tests(code, report.failed_cases, report.failed, history)
        return _JobFailed(code, str(failure))

    def _read_reports(self) -> TestReport | None:
        if not self._job.reports:
            return None
        root = self._folder / "workspace"
        try:
            files = find_files(root, self._job.reports, seen_as=self._seen_as(), bytes_max=ARTIFACT_BYTES_MAX)
        except (WorkspaceProblem, OSError) as wrong:
            return TestReport(notes=(f"reports: {wrong}"[:1000],))
        found = []
        for file in files[:REPORT_FILES_MAX]:
            try:
                with file.local.open("rb") as opened:
                    found.append(read_junit(_pieces(opened)))
            except (ReportProblem, OSError) as problem:
                found.append(TestReport(notes=(f"{file.path[:500]}: {problem}",)))
        return self._mask_report(join_reports(found)) if found else None

    def _mask_report(self, report: TestReport) -> TestReport:
        """Law 3, and within the size that a server takes."""
        mask, chars = self._log.mask_text, 4_000
        while True:
            cases = tuple(
                msgspec.structs.replace(case, message=mask(case.message)[:chars])
                for case in report.failed_cases
            )
            made = msgspec.structs.replace(report, failed_cases=cases, notes=tuple(map(mask, report.notes)))
            if len(msgspec.json.encode(made)) <= TEST_REPORT_BYTES_MAX or chars < 10:
                return made
            chars //= 2
            report = msgspec.structs.replace(
                report, passed_tests=report.passed_tests[: len(report.passed_tests) // 2]
            )

    def _seen_as(self) -> str:
        return LINK_SEEN_AS if self._host.isolation.kind == "bubblewrap" else str(self._folder / "workspace")

    def _find_cached(self, root: Path, paths: Sequence[str]) -> list[Path]:
        """What there is to save of a cache. A path that cannot exist is missing, too."""
        inside = (path for path in paths if resolve_inside(root, path, self._seen_as()) == path.strip("/"))
        return [root / path for path in inside if os.path.exists(root / path)]

    async def _upload(self, failure: _JobFailed | None) -> _JobFailed | None:
        job = self._job
        wanted = [each for each in job.artifacts if failure is None or self._canceled or each.always]
        saved = [
            each
            for each in job.caches
            if failure is None and not self._canceled and self._restored.get(each.key) != each.key
        ]
        if not wanted and not saved:
            return failure
        if not self._canceled:
            self._begin_phase("upload")
            await self._begin_upload()
        root = self._folder / "workspace"
        for artifact in wanted:
            try:
                files = await asyncio.to_thread(
                    find_files, root, artifact.paths, seen_as=self._seen_as(), bytes_max=ARTIFACT_BYTES_MAX
                )
            except (WorkspaceProblem, OSError) as wrong:
                failure = failure or _JobFailed("ARTIFACT_INVALID", f"artifact {artifact.name}: {wrong}")
                continue
            if files:
                self._stored[artifact.name] = await self._storage.upload(
                    artifact.name, files, artifact.retention_seconds
                )
            await self._log.note(f"artifact {artifact.name}: {len(files)} files")
        for cache in saved if failure is None else ():
            paths = self._find_cached(root, cache.paths)
            if paths:
                await self._storage.save_cache(cache.key, paths, root)
            await self._log.note(f"cache {cache.key}: {'saved' if paths else 'nothing to save'}")
        return failure


def _make_checkout_script(objects: str, commit: str, *, some: bool) -> str:
    """The script that fills an empty workspace in the sandbox. If it gets only `some` files, their names are in `../incoming/paths`, and no
    repository is left: a job that declares its inputs can see nothing else."""
    quiet = "git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c advice.detachedHead=false"
    begin = f"git init -q --template= . && mkdir -p .git/objects/info && echo {objects} > .git/objects/info/alternates"
    if not some:
        return f"{begin} && {quiet} checkout -q --detach {commit}"
    return (
        f"{begin} && if test -s ../incoming/paths; then GIT_LITERAL_PATHSPECS=1 {quiet} checkout -q"
        f" --pathspec-from-file=../incoming/paths --pathspec-file-nul {commit}; fi && rm -rf .git ../incoming/paths"
    )


async def _run_quietly(*argv: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    await process.wait()


async def _remove_folder(folder: Path) -> None:
    """Remove a job's folder, however deep its tree is."""
    await _run_quietly("rm", "-rf", "--one-file-system", "--", str(folder))
    if await asyncio.to_thread(
        os.path.lexists, folder
    ):  # folders without permissions, where the runner is not root
        await _run_quietly("chmod", "-R", "u+rwX", "--", str(folder))
        await _run_quietly("rm", "-rf", "--one-file-system", "--", str(folder))


def _pieces(opened: BinaryIO) -> Iterator[bytes]:
    while piece := opened.read(READ_BYTES):
        yield piece
