"""What a job can reach: nothing of the runner, of other jobs or of the network. The same attacks succeed without isolation."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tenure.sandbox.sandbox import IsolationKind
from tests.ci_runner.stage import ci_stage
from tests.worker.helpers import until

PYTHON = os.path.realpath(sys.executable)
ATTACK = r"""
import os, socket, sys
secret, victim, port, hidden = sys.argv[1].encode(), sys.argv[2], int(sys.argv[3]), sys.argv[4]
def leak(what): print("LEAK", what, flush=True)
for name in os.listdir("/proc"):
    if not name.isdigit() or int(name) == os.getpid(): continue
    for part in ("environ", "cmdline"):
        try:
            if part == "environ" and secret in open(f"/proc/{name}/{part}", "rb").read(): leak("environment")
        except OSError: pass
    try:
        for line in open(f"/proc/{name}/maps"):
            if "[heap]" in line:
                begin, end = (int(x, 16) for x in line.split()[0].split("-"))
                with open(f"/proc/{name}/mem", "rb") as mem:
                    mem.seek(begin)
                    if secret in mem.read(end - begin): leak("memory")
    except (OSError, ValueError): pass
for top in (victim, hidden, "/job/../" + victim):
    for folder, _, files in os.walk(top):
        for file in files:
            try:
                if open(os.path.join(folder, file), "rb").read(): leak("file of " + ("the runner" if top == hidden else "another job"))
            except OSError: pass
try:
    socket.create_connection(("127.0.0.1", port), 5); leak("network")
except OSError: pass
print("attack over", os.getuid())
"""


@pytest.mark.clause("DCI-21")
@pytest.mark.parametrize("isolation", ["bubblewrap", "none"])
async def test_a_job_reads_nothing_of_the_runner_or_of_other_jobs_and_has_no_network(
    url: str, tmp_path: Path, isolation: IsolationKind
) -> None:
    secret = f"hush-{os.urandom(8).hex()}"
    hidden = tmp_path / "secrets"
    hidden.mkdir()
    (hidden / "token").write_text(secret)
    async with ci_stage(url, tmp_path, files={"attack.py": ATTACK}, runner=False) as stage:
        await stage.start_runner(isolation=isolation, env={"TENURE_HUSH": secret}, slots=2)
        victim = await stage.start(run="echo mine > marker; echo begun; while :; do sleep 0.1; done")
        await stage.logged(victim, "begun")
        jobs = tmp_path / "runner-0" / "jobs"
        port = stage.site.address.rpartition(":")[2]
        attack = [PYTHON, "attack.py", secret, str(jobs), port, str(hidden)]
        status, log = await stage.result(commands=[{"run": attack}])
        leaks = {line for line in log.splitlines() if line.startswith("LEAK")}
        assert status == "SUCCESS"
        assert "attack over" in log
        if isolation == "bubblewrap":
            assert leaks == set()
            assert "attack over 1000" in log
        else:
            assert {"LEAK file of another job", "LEAK file of the runner", "LEAK network"} <= leaks
            assert "isolation: none" in log
        await stage.engine.cancel(victim)


async def test_a_job_above_a_limit_is_ended_and_the_runner_lives(url: str, tmp_path: Path) -> None:
    limits = {"memory_bytes": 200 << 20, "processes": 30, "disk_bytes": 20 << 20}
    hog = f"{PYTHON} -c 'x = []\nwhile True: x.append(bytearray(b\"x\" * (8 << 20)))'"
    jobs = [
        {"run": "while :; do sleep 1000 & done", "limits": limits},
        {"run": f"{hog} || sleep 1000", "limits": limits},
        {"run": "i=0; while :; do i=$((i + 1)); head -c 1000000 /dev/zero > f$i; done", "limits": limits},
        {"run": "head -c 50000000 /dev/zero > one", "limits": limits},
    ]
    codes = ["JOB_PROCESSES_EXCEEDED", "JOB_MEMORY_EXCEEDED", "JOB_DISK_EXCEEDED", "JOB_DISK_EXCEEDED"]
    async with ci_stage(url, tmp_path, slots=4) as stage:
        run = await stage.start(*jobs, required=False)
        await stage.ended(run)
        assert [(await stage.failure(run, f"job-{n}"))[0] for n in range(4)] == codes
        assert stage.runners[0].poll() is None
        assert (await stage.result(run="echo fine"))[0] == "SUCCESS"


async def test_secrets_reach_trusted_jobs_only_and_never_their_logs(url: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first-line-of-it\nsecond line\n")
    secrets = {"TOKEN": "env:HUSH_TOKEN", "FILE": f"file:{tmp_path / 'token'}"}
    show = 'test "$TOKEN" = hush-value-1 && echo has it; printf hush-; sleep 0.2; echo value-1; printf %s "$TOKEN" | base64; echo "$FILE"'
    async with ci_stage(url, tmp_path, files={"show.sh": show}, runner=False) as stage:
        await stage.start_runner(secrets=secrets, env={"HUSH_TOKEN": "hush-value-1"})
        trusted = await stage.start(run="sh show.sh", secrets=["TOKEN", "FILE"], trusted=True)
        fork = await stage.start(
            run='echo "token=[$TOKEN]"; cat /proc/*/environ 2>/dev/null | tr "\\0" "\\n" | grep -c HUSH',
            secrets=["TOKEN"],
        )
        unnamed = await stage.start(run='echo "token=[$TOKEN]"', trusted=True)
        unknown = await stage.start(run="true", secrets=["OTHER"], trusted=True)
        await asyncio.gather(*map(stage.ended, (trusted, fork, unnamed, unknown)))
        log = stage.log(trusted)
        assert "has it\n***\n***" in log
        assert not any(part in log for part in ("value-1", "aHVzaC12YWx1ZS0x", "first-line", "second line"))
        assert "token=[]\n0\n" in stage.log(fork)
        assert "its ref is not trusted" in stage.log(fork)
        assert "token=[]" in stage.log(unnamed)
        assert (await stage.failure(unknown))[0] == "SECRET_UNAVAILABLE"


FETCH = """
import sys, urllib.request
for url in sys.argv[1:]:
    try: print("GOT", url, urllib.request.urlopen(url, timeout=30).read().decode(), flush=True)
    except OSError as fault: print("REFUSED", url, fault, flush=True)
"""


async def test_a_job_reaches_the_hosts_that_it_names_and_no_others(url: str, tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        assert b"Host: 127.0.0.2" in head
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.2", 0)
    port = server.sockets[0].getsockname()[1]
    allowed, other = f"http://127.0.0.2:{port}/", f"http://127.0.0.3:{port}/"
    job = {"commands": [{"run": [PYTHON, "fetch.py", allowed, other]}], "network": [f"127.0.0.2:{port}"]}
    async with server, ci_stage(url, tmp_path, files={"fetch.py": FETCH}, runner=False) as stage:
        await stage.start_runner(loopback=True, labels=("open",), slots=1)
        await stage.start_runner(loopback=False, labels=("closed",), slots=1)
        opened, closed = [await stage.start(job, queue=f"ci+{label}") for label in ("open", "closed")]
        bare = await stage.start({**job, "network": []}, queue="ci+open")
        await asyncio.gather(*map(stage.ended, (opened, closed, bare)))
        assert f"GOT {allowed} ok" in stage.log(opened)
        assert f"REFUSED {other} HTTP Error 403" in stage.log(opened)
        assert f"REFUSED {allowed} HTTP Error 502" in stage.log(closed)
        assert "GOT" not in stage.log(bare)
        await until(lambda: stage.log(bare).count("REFUSED") == 2, "two refusals")


async def test_a_runner_without_a_sandbox_refuses_to_start(url: str, tmp_path: Path) -> None:
    async with ci_stage(url, tmp_path, runner=False) as stage:
        (tmp_path / "bin").mkdir()
        broken = tmp_path / "bin" / "bwrap"
        broken.write_text("#!/bin/sh\necho no permissions >&2\nexit 1\n")
        broken.chmod(0o755)
        runner = await stage.start_runner(env={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"})
        assert await asyncio.to_thread(runner.wait) == 1
