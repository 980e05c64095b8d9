"""Commands as actions: listed programs, unparsed arguments, a clean environment, and the outcome of each exit code."""

from __future__ import annotations

import sys
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tenure.clock import boot_seconds
from tenure.errors import TenureError
from tenure.govern.connector import CallFault, ConnectorCall
from tenure.govern.connectors.command import CommandConnector, Program
from tenure.govern.connectors.faults import CallFailed
from tenure.govern.connectors.registry import Connectors

SCRIPT = """
import os, sys
print(sys.argv[1:], sorted(os.environ))
"""


def order(operation: str, key: str = "k1", seconds: float = 20.0, **fields: Any) -> ConnectorCall:
    return ConnectorCall(
        tenant="acme",
        operation=operation,
        target={},
        fields=fields,
        key=key,
        deadline=boot_seconds() + seconds,
    )


def commands(script: str = SCRIPT, **how: Any) -> Connectors:
    listed = ("REGION", "DEPLOY", "PATH", "TENURE_IDEMPOTENCY_KEY")
    program = Program(path=sys.executable, args=("-I", "-c", script), env=listed, **how)
    return Connectors([CommandConnector(programs={"tool": program})])


async def fault(connectors: Connectors, call: ConnectorCall) -> CallFault:
    with pytest.raises(CallFailed) as raised:
        await connectors["command"].call(call)
    return raised.value.fault


async def test_arguments_are_never_parsed_by_a_shell_and_the_environment_is_clean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORKERS_OWN", "not for commands")
    given = ["$(id)", "; rm -rf /", "a b", ""]
    result = await commands()["command"].call(order("tool", args=given, env={"REGION": "eu"}))
    assert result["exit_code"] == 0
    assert str(given) in result["stdout"]
    assert "WORKERS_OWN" not in result["stdout"]
    assert "REGION" in result["stdout"]
    assert "TENURE_IDEMPOTENCY_KEY" in result["stdout"]


@pytest.mark.parametrize(
    ("ends", "outcome", "retryable"),
    [
        ("sys.exit(75)", "not_done", True),
        ("sys.exit(64)", "not_done", False),
        ("sys.exit(1)", "unknown", False),
        ("os.kill(os.getpid(), 9)", "unknown", False),
    ],
)
async def test_exit_codes_are_mapped_to_outcomes(ends: str, outcome: str, retryable: bool) -> None:
    found = await fault(commands(f"import os, sys; {ends}"), order("tool"))
    assert (found.outcome, found.retryable) == (outcome, retryable)


async def test_a_command_past_its_timeout_is_killed_and_unknown() -> None:
    found = await fault(commands("import time; time.sleep(60)", seconds=0.2), order("tool"))
    assert found.outcome == "unknown"


async def test_a_command_is_not_started_after_its_deadline(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    found = await fault(commands(f"open({str(mark)!r}, 'w')"), order("tool", seconds=-1.0))
    assert (found.outcome, found.code, found.retryable) == ("not_done", "ACTION_LATE", True)
    assert not mark.exists()


async def test_a_missing_program_is_a_known_failure() -> None:
    made = Connectors([CommandConnector(programs={"tool": Program(path="/nowhere/tool")})])
    assert (await fault(made, order("tool"))).outcome == "not_done"


async def test_a_program_may_be_limited_to_some_tenants() -> None:
    found = await fault(commands(tenants=("globex",)), order("tool"))
    assert (found.outcome, found.retryable) == ("not_done", False)


async def test_an_unlisted_program_is_not_an_operation() -> None:
    with pytest.raises(TenureError, match="UNKNOWN_OPERATION"):
        commands().find("command.sh")


@pytest.mark.parametrize("where", ["env", "secret_env"])
@pytest.mark.parametrize(
    "name", ["PATH", "LD_PRELOAD", "JAVA_TOOL_OPTIONS", "EDITOR", "a", "X=Y", "TENURE_IDEMPOTENCY_KEY"]
)
async def test_unlisted_and_reserved_variables_are_refused(name: str, where: str) -> None:
    """Some of these variables could make the program start another one."""
    fields: dict[str, Any] = {where: {name: "/tmp/evil.so"}}
    found = await fault(commands(), order("tool", **fields))
    assert (found.outcome, found.code) == ("not_done", "INVALID_INPUT")


async def test_a_secret_is_passed_in_a_variable_and_redacted_from_the_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I53: also if a long output is cut in the middle of the secret."""
    secret = sha256(b"a secret").hexdigest() + "/+" + sha256(b"its other half").hexdigest()
    monkeypatch.setenv("TENURE_SECRET_acme_DEPLOY", secret)
    echo = "import os, base64, sys; v = os.environ['DEPLOY']; print(v, base64.b64encode(b'u:' + v.encode()).decode())"
    for script in (echo, f"{echo}; sys.stdout.write(v * 20_000)", f"{echo}; sys.exit(v)"):
        made = commands(script)["command"]
        try:
            text = str(await made.call(order("tool", secret_env={"DEPLOY": "env:TENURE_SECRET_acme_DEPLOY"})))
        except CallFailed as failed:
            text = failed.fault.message
        assert "[secret]" in text
        encoded = b64encode(f"u:{secret}".encode()).decode()
        assert not [
            at
            for whole in (secret, encoded[4:-4])
            for at in range(0, len(whole) - 12, 4)
            if whole[at : at + 12] in text
        ]


def test_approvers_see_the_whole_command() -> None:
    text = commands()["command"].render("tool", {}, {"args": ["--to", "a\nb"], "secret_env": {"T": "env:X"}})
    assert text[0] == f"Run {sys.executable}"
    assert text[-3:] == ["  --to", "  a⏎b", "  with T = the secret at env:X"]
