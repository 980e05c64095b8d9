"""A process that evaluates expressions under real limits of memory and CPU time. `Evaluator` starts it and sends it expressions.

The process may use MEMORY_BYTES more than at its start. CEL's library aborts if it gets no more memory. Each answer has the
outcome and the CPU time.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MEMORY_BYTES = 256 * 1024 * 1024
CPU_SECONDS = 3
"""For one expression: thirty times its budget, for the slowest machine."""
KILLED_AFTER_SECONDS = 30
"""A process that never ends is killed after this CPU time. The kernel counts it in ticks, so it may count twice the real time."""


class Evaluator:
    """Starts the process, and another one if it has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, source: str, scope: Any) -> dict[str, Any]:
        """The outcome of an expression: `value`, `refused` or `failed`; AssertionError if the process died."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([source, scope]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            status = self._process.wait()
            self.close()
            raise AssertionError(f"the process ended with {status} at {source[:300]}")
        said: dict[str, Any] = json.loads(answer)
        return said

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _main() -> None:
    import cel

    from tenure.errors import TenureError
    from tenure.expressions import expression

    cel.evaluate("[1].map(x, string(x).matches('a'))")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        source, scope = json.loads(line)
        began = time.process_time()
        killed_after = int(2 * began) + KILLED_AFTER_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (killed_after, resource.RLIM_INFINITY))
        work = 0
        try:
            found = expression.parse_expression(source)
            if found.path is None:
                work = found.work({root: scope[root] for root in found.wanted if root in scope})
            found.value(scope)
            said = "value"
        except expression.MalformedExpression as wrong:
            said = f"refused: {wrong}"
        except (TenureError, ValueError) as wrong:
            said = f"failed: {wrong}"
        cpu = time.process_time() - began
        sys.stdout.write(json.dumps({"said": said[:300], "cpu": cpu, "work": work}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
