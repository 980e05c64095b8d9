"""The command connector: runs programs of this machine that the settings list, without a shell.

Laws:
1. Each listed program is an operation, so that a policy can name it. The settings contain its path; a workflow gives arguments, never a
   program.
2. A program gets the few variables of every command (`tenure.commands.process`) and, of the given ones, those that the settings list: other
   variables could make it start another program. Secrets are passed in variables, never in arguments, which everyone on the machine can
   see.
3. A program cannot see this process, its secrets and its database if the system offers a confinement. Otherwise it is started without one,
   because the operator has listed it.
4. The key is in `TENURE_IDEMPOTENCY_KEY`. Exit code 0: done. 75 (sysexits: try again later): not done. Other codes from 64 to 78: not
   done, permanently. Any other code, a signal or a timeout: unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import msgspec

from tenure.commands.confinement import choose_confinement
from tenure.commands.process import CommandResult, ResolvedCommand, run_command
from tenure.expressions.json_schema import object_schema
from tenure.govern.connector import ConnectorCall, Operation
from tenure.govern.connectors.base import ConnectorBase
from tenure.govern.connectors.faults import LATE, LOST, REJECTED, call_failed
from tenure.govern.connectors.http_service import EVERY_TENANT
from tenure.govern.display_text import display_lines, display_value
from tenure.govern.redaction import Redactor, secret_encodings
from tenure.secrets import Secrets, resolved_so_far

KEY_VARIABLE = "TENURE_IDEMPOTENCY_KEY"
OUTPUT_CHARS_MAX = 16_000
SAID_CHARS_MAX = 400
"""Characters of its output in a message."""
TRY_AGAIN = 75
SAY_NOT_DONE = range(64, 79)
NOT_BEGUN = frozenset({126, 127})
SECONDS_DEFAULT = 30.0
_OURS = frozenset({"PATH", "HOME", "LANG", KEY_VARIABLE})


class Program(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    summary: str = ""
    args: tuple[str, ...] = ()
    """These precede the arguments of the workflow."""
    env: tuple[str, ...] = ()
    """The variables that a workflow may set."""
    seconds: float = SECONDS_DEFAULT
    cwd: str | None = None
    repeats: Literal["native_key", "sets_state", "none"] = "none"
    tenants: tuple[str, ...] = (EVERY_TENANT,)


_FIELDS = object_schema(
    args_={"type": "array", "items": {"type": "string", "maxLength": 8_000}, "maxItems": 100},
    env_={
        "type": "object",
        "additionalProperties": {"type": "string", "maxLength": 8_000},
        "maxProperties": 50,
    },
    secret_env_={
        "type": "object",
        "additionalProperties": {"type": "string", "secret": True},
        "maxProperties": 10,
        "description": "Variable -> reference to its value.",
    },
)


def program_operation(name: str, program: Program) -> Operation:
    return Operation(
        name=name,
        summary=program.summary or f"Run {program.path}.",
        target=object_schema(),
        fields=_FIELDS,
        repeats=program.repeats,
        undo_hint="Check what the command did and undo it by hand.",
        tier="med",
    )


class CommandConnector(ConnectorBase):
    def __init__(
        self,
        name: str = "command",
        programs: Mapping[str, Program] | None = None,
        secrets: Secrets | None = None,
    ) -> None:
        self.name = name
        self._programs = dict(programs or {})
        self._secrets = secrets or Secrets()
        self.operations = {each: program_operation(each, program) for each, program in self._programs.items()}

    async def call(self, call: ConnectorCall) -> Any:
        program = self._programs[call.operation]
        if not {EVERY_TENANT, call.tenant} & set(program.tenants):
            raise call_failed("not_done", REJECTED, f"{call.operation} is not allowed for this tenant")
        given: list[str] = call.fields.get("args", [])
        if any("\0" in arg for arg in given):
            raise call_failed("not_done", "INVALID_INPUT", "fields.args: an argument has a NUL character")
        env = {**_check_env(call.fields.get("env", {}), program), KEY_VARIABLE: call.key}
        for name, reference in _check_env(call.fields.get("secret_env", {}), program).items():
            env[name] = self._secrets.resolve(reference, call.tenant).decode(errors="surrogateescape")
        work = ResolvedCommand(argv=(program.path, *program.args, *given), env=env, cwd=program.cwd)
        left = min(call.seconds_left, program.seconds)
        if left <= 0:
            raise call_failed("not_done", LATE, "its deadline passed before it was started", retryable=True)
        confinement = await asyncio.to_thread(partial(choose_confinement, allow_none=True))
        return _result(await run_command(work, timeout=left, confinement=confinement))

    def render(self, operation: str, target: dict[str, Any], fields: dict[str, Any]) -> list[str]:  # noqa: ARG002 # it has no target
        program = self._programs[operation]
        return display_lines(
            f"Run {display_value(program.path)}",
            *(f"  {display_value(arg)}" for arg in (*program.args, *fields.get("args", []))),
            *(
                f"  with {display_value(name)} = {display_value(value)}"
                for name, value in fields.get("env", {}).items()
            ),
            *(
                f"  with {display_value(name)} = the secret at {display_value(value)}"
                for name, value in fields.get("secret_env", {}).items()
            ),
        )


def _check_env(env: dict[str, str], program: Program) -> dict[str, str]:
    for name, value in env.items():
        if name not in program.env or name in _OURS or "\0" in value:
            raise call_failed(
                "not_done",
                "INVALID_INPUT",
                f"fields.env: a workflow must not set {name!r}; the program's settings allow {', '.join(program.env) or 'none'}",
            )
    return env


def _result(ended: CommandResult) -> dict[str, Any]:
    code = ended.exit_code
    if ended.code is None:
        return {"exit_code": code, "stdout": _tail(ended.stdout, cut=ended.truncated)}
    # Its own message contains the end of the output too, cut where a secret may be.
    what, shown_end = ended.message.partition("\n")[0], ended.stderr_tail or ended.stdout
    message = f"{what}\n{_tail(shown_end, cut=ended.truncated)[-SAID_CHARS_MAX:]}"
    if code == TRY_AGAIN:
        raise call_failed("not_done", "COMMAND_FAILED", message, retryable=True)
    if code in NOT_BEGUN or code in SAY_NOT_DONE:
        raise call_failed("not_done", REJECTED, message)
    raise call_failed("unknown", LOST, message)


def _tail(text: str, *, cut: bool) -> str:
    """The end of an output without secrets. A truncated output may begin in the middle of one."""
    values = resolved_so_far()
    if cut:
        forms = [form for value in values for form in secret_encodings(value)]
        text = text[max((_overlap(form, text) for form in forms), default=0) :]
    return Redactor(values).text(text)[-OUTPUT_CHARS_MAX:]


def _overlap(form: str, text: str) -> int:
    """How many characters at the end of an encoding a text begins with."""
    return next((size for size in range(len(form) - 1, 0, -1) if text.startswith(form[-size:])), 0)
