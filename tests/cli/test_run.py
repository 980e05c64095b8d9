"""`tenure run` without a terminal, for Python and YAML workflows: output and exit codes."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tenure.kernel.commands import BODY_STEP
from tests.cli.apps import YAML, app
from tests.cli.plan_worker import work
from tests.cli.shell import Done, Tenure, in_folder
from tests.engine.stage import stage


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    (tmp_path / "shop.py").write_text(app("shop"))
    (tmp_path / "greeting.yaml").write_text(YAML)
    return in_folder(tmp_path, monkeypatch, capsys)


def only_run(tenure: Tenure, *words: str) -> str:
    (line,) = tenure("runs", "list", *words, "--json").json()
    return str(line["id"])


def test_the_output_is_json_on_stdout_and_progress_goes_to_stderr(tenure: Tenure) -> None:
    ended = tenure("run", "shop.py:shop", "--input", "ref=v1", "--label", "team=a")
    assert (ended.code, json.loads(ended.out)) == (0, "app:v1")
    for part in (
        "build  succeeded  try 2",
        "tell  succeeded",
        "succeeded after",
        "0.02 USD, 20 tokens in, 10 out",
    ):
        assert part in ended.err
    run = only_run(tenure, "--label", "team=a")
    shown = tenure("runs", "show", run, "--json").json()
    assert [(s["name"], s["kind"], s["state"], s["attempt"]) for s in shown["steps"]] == [
        ("build", "checkpoint", "succeeded", 2),
        ("tell", "checkpoint", "succeeded", 1),
    ]
    assert shown["steps"][0]["agent"] == "builder"
    assert (shown["costs"][0]["money"], shown["costs"][0]["calls"]) == (0.02, 2), (
        "the failed try costs money too"
    )
    assert (shown["run"]["trigger"], shown["run"]["requester"]) == ("cli", "cli")
    table = tenure("runs", "show", run).out
    assert "main" not in table
    assert "0.02 USD" in table
    assert "building" in tenure("runs", "logs", run, "--follow").out
    assert [line["fields"] for line in tenure("runs", "logs", run, "--json").json()] == [{"ref": "v1"}] * 2
    assert tenure("runs", "logs", run, "--step", "tell").out == ""
    printed = tenure("runs", "events", run, "--timeline", "--json").json()
    assert [(line["what"], line["state"]) for line in printed] == [
        ("run", "created"),
        ("build", "failed"),
        ("build", "succeeded"),
        ("tell", "succeeded"),
        ("run", "succeeded"),
    ]
    assert tenure("runs", "list", "--label", "team=b", "--json").json() == []
    assert tenure("runs", "list", "--workflow", "other", "--json").json() == []
    assert [w["name"] for w in tenure("workflows", "list", "--json").json()] == ["shop"]
    assert tenure("doctor").code == 0


def test_a_list_counts_completed_steps_of_code_first_runs(tenure: Tenure, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        "import tenure\n\n@tenure.workflow\nasync def plain() -> int:\n    return 1\n"
    )
    assert tenure("run", "plain.py:plain").code == 0
    assert tenure("run", "shop.py:shop").code == 0
    [shop, plain] = tenure("runs", "list").out.splitlines()[1:]
    assert shop.split()[2:4] == ["succeeded", "2/2"]
    assert plain.split()[2:4] == ["succeeded", "-"]


def test_progress_shows_children_waits_and_sleeps_but_not_recorded_values(tenure: Tenure) -> None:
    ended = tenure("run", "shop.py:shop_parent", "--no-watch")
    assert (ended.code, json.loads(ended.out)) == (0, "app:child")
    assert "start:shop" not in ended.err, "progress was shown despite --no-watch"
    run = only_run(tenure, "--workflow", "shop_parent")
    kinds = {s["name"]: s["kind"] for s in tenure("runs", "show", run, "--json").json()["steps"]}
    assert kinds == {"now": "value", "start:shop": "child", "sleep": "sleep"}
    table = tenure("runs", "show", run).out
    assert "start:shop" in table
    assert "now" not in table.split()
    assert "now" in tenure("runs", "show", run, "--all").out.split()


def approve_when_asked(folder: Path, question: str) -> None:
    """Wait for an approval with this question, then approve it."""
    for _ in range(200):
        words = [sys.executable, "-m", "tenure.cli", "approvals", "list", "--json"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        found = json.loads(done.stdout) if done.returncode == 0 else []
        if found:
            assert question in json.dumps(found)
            words = [sys.executable, "-m", "tenure.cli", "approvals", "approve", found[0]["run_id"]]
            subprocess.run([*words, "--reason", "looks good"], cwd=folder, check=True, capture_output=True)
            return
        time.sleep(0.1)


def test_a_workflow_file_runs_its_commands_and_waits_for_approval(tenure: Tenure, tmp_path: Path) -> None:
    other = threading.Thread(target=approve_when_asked, args=(tmp_path, "Send it to Ada?"))
    other.start()
    ended = tenure("run", "greeting.yaml", "-i", "name=Ada", "-i", '{"loud": true}')
    other.join()
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["stdout"] == "sent"
    run = only_run(tenure)
    assert f"waiting for approval: tenure approvals approve {run}" in ended.err
    assert "Send it to Ada?: 0 of 1 approved" in ended.err
    shown = tenure("runs", "show", run, "--json").json()
    by = {s["name"]: s for s in shown["steps"]}
    assert by["write"]["output"]["stdout"] == "Hello, Ada true"
    assert by["ok"]["note"] == "looks good"
    printed = tenure("runs", "events", run, "--timeline").out
    assert "Send it to Ada?" in printed
    assert "looks good" in printed


def test_two_requests_with_one_key_are_one_run(tenure: Tenure) -> None:
    first = tenure("run", "shop.py:shop", "--key", "k1", "--json").json()
    again = tenure("run", "shop.py:shop", "--key", "k1", "--json").json()
    assert first["run"]["id"] == again["run"]["id"]
    assert first["run"]["output"] == "app:main"


def test_a_worker_runs_a_detached_run(tenure: Tenure, tmp_path: Path) -> None:
    sent = tenure("run", "shop.py:shop", "--detach")
    run = sent.out.strip()
    assert "`tenure worker shop.py` runs it" in sent.err
    assert tenure("runs", "why", run, "--json").json()["reason"] == "worker"
    words = [sys.executable, "-m", "tenure.cli", "worker", "shop", "--name", "w1", "--slots", "2"]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as worker:
        watched = tenure("runs", "watch", run)
        worker.send_signal(signal.SIGTERM)
        assert worker.stderr is not None
        printed = worker.stderr.read()
    assert (watched.code, json.loads(watched.out)) == (0, "app:main")
    assert worker.returncode == 0
    assert "serving tenure.db with 2 slots" in printed
    assert "workflow shop version 1 on default" in printed
    assert "worker=w1" in printed
    assert "succeeded=1" in printed


def test_a_failed_run_shows_code_and_message_and_can_be_resumed(
    tenure: Tenure,
) -> None:
    ended = tenure("run", "shop.py:shop_doomed")
    assert (ended.code, ended.out) == (1, "")
    run = only_run(tenure, "--status", "failed")
    assert "UPSTREAM_UNAVAILABLE" in ended.err
    assert "the source does not answer" in ended.err
    assert f"tenure runs rerun {run}" in ended.err
    shown = tenure("runs", "show", run, "--json").json()
    assert (shown["run"]["status"], shown["run"]["reason"]) == ("failed", "UPSTREAM_UNAVAILABLE")
    assert "the source does not answer" in shown["run"]["error"]
    assert [(s["name"], s["state"], s["attempt"]) for s in shown["steps"]] == [("fetch", "failed", 2)]
    # Nothing happens automatically: there is no timer, no other run, and no work for a worker.
    assert tenure("runs", "why", run, "--json").json()["reason"] == "finished"
    assert work() == []
    assert [line["id"] for line in tenure("runs", "list", "--json").json()] == [run]
    again = tenure("runs", "rerun", run, "--json").json()
    assert (again["rerun_of"], again["attempt_no"], again["status"]) == (run, 2, "queued")
    assert tenure("runs", "show", run, "--json").json()["run"]["status"] == "failed", (
        "the rerun changed the first run"
    )


def test_a_workflow_file_uses_the_tools_of_an_app(tenure: Tenure, tmp_path: Path) -> None:
    (tmp_path / "kit.py").write_text(
        "import tenure\n\n@tenure.tool('kit.double')\ndef double(n: int) -> int:\n    return 2 * n\n"
    )
    (tmp_path / "twice.yaml").write_text(
        "name: twice\nprofile: tenure\ninputs: {n: {type: integer}}\nsteps:\n"
        "  - {id: a, uses: kit.double, queue: heavy, with: {n: '${{ inputs.n }}'}}\n"
        "  - {id: b, uses: kit.double, with: {n: '${{ steps.a.output }}'}}\n"
    )
    ended = tenure("run", "twice.yaml", "--app", "kit.py", "-i", "n=3")
    assert (ended.code, ended.out) == (0, "12\n"), ended.err
    sent = tenure("run", "twice.yaml", "--detach", "-i", "n=3")
    assert "`tenure worker MODULE --commands --queue heavy --queue default` runs it" in sent.err
    assert tenure("run", "twice.yaml", "-i", "n=three").code == 1


def test_in_a_shared_database_the_requester_cannot_approve(tenure: Tenure, postgres_dsn: str) -> None:
    refused(tenure("run", "shop.py:shop", "--db", postgres_dsn), 1, "STORE_NOT_MIGRATED")
    assert tenure("migrate", "--db", postgres_dsn).code == 0
    ended = tenure("run", "shop.py:shop", "--db", postgres_dsn, "--json").json()
    assert ended["run"]["output"] == "app:main"
    assert ended["run"]["requester"].startswith("uid:")
    assert [w["name"] for w in tenure("workflows", "list", "--db", postgres_dsn, "--json").json()] == ["shop"]
    found = tenure(
        "runs", "list", "--workflow", "shop", "--status", "succeeded", "--db", postgres_dsn, "--json"
    )
    assert [line["id"] for line in found.json()] == [ended["run"]["id"]]
    assert tenure("doctor", "--db", postgres_dsn).code == 0


def _restore_sigint() -> None:
    """Restore the default handler. A test suite in the background ignores SIGINT, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_stops_this_process_and_not_only_run(tenure: Tenure, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tenure.cli", "run", "shop.py:shop", "-i", "event=go"]
    with subprocess.Popen(
        words,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_restore_sigint,  # noqa: PLW1509 - nothing here has threads at this point
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if "waiting for an event" in line:
                break
        running.send_signal(signal.SIGINT)
        printed = running.stderr.read()
    assert running.returncode == 130
    run = only_run(tenure)
    assert f"{run} is not canceled" in printed
    assert "tenure worker shop.py" in printed
    assert tenure("runs", "why", run).out == "It waits for the event 'go'.\n"
    assert tenure("signal", run, "go").out == "taken\n"
    assert tenure("doctor").code == 0


def refused(ended: Done, code: int, *parts: str) -> None:
    assert ended.code == code, ended
    text = " ".join(ended.err.replace("│", " ").split())
    for part in parts:
        assert part in text
    assert "Traceback" not in ended.err


def test_invalid_targets_are_refused_with_the_valid_ones(tenure: Tenure, tmp_path: Path) -> None:
    refused(tenure("run", "shop.py"), 1, "several workflows", "shop.py:shop_parent")
    refused(tenure("run", "shop.py:shp"), 1, "Did you mean 'shop'")
    refused(tenure("run", "shop.py:shop", "-i", "rfe=x"), 1, "no input 'rfe'. Did you mean 'ref'?")
    refused(tenure("run", "shop.py:shop", "-i", "what"), 1, "write key=value")
    refused(tenure("run", "shop.py:shop", "-i", "@no.json"), 1, "no.json cannot be read")
    refused(tenure("run", "nowhere.py"), 1, "there is no file nowhere.py")
    refused(tenure("run", "no_such_module:x"), 1, "no module 'no_such_module'")
    refused(tenure("run", "missing.yaml"), 1, "WORKFLOW_INVALID")
    refused(tenure("run", "greeting.yaml", "-i", "nmae=x"), 1, "nmae")
    (tmp_path / "broken.py").write_text("import json\n1 / 0\n")
    refused(tenure("run", "broken.py"), 1, 'broken.py", line 2', "ZeroDivisionError: division by zero")
    (tmp_path / "empty.py").write_text("")
    refused(tenure("run", "empty.py"), 1, "decorate a function with @tenure.workflow")
    refused(tenure("run", "shop.py:shop", "--supersede"), 2, "--concurrency-key")
    refused(tenure("worker"), 2, "name a module to serve, or --commands")
    assert not (tmp_path / "tenure.db").exists(), "a refused command made a database"


def test_dev_serves_an_app_and_restarts_when_a_file_changes(tenure: Tenure, tmp_path: Path) -> None:
    run = tenure("run", "shop.py:shop", "--detach", "-i", "event=go").out.strip()
    words = [sys.executable, "-m", "tenure.cli", "dev", "shop", "--grace", "1s"]
    printed: list[str] = []
    with subprocess.Popen(
        words,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_restore_sigint,  # noqa: PLW1509 - nothing here has threads at this point
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            printed.append(line)
            if "worker_started" in line and len(printed) < 10:
                (tmp_path / "shop.py").write_text(app("shop") + "\n# another line\n")
            elif "worker_started" in line:
                break
        assert tenure("signal", run, "go").code == 0
        watched = tenure("runs", "watch", run)
        running.send_signal(signal.SIGINT)
        printed += running.stderr
    assert running.returncode == 130
    assert any("shop.py changed: restarting" in line for line in printed)
    assert (watched.code, json.loads(watched.out)) == (0, "app:main")


def test_a_running_step_is_shown_with_its_progress(tenure: Tenure, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import asyncio, tenure\n\n@tenure.step\nasync def think() -> int:\n"
        "    tenure.current().progress('half way')\n    await asyncio.sleep(0.5)\n    return 7\n\n"
        "@tenure.workflow\nasync def slow_thought() -> int:\n    return await think()\n"
    )
    ended = tenure("run", "slow.py")
    assert (ended.code, ended.out) == (0, "7\n"), ended.err
    assert "think  running  half way" in ended.err
    assert "think  succeeded  in 0." in ended.err


async def run_with_started_step(url: str) -> str:
    """Make a failed run whose step `pay` has started and must not be repeated."""
    async with stage(url) as engine:
        run = await engine.create("till", [BODY_STEP])
        lease = await engine.claim()
        await engine.checkpoint(lease, "pay", 1, state="started", idempotent=False)
        await engine.fail(lease, "OOPS", retryable=False)
        return run


def test_a_resume_must_say_whether_a_started_step_happened(tenure: Tenure, tmp_path: Path) -> None:
    run = asyncio.run(run_with_started_step(f"sqlite:{tmp_path / 'tenure.db'}"))
    refused(tenure("runs", "resume", run), 1, "RUN_RESUME_FAILED", "'pay'", "find out whether it hap")
    refused(tenure("runs", "resume", run, "--happened", "pay=paid"), 1, "is not JSON")
    known = tenure("runs", "resume", run, "--happened", 'pay="receipt 7"').out.strip()
    (step,) = tenure("runs", "show", known, "--json").json()["steps"]
    assert (step["name"], step["state"], step["output"]) == ("pay", "succeeded", "receipt 7")
    again = tenure("runs", "resume", run, "--repeat", "pay", "--json").json()
    assert again["resumed_from"] == run
    assert tenure("runs", "show", again["id"], "--json").json()["steps"] == []
    assert tenure("doctor").code == 0
