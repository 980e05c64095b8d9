"""Executes the Python blocks of a page. Blocks arrive as lines of JSON, and share one namespace."""

import ast
import asyncio
import contextlib
import inspect
import io
import json
import sys
import traceback
from typing import Any

NAMESPACE: dict[str, Any] = {"__name__": "__main__"}


def execute(text: str, page: str, runner: asyncio.Runner) -> dict[str, Any]:
    """Execute a block. The result has its output, and whether it succeeded."""
    printed = io.StringIO()
    ok = True
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            code = compile(text, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(_awaited(code))
            else:
                exec(code, NAMESPACE)
        except BaseException:
            ok = False
            traceback.print_exc(file=printed)
    return {"ok": ok, "printed": printed.getvalue()}


async def _awaited(code: Any) -> None:
    await eval(code, NAMESPACE)


if __name__ == "__main__":
    sys.path.insert(0, "")
    answers = sys.stdout
    with asyncio.Runner() as loop:
        for line in sys.stdin:
            answers.write(json.dumps(execute(**json.loads(line), runner=loop)) + "\n")
            answers.flush()
