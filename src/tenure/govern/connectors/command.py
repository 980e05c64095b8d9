"""Commands of this machine: programs that the settings list, started without a shell.

Laws:
1. Each listed program is an operation of its own, so that a policy names it. What is started is the path in the settings; a workflow gives
   arguments, never a program.
2. Its environment is the little that every command has (`declared.commands`), and of what it is given the variables that the settings
   list: by others one could have another program started. A secret is in a variable, never among the arguments, which all can see who are
   on the machine.
3. It cannot see this process, its secrets and its database, where such a confinement is to be had; the installation has listed it, so
   that elsewhere it is started all the same.
4. The key is in `TENURE_IDEMPOTENCY_KEY`. Exit code 0: done. 75 (as in sysexits: try again later): nothing was done. 64 to 78 otherwise:
   nothing was done, for good. Any other, a signal or the end of its time: unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import msgspec

from tenure import clock
from tenure.declared.commands import CommandResult, run_command
from tenure.declared.confinement import choose_confinement
from tenure.declared.resolving import Resolved
from tenure.govern.connector import Call, Operation
from tenure.govern.connectors.base import ConnectorBase
from tenure.govern.connectors.faults import LATE, LOST, REJECTED, failed
from tenure.govern.connectors.link import EVERY_TENANT
from tenure.govern.connectors.schemas import object_of
from tenure.govern.redacting import Redactor, forms
from tenure.govern.wording import lines, shown
from tenure.secrets import Secrets, heard_so_far

KEY_VARIABLE = "TENURE_IDEMPOTENCY_KEY"
OUTPUT_CHARS_MAX = 16_000
SAID_CHARS_MAX = 400
"""Of its output, in a message."""
TRY_AGAIN = 75
SAY_NOT_DONE = range(64, 79)
NOT_BEGUN = frozenset({126, 127})
SECONDS_DEFAULT = 30.0
_OURS = frozenset({"PATH", "HOME", "LANG", KEY_VARIABLE})


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program that may be started."""

    path: str
    summary: str = ""
    args: tuple[str, ...] = ()
    """Before those that a workflow gives."""
    env: tuple[str, ...] = ()
    """The variables that a workflow may set."""
    seconds: float = SECONDS_DEFAULT
    cwd: str | None = None
    repeats: Literal["native_key", "sets_state", "none"] = "none"
    tenants: tuple[str, ...] = (EVERY_TENANT,)
    """Who may."""


_FIELDS = object_of(
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


def operation_of(name: str, program: Program) -> Operation:
    """The operation that starts a program."""
    return Operation(
        name=name,
        summary=program.summary or f"Run {program.path}.",
        target=object_of(),
        fields=_FIELDS,
        repeats=program.repeats,
        undo_hint="Look at what the command did and take it back by hand.",
        tier="med",
    )


class CommandConnector(ConnectorBase):
    """See the laws above."""

    def __init__(
        self,
        name: str = "command",
        programs: Mapping[str, Program] | None = None,
        secrets: Secrets | None = None,
    ) -> None:
        self.name = name
        self._programs = dict(programs or {})
        self._secrets = secrets or Secrets()
        self.operations = {each: operation_of(each, program) for each, program in self._programs.items()}

    async def call(self, call: Call) -> Any:
        """Run it."""
        program = self._programs[call.operation]
        if not {EVERY_TENANT, call.tenant} & set(program.tenants):
            raise failed("not_done", REJECTED, f"{call.operation} is not for this tenant")
        given: list[str] = call.fields.get("args", [])
        if any("\0" in arg for arg in given):
            raise failed("not_done", "INVALID_INPUT", "fields.args: an argument has a NUL character")
        env = {**_checked(call.fields.get("env", {}), program), KEY_VARIABLE: call.key}
        for name, reference in _checked(call.fields.get("secret_env", {}), program).items():
            env[name] = self._secrets.resolve(reference, call.tenant).decode(errors="surrogateescape")
        work = Resolved(argv=(program.path, *program.args, *given), env=env, cwd=program.cwd)
        left = min(call.deadline - clock.boot_seconds(), program.seconds)
        if left <= 0:
            raise failed("not_done", LATE, "its deadline passed before it was started", retryable=True)
        confinement = await asyncio.to_thread(partial(choose_confinement, allow_none=True))
        return _result(await run_command(work, timeout=left, confinement=confinement))

    def render(self, operation: str, target: dict[str, Any], fields: dict[str, Any]) -> list[str]:  # noqa: ARG002 # it has no target
        """The command, an argument to a line."""
        program = self._programs[operation]
        said = [
            f"Run {shown(program.path)}",
            *(f"  {shown(arg)}" for arg in (*program.args, *fields.get("args", []))),
        ]
        said += [f"  with {shown(name)} = {shown(value)}" for name, value in fields.get("env", {}).items()]
        said += [
            f"  with {shown(name)} = the secret at {shown(value)}"
            for name, value in fields.get("secret_env", {}).items()
        ]
        return lines(*said)


def _checked(env: dict[str, str], program: Program) -> dict[str, str]:
    for name, value in env.items():
        if name not in program.env or name in _OURS or "\0" in value:
            known = ", ".join(program.env) or "none"
            problem = (
                f"fields.env: {name!r} is not for a workflow to set; the program's settings list {known}"
            )
            raise failed("not_done", "INVALID_INPUT", problem)
    return env


def _result(ended: CommandResult) -> dict[str, Any]:
    code = ended.exit_code
    if ended.code is None:
        return {"exit_code": code, "stdout": _tail(ended.stdout, cut=ended.truncated)}
    # Its own message has the end of the output too, cut where a secret may be.
    what, shown_end = ended.message.partition("\n")[0], ended.stderr_tail or ended.stdout
    said = f"{what}\n{_tail(shown_end, cut=ended.truncated)[-SAID_CHARS_MAX:]}"
    if code in NOT_BEGUN:
        raise failed("not_done", REJECTED, said)
    if code == TRY_AGAIN:
        raise failed("not_done", "COMMAND_FAILED", said, retryable=True)
    if code in SAY_NOT_DONE:
        raise failed("not_done", REJECTED, said)
    raise failed("unknown", LOST, said)


def _tail(text: str, *, cut: bool) -> str:
    """The end of an output without secrets. Where it was cut already, it may begin in the middle of one."""
    values = heard_so_far()
    if cut:
        every = (form for value in values for form in forms(value))
        text = text[max((_cut_through(form, text) for form in every), default=0) :]
    return Redactor(values).text(text)[-OUTPUT_CHARS_MAX:]


def _cut_through(form: str, text: str) -> int:
    """How much of the end of a form a text begins with."""
    return next((size for size in range(len(form) - 1, 0, -1) if text.startswith(form[-size:])), 0)
