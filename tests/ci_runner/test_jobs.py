"""A CI runner as a real process: it takes jobs from a real server and runs them in real sandboxes, with real git."""

import os
import re
import signal
import sys
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from tenure.shapes.test_reports import TestHistory
from tests.ci_runner.stage import CiStage, ci_stage, commit
from tests.worker.helpers import until

PYTHON = os.path.realpath(sys.executable)
"""The interpreter of the runner, which its sandboxes see."""
UNTIL_STOPPED = "while :; do sleep 0.1; done"


def processes_with(marker: str) -> list[int]:
    """The processes of this machine with a text in their command line."""
    found = []
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdigit() and marker.encode() in (each / "cmdline").read_bytes():
                found.append(int(each.name))
        except OSError:
            continue
    return found


@pytest.mark.clause("DCI-18")
async def test_a_runner_executes_commands_streams_logs_uploads_heartbeats_and_obeys_cancel(
    url: str, tmp_path: Path
) -> None:
    async with ci_stage(url, tmp_path, slots=3, cancel_grace_seconds=1.0) as stage:
        run = await stage.start(
            commands=[
                {"run": ["cat", "README"]},
                {
                    "run": "git log --format=%H; echo $TENURE_JOB $GREETING; mkdir out; echo 1 > out/a.txt",
                    "name": "build",
                },
            ],
            env={"GREETING": "hi"},
            artifacts=[{"name": "out", "paths": ["out/*.txt"]}],
        )
        # One job ends on SIGTERM, the other ignores it. Their leases are shorter than they live.
        patient = f"trap 'echo got TERM; echo partial > part.txt; exit 0' TERM; echo begun; {UNTIL_STOPPED}"
        stubborn = f"trap '' TERM; echo begun; {UNTIL_STOPPED}"
        artifacts = [{"name": "part", "paths": ["part.txt"]}]
        canceled = await stage.start(
            {"run": patient, "artifacts": artifacts},
            {"run": stubborn, "artifacts": artifacts},
            lease_seconds=2.0,
        )
        assert await stage.ended(run) == "SUCCESS"
        log = stage.log(run)
        assert f"$ cat README\nhello\n$ build\n{stage.commit}\njob-0 hi\n" in log
        assert (stage.lease(run) / "artifacts/out/out/a.txt").read_text() == "1\n"
        assert (stage.lease(run) / "closed").exists()
        step = await stage.step(run)
        assert step.output["isolation"] == "bubblewrap"
        assert step.output["artifacts"] == {"out": "sha256:" + sha256(b"1\n").hexdigest()}
        assert re.search("# time: checkout .* s, commands .* s, upload .* s", log)

        for job in (0, 1):
            await stage.logged(canceled, "begun", job)  # while the job runs
        first = (await stage.step(canceled)).lease_until
        await until(lambda: _extended(stage, canceled, first), "a heartbeat")
        await stage.engine.cancel(canceled)
        assert await stage.ended(canceled) == "CANCELED"
        for job in (0, 1):
            step = await stage.step(canceled, f"job-{job}")
            assert (step.shown, step.attempt) == ("CANCELED", 1)
            assert (stage.lease(canceled, job) / "closed").exists()
        assert "got TERM" in stage.log(canceled)
        assert (stage.lease(canceled) / "artifacts/part/part.txt").read_text() == "partial\n"


async def _extended(stage: CiStage, run: str, first: object) -> bool:
    return bool((await stage.step(run)).lease_until != first)


@pytest.mark.clause("DCI-23")
async def test_uploading_is_visible_and_an_attempt_that_lost_its_lease_uploads_nothing(
    url: str, tmp_path: Path
) -> None:
    hold = tmp_path / "storage" / "hold-attempt.1"
    async with ci_stage(url, tmp_path, slots=1) as stage:
        hold.touch()
        artifacts = [{"name": "who", "paths": ["who.txt"]}]
        run = await stage.start(
            run="echo $TENURE_ATTEMPT > who.txt", artifacts=artifacts, lease_seconds=2.0, retries=50
        )

        async def uploading() -> bool:
            return bool((await stage.step(run)).shown == "UPLOADING")

        await until(uploading, "UPLOADING")
        # The runner stands still until its lease has expired and another one has done the job.
        stage.runners[0].send_signal(signal.SIGSTOP)
        await stage.start_runner()
        assert await stage.ended(run) == "SUCCESS"
        last = (
            await stage.step(run)
        ).attempt  # 2, unless the machine was too busy for a lease of two seconds
        assert last >= 2
        accepted = stage.lease(run, attempt=last) / "artifacts/who/who.txt"
        assert accepted.read_text() == f"{last}\n"
        stage.runners[0].send_signal(signal.SIGCONT)
        jobs = tmp_path / "runner-0" / "jobs"
        await until(lambda: not list(jobs.iterdir()), "the end of the lost job")
        assert not (stage.lease(run) / "artifacts").exists()
        assert not (stage.lease(run) / "closed").exists()
        assert (await stage.step(run)).output["isolation"] == "bubblewrap"


async def test_jobs_die_with_a_runner_that_is_killed(url: str, tmp_path: Path) -> None:
    marker = f"{os.getpid()}.{os.getpid()}"
    async with ci_stage(url, tmp_path) as stage:
        run = await stage.start(
            run=f"setsid sleep 7{marker} & echo begun; sleep 8{marker}", lease_seconds=2.0
        )
        await stage.logged(run, "begun")
        await until(lambda: processes_with(f"7{marker}") and processes_with(f"8{marker}"), "the processes")
        stage.runners[0].kill()
        await until(lambda: not processes_with(marker), "the end of the job's processes")
        await stage.engine.cancel(run)
        assert await stage.ended(run) == "CANCELED"


@pytest.mark.clause("DCI-22", "DCI-13")
async def test_real_failures_get_codes_by_rules_and_the_retry_rules_act_on_them(
    url: str, tmp_path: Path
) -> None:
    report = "<testsuite><testcase name='{}'><failure>no</failure></testcase></testsuite>"
    files = {
        "bad.py": "def f(:\n",
        "flaky.xml": report.format("wobbly"),
        "steady.xml": report.format("broken"),
    }
    cases: dict[str, tuple[dict[str, object], str, int]] = {
        # what runs; the code; the number of attempts
        "exit code": ({"run": "exit 3"}, "COMMAND_FAILED", 1),
        "signal": ({"run": "kill -KILL $$"}, "INFRA_OUT_OF_MEMORY", 2),
        "network": ({"run": "git clone https://nowhere.invalid/x.git"}, "NETWORK_GIT", 2),
        "network, then well": (
            {"run": "test $TENURE_ATTEMPT = 2 || { echo 'curl: (6) Could not resolve host: x'; exit 6; }"},
            "",
            2,
        ),
        "compiler": ({"run": [PYTHON, "bad.py"]}, "COMPILE_ERROR", 1),
        "lint": ({"run": "echo 'x.py:1:1: F401 unused import'; exit 1"}, "LINT_VIOLATION", 1),
        "flaky test": ({"run": "exit 1", "reports": ["flaky.xml"]}, "FLAKY_TEST", 2),
        "test": ({"run": "exit 1", "reports": ["*.xml"]}, "TEST_FAILURE", 1),
        "own rule": (
            {"run": "exit 75", "failure_rules": [{"code": "INFRA_LICENSE", "exit_codes": [75]}]},
            "INFRA_LICENSE",
            2,
        ),
        "no such commit": ({"checkout": {"commit": "0" * 40}}, "CHECKOUT_FAILED", 1),
        "no such server": ({"checkout": {"url": "/nowhere/x"}}, "NETWORK_GIT", 2),
        "service": ({"services": [{"name": "db", "run": "exit 9", "ready": "false"}]}, "SERVICE_FAILED", 1),
    }
    async with ci_stage(url, tmp_path, files=files, slots=4) as stage:
        history = {"wobbly": TestHistory(passed=9, failed=1, flips=1)}
        (stage.storage / "history.json").write_bytes(msgspec.json.encode(history))
        run = await stage.start(*(job for job, _, _ in cases.values()), retries=1, required=False)
        await stage.ended(run)
        found = {name: await stage.failure(run, f"job-{number}") for number, name in enumerate(cases)}
        assert found == {name: (code, attempts) for name, (_, code, attempts) in cases.items()}


async def test_caches_artifacts_services_and_inputs_of_jobs(url: str, tmp_path: Path) -> None:
    files = {"src/a.py": "a\n", "src/deep/b.py": "b\n", "docs/c.md": "c\n", "link": ""}
    async with ci_stage(url, tmp_path, files=files, slots=2) as stage:
        (stage.repository / "link").unlink()
        (stage.repository / "link").symlink_to("/job/home")  # a cache restored through it would land there
        stage.commit = commit(stage.repository)
        caches = [{"key": "deps-2", "paths": ["deps"], "fallback": ["deps-"]}]
        first = await stage.start(
            run="mkdir deps dist; echo lib > deps/lib; echo exe > dist/exe; chmod 755 dist/exe",
            caches=[{"key": "deps-1", "paths": ["deps"]}],
            artifacts=[{"name": "dist", "paths": ["dist"]}],
        )
        assert await stage.ended(first) == "SUCCESS"
        second = await stage.start(
            run="cat deps/lib got/dist/exe; test -x got/dist/exe; find . -type f | grep -v deps | sort; ls -A; ! git log 2>/dev/null",
            checkout={"paths": ["src/**/*.py"]},
            caches=caches,
            downloads=[{"job": "job-0", "artifact": "dist", "to": "got"}],
        )
        service = f"{PYTHON} -m http.server 8123 --bind 127.0.0.1"
        ask = f"{PYTHON} -c \"import urllib.request as r; print(r.urlopen('http://127.0.0.1:8123/src/a.py').read())\""
        third = await stage.start(
            services=[{"name": "web", "run": service, "ready": ask}], run=f"echo said; {ask}"
        )
        assert await stage.ended(second) == "SUCCESS", stage.log(second)
        log = stage.log(second)
        assert "cache deps-2: restored from deps-1" in log
        assert "lib\nexe\n./got/dist/exe\n./src/a.py\n./src/deep/b.py\ndeps\ngot\nsrc\n" in log
        assert (await stage.step(second)).output["restored"] == {"deps-2": "deps-1"}
        assert (stage.storage / "caches/deps-2/deps/lib").exists()
        assert await stage.ended(third) == "SUCCESS", stage.log(third)
        assert "b'a\\n'" in stage.log(third).rpartition("said")[2]


async def test_hostile_workspaces_end_as_clear_failures_or_notes(url: str, tmp_path: Path) -> None:
    bomb = '<!DOCTYPE t [<!ENTITY a "aaaa">]><testsuite><testcase name="&a;"/></testsuite>'
    cases: dict[str, tuple[dict[str, object], str]] = {
        "artifact out": (
            {"run": "ln -s /etc/passwd x", "artifacts": [{"name": "x", "paths": ["x"]}]},
            "ARTIFACT_INVALID",
        ),
        "artifact above": ({"artifacts": [{"name": "x", "paths": ["../x"]}]}, "ARTIFACT_INVALID"),
        "cwd": ({"commands": [{"run": "true", "cwd": "../.."}]}, "JOB_INVALID"),
        "network": ({"network": ["http://x/"]}, "JOB_INVALID"),
        "bomb": ({"run": "echo no > a.xml", "reports": ["*.xml"]}, ""),
        "deep": (
            {"run": "for i in 1 2 3 4 5 6 7 8 9; do mkdir -p $(printf 'd%.0s/' $(seq 500)); cd d; done"},
            "",
        ),
        "unreadable": ({"run": "mkdir a; touch a/b; chmod 000 a"}, ""),
        "names that are no text": (
            {
                "run": "mkdir o; touch $(printf 'o/\\377\\376.xml')",
                "artifacts": [{"name": "o", "paths": ["o/**"]}],
                "reports": ["o/*"],
            },
            "",
        ),
        "a name that is too long": ({"caches": [{"key": "k", "paths": ["a" * 300]}]}, ""),
        "signals to the agent": ({"run": "for s in INT HUP TERM QUIT KILL CHLD; do kill -$s 1; done"}, ""),
        "no program": ({"commands": [{"run": ["no-such-program"]}]}, "COMMAND_FAILED"),
    }
    async with ci_stage(url, tmp_path, files={"b.xml": bomb}, slots=4) as stage:
        run = await stage.start(*(job for job, _ in cases.values()), required=False)
        await stage.ended(run)
        found = {name: (await stage.failure(run, f"job-{number}"))[0] for number, name in enumerate(cases)}
        assert found == {name: code for name, (_, code) in cases.items()}
        report = msgspec.json.decode((stage.lease(run, 4) / "report.json").read_bytes())
        assert sorted(note.partition(":")[0] for note in report["notes"]) == ["a.xml", "b.xml"]
        assert not list((tmp_path / "runner-0" / "jobs").iterdir())


async def test_a_runner_takes_only_jobs_whose_labels_it_has(url: str, tmp_path: Path) -> None:
    async with ci_stage(url, tmp_path, labels=("linux", "gpu")) as stage:
        theirs = await stage.start(queue="ci+arm+linux")
        ours = [await stage.start(queue=queue) for queue in ("ci", "ci+linux", "ci+gpu+linux")]
        for run in ours:
            assert await stage.ended(run) == "SUCCESS"
        assert (await stage.step(theirs)).shown == "QUEUED"
        await stage.engine.cancel(theirs)
