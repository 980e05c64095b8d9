"""The planner as a process: `python -m tenure.ci.planner_process` reads a `PlanRequest` as JSON and writes a `PlanAnswer` as JSON.

Laws:
1. It uses stdin and stdout, and nothing else: no git, no network, no files. It runs in the sandbox, because it parses what nobody trusts.
2. It always answers: a refusal is an answer. A process that ends without an answer has crashed.
"""

from __future__ import annotations

import sys

import msgspec

from tenure.ci.planner import PlanAnswer, PlanRefused, PlanRequest, plan_change
from tenure.errors import TenureError

REQUEST_BYTES_MAX = 512 << 20
ANSWER_BYTES_MAX = 64 << 20


def answer_request(data: bytes) -> bytes:
    """The answer to a request, both as JSON."""
    request = msgspec.json.decode(data, type=PlanRequest)
    answer: PlanAnswer
    try:
        answer = plan_change(request)
    except TenureError as error:
        answer = PlanRefused(code=error.code, message=error.message, details=error.details)
    except RecursionError:
        answer = PlanRefused(code="PIPELINE_INVALID", message="the pipeline is nested too deep")
    return msgspec.json.encode(answer)


def main() -> None:
    data = sys.stdin.buffer.read(REQUEST_BYTES_MAX + 1)
    if len(data) > REQUEST_BYTES_MAX:
        sys.exit(f"the request has more than {REQUEST_BYTES_MAX} bytes")
    sys.stdout.buffer.write(answer_request(data))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
