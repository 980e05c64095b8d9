"""The life of a server: start, readiness, loss of the database, recovery, stop."""

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg
import httpx
import pytest

from tenure.engine import Engine
from tenure.errors import TenureError
from tenure.server.http_server import check_address, serving
from tenure.server.settings import Settings
from tests.conformance.tcp_proxy import TcpProxy
from tests.server.stage import problem, site
from tests.server.workflows import begin, echo, patient, register


class BreakableProxy(TcpProxy):
    """A proxy that can be disconnected, and reconnected at the same address."""

    async def disconnect(self) -> None:
        """Cut all connections and refuse new ones."""
        assert self._server is not None
        self.at = self._server.sockets[0].getsockname()
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def reconnect(self) -> None:
        """Accept connections again."""
        host, port = self.at

        def carry(near: asyncio.StreamReader, near_end: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._carry(near, near_end))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self._server = await asyncio.start_server(carry, host, port)


async def until(
    fits: Callable[[httpx.Response], bool], ask: Callable[[], Awaitable[httpx.Response]]
) -> httpx.Response:
    """Repeat a request until its answer satisfies `fits`. The time limit of the test ends an endless wait."""
    while not fits(answer := await ask()):  # noqa: ASYNC110 - polls as an external client does
        await asyncio.sleep(0.05)
    return answer


@pytest.mark.guard_seconds(120)
async def test_a_server_without_its_database_reports_it_and_recovers(postgres_dsn: str) -> None:
    """Failure 8."""
    async with BreakableProxy(postgres_dsn).serve() as wire, site(wire.dsn) as s:
        assert isinstance(wire, BreakableProxy)
        await register(s.engine, echo)
        caller = await s.as_("operator", "viewer")
        run = await begin(caller)
        assert (await caller.get("/readyz")).status_code == 200
        await wire.disconnect()
        answer = await until(lambda a: a.status_code != 200, lambda: caller.get("/readyz"))
        assert (answer.status_code, problem(answer)) == (503, "NOT_READY")
        assert (await caller.get("/healthz")).status_code == 200, "the process itself is healthy"
        answer = await caller.get(f"/runs/{run}")
        assert (answer.status_code, problem(answer)) == (502, "UPSTREAM_UNAVAILABLE")
        assert answer.json()["error"]["retryable"] is True
        await until(lambda a: "tenure_store_up 0.0" in a.text, lambda: caller.get("/metrics"))
        await wire.reconnect()
        await until(lambda a: a.status_code == 200, lambda: caller.get("/readyz"))
        answer = await until(lambda a: a.status_code == 200, lambda: caller.get(f"/runs/{run}"))
        assert answer.json()["id"] == run
        assert await begin(caller) != run


async def test_work_is_found_after_the_listen_connection_was_killed(postgres_dsn: str) -> None:
    """Failure 9."""
    async with site(postgres_dsn) as s, s.engine.worker(echo):
        await register(s.engine, echo)
        caller = await s.as_("operator", "viewer")
        admin = await asyncpg.connect(postgres_dsn)
        try:
            killed = await admin.fetch(
                "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
                " and datname = current_database() and query ilike 'listen%'"
            )
        finally:
            await admin.close()
        assert killed
        run = await begin(caller)
        answer = await until(lambda a: a.status_code == 200, lambda: caller.get(f"/runs/{run}/result"))
        assert answer.status_code == 200


async def test_a_stopping_server_is_not_ready_and_finishes_running_requests(url: str) -> None:
    async with Engine(url) as engine:
        async with serving(engine, Settings(port=0, grace_seconds=20, drain_seconds=0.3)) as (
            service,
            address,
        ):
            waiting = httpx.AsyncClient(base_url=address, timeout=30)
            assert (await waiting.get("/readyz")).status_code == 200
            service.stopping.set()
            answer = await waiting.get("/readyz")
            assert (answer.status_code, problem(answer)) == (503, "NOT_READY")
            assert (await waiting.get("/healthz")).status_code == 200
        with pytest.raises(httpx.ConnectError):
            await waiting.get("/healthz")
        await waiting.aclose()


async def test_streams_end_when_the_server_does(url: str) -> None:
    async with site(url) as s:
        caller = await s.caller(await s.key("viewer"))
        async with caller.stream("GET", "/events/stream") as stream:
            assert stream.status_code == 200
            s.service.stopping.set()
            async for _ in stream.aiter_bytes():
                pass


async def test_several_servers_on_one_database_act_as_one(url: str) -> None:
    async with site(url) as s, Engine(url) as other:
        await register(s.engine, patient)
        async with serving(other, Settings(port=0)) as (_, address):
            here = await s.as_("operator", "viewer")
            there = httpx.AsyncClient(base_url=address, headers=here.headers, timeout=30)
            body = {"workflow": "patient", "input": {}}
            key = {"Idempotency-Key": "one"}
            answers = await asyncio.gather(
                *(caller.post("/runs", json=body, headers=key) for caller in (here, there) * 5)
            )
            runs = {answer.json().get("id") or answer.json().get("run_id") for answer in answers}
            assert {answer.status_code for answer in answers} <= {201, 202}
            assert len(runs - {None}) == 1
            [run] = runs - {None}
            assert (await there.post(f"/runs/{run}/cancel", json={})).status_code == 202
            await until(lambda a: a.json()["status"] == "canceled", lambda: here.get(f"/runs/{run}"))
            await there.aclose()


@pytest.mark.parametrize(
    ("settings", "good"),
    [
        (Settings(host="127.0.0.1"), True),
        (Settings(host="::1"), True),
        (Settings(host="localhost"), True),
        (Settings(host="0.0.0.0"), False),
        (Settings(host="::"), False),
        (Settings(host="192.0.2.1"), False),
        (Settings(host="0.0.0.0", behind_proxy=True), True),
        (Settings(host="0.0.0.0", tls_cert="c", tls_key="k"), True),
        (Settings(tls_cert="c"), False),
        (Settings(tls_key="k"), False),
    ],
)
def test_listen_addresses_are_checked(settings: Settings, good: bool) -> None:
    if good:
        check_address(settings)
    else:
        with pytest.raises(TenureError, match="LISTEN_REFUSED"):
            check_address(settings)
