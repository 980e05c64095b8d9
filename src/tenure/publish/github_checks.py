"""Check runs and commit statuses of one commit on GitHub, as the status reporter reads and writes them.

Laws:
1. Nothing is sent after the deadline, which lies within the caller's hold of the report (`outbound.http`, law 2).
2. An answer means one of three things: done; not now (`ReportPostponed`, with the time to wait if GitHub says one); never
   (`ReportRefused`: not found, no permission, invalid).
3. A check run whose creation may have been lost is looked for by its `external_id` before another one is created.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from tenure.errors import TenureError
from tenure.outbound.github_app import GitHubApp, GitHubRefused, describe, rate_limit_seconds
from tenure.outbound.responses import HttpResponse, RequestNotSent, ResponseLost
from tenure.publish.check_states import CheckState, StatusState
from tenure.shapes.reports import VcsTarget

PAGE_ROWS = 100
PAGES_MAX = 20
_NEVER = frozenset({301, 302, 307, 308, 400, 403, 404, 410, 422, 451})


class ReportPostponed(Exception):
    """GitHub did not accept a request now."""

    def __init__(self, message: str, *, seconds: float = 0.0, limited: bool = False) -> None:
        super().__init__(message)
        self.seconds = seconds
        self.limited = limited
        """A rate limit, which holds for the whole installation."""


class ReportRefused(Exception):
    """GitHub refuses for good: the same request would be refused again."""


class GitHubChecks:
    """The checks of one commit; see the laws above."""

    def __init__(
        self, app: GitHubApp, installation: int, target: VcsTarget, deadline: Callable[[], float]
    ) -> None:
        self._app = app
        self._installation = installation
        self._target = target
        self._deadline = deadline
        owner, _, name = target.repository.partition("/")
        self._repo = f"/repos/{quote(owner, safe='')}/{quote(name, safe='')}"

    async def _request(self, method: str, where: str, json: Any = msgspec.UNSET) -> Any:
        """The decoded body of a successful answer (law 2)."""
        try:
            answer = await self._app.request(
                self._installation, method, f"{self._repo}{where}", deadline=self._deadline(), json=json
            )
        except GitHubRefused as refused:
            _raise_for(refused.answer, str(refused))
            raise ReportPostponed(str(refused)) from refused
        except (RequestNotSent, ResponseLost) as fault:
            raise ReportPostponed(f"GitHub could not be reached: {fault}") from fault
        except TenureError as refused:  # the private key cannot be read
            raise ReportPostponed(f"{refused.code}: {refused.message}") from refused
        _raise_for(answer)
        return answer.json()

    async def _rows(self, where: str, within: str = "", **query: str) -> list[dict[str, Any]]:
        """The rows of a list, page by page."""
        rows: list[dict[str, Any]] = []
        for page in range(1, PAGES_MAX + 1):
            asked = urlencode({**query, "per_page": PAGE_ROWS, "page": page})
            body = await self._request("GET", f"{where}?{asked}")
            found = body.get(within) if within and isinstance(body, dict) else body
            if not isinstance(found, list):
                raise ReportPostponed("GitHub answered with something other than a list")
            rows += [row for row in found if isinstance(row, dict)]
            if len(found) < PAGE_ROWS:
                break
        return rows

    # -------------------------------------------------------------------------------------------- check runs

    async def create(self, state: CheckState) -> int:
        made = await self._request("POST", "/check-runs", {**state.body(), "head_sha": self._target.head_sha})
        return read_id(made)

    async def update(self, check_id: int, state: CheckState) -> None:
        await self._request("PATCH", f"/check-runs/{check_id}", state.body())

    async def read(self, check_id: int) -> dict[str, Any]:
        found = await self._request("GET", f"/check-runs/{check_id}")
        return found if isinstance(found, dict) else {}

    async def find(self, state: CheckState) -> dict[str, Any] | None:
        """The check run that was created for a state, if there is one (law 3)."""
        where = f"/commits/{self._target.head_sha}/check-runs"
        rows = await self._rows(where, "check_runs", check_name=state.name, filter="all")
        same = [row for row in rows if row.get("external_id") == state.external_id]
        return min(same, key=read_id, default=None)

    async def read_all(self) -> dict[int, dict[str, Any]]:
        """The newest check run of every name, by id."""
        where = f"/commits/{self._target.head_sha}/check-runs"
        rows = await self._rows(where, "check_runs", filter="latest")
        return {read_id(row): row for row in rows}

    # ---------------------------------------------------------------------------------------------- statuses

    async def set_status(self, state: StatusState) -> None:
        await self._request("POST", f"/statuses/{self._target.head_sha}", state.body())

    async def has_status(self, state: StatusState) -> bool:
        """Whether the newest status of this context, or an earlier one, says this."""
        rows = await self._rows(f"/commits/{self._target.head_sha}/statuses")
        return any(state.is_shown_by(row) for row in rows)


def read_id(row: Any) -> int:
    """The id of a check run."""
    found = row.get("id") if isinstance(row, dict) else None
    if not isinstance(found, int):
        raise ReportPostponed("GitHub's answer contains no id of a check run")
    return found


def _raise_for(answer: HttpResponse, message: str = "") -> None:
    """Raise the meaning of an answer that is not a success (law 2)."""
    if 200 <= answer.status < 300:
        return
    text = message or describe(answer)
    seconds = rate_limit_seconds(answer)
    if seconds is not None:
        raise ReportPostponed(text, seconds=seconds, limited=True)
    if answer.status in _NEVER:
        raise ReportRefused(text)
    raise ReportPostponed(text)
