"""Limits on what clients may make one server process hold: connections, bytes of requests, streams.

Laws:
1. Everything that a client can make this process hold is counted here and has a limit (`Settings`). Beyond the limit, a request is
   refused with a code before anything is held for it, and the refusal is counted (`tenure_http_refused_total`).
2. Limits per address apply to clients, not to proxies: behind a proxy, requests under way are counted by the client's address.
3. Whatever was counted is uncounted when it ends, however it ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tenure.errors import TenureError
from tenure.server.settings import Settings

CONNECTIONS, CONNECTIONS_PER_ADDRESS = "connections", "connections_per_address"
BODY_BYTES, BODIES_PER_ADDRESS = "body_bytes", "bodies_per_address"
STREAMS_PER_KEY, STREAMS_PER_TENANT = "streams_per_key", "streams_per_tenant"
REQUESTS_PER_KEY, PIPELINED, SLOW_READERS, WORK = "requests_per_key", "pipelined", "slow_readers", "work"
BOUNDS = (
    CONNECTIONS, CONNECTIONS_PER_ADDRESS, BODY_BYTES, BODIES_PER_ADDRESS, STREAMS_PER_KEY, STREAMS_PER_TENANT,
    REQUESTS_PER_KEY, PIPELINED, SLOW_READERS, WORK,
)  # fmt: skip
"""The values of the label `bound`."""
RETRY_SECONDS = 1
STREAM_RETRY_SECONDS = 15


class LoadLimits:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.connections = 0
        self.body_bytes = 0
        """Bytes that requests hold: their headers and bodies."""
        self.half_sent = 0
        self.refused: dict[str, int] = dict.fromkeys(BOUNDS, 0)
        self._connections_of: dict[str, int] = {}
        """Connections by address; behind a proxy, requests by address."""
        self._half_sent_of: dict[str, int] = {}
        """Half-sent bodies by address."""
        self._streams_of_key: dict[str, int] = {}
        self._streams_of_tenant: dict[str, int] = {}

    def refuse(self, bound: str, code: str, message: str, seconds: int = RETRY_SECONDS) -> TenureError:
        """Count a refusal and return its error."""
        self.refused[bound] += 1
        return TenureError(code, message, retry_after=seconds, close=True)

    # ------------------------------------------------------------------------------------------- connections

    def open_connection(self) -> None:
        if self.connections >= self._settings.connections_max:
            raise self.refuse(
                CONNECTIONS,
                "SERVER_BUSY",
                f"the server has {self.connections} connections, which is its limit",
            )
        self.connections += 1

    def close_connection(self) -> None:
        self.connections -= 1

    def count_address(self, address: str) -> None:
        """Count a connection, or behind a proxy a request, for its address."""
        most = self._settings.connections_per_address_max
        if self._connections_of.get(address, 0) >= most:
            raise self.refuse(
                CONNECTIONS_PER_ADDRESS,
                "TOO_MANY_CONNECTIONS",
                f"{address} has {most} connections, which is the limit for one address",
            )
        _count(self._connections_of, address)

    def uncount_address(self, address: str) -> None:
        _uncount(self._connections_of, address)

    # ------------------------------------------------------------------------------------------------ bodies

    def hold_bytes(self, count: int) -> None:
        """Count bytes of headers or of a body, which are held until their request is answered."""
        most = self._settings.body_bytes_total_max
        if self.body_bytes + count > most:
            raise self.refuse(
                BODY_BYTES,
                "SERVER_BUSY",
                f"the headers and bodies of all requests under way hold {most} bytes, which is the limit",
            )
        self.body_bytes += count

    def free_bytes(self, count: int) -> None:
        self.body_bytes -= count

    def begin_body(self, address: str) -> None:
        most = self._settings.bodies_per_address_max
        if self._half_sent_of.get(address, 0) >= most:
            raise self.refuse(
                BODIES_PER_ADDRESS,
                "TOO_MANY_CONNECTIONS",
                f"{address} has {most} half-sent bodies, which is the limit for one address",
            )
        _count(self._half_sent_of, address)
        self.half_sent += 1

    def end_body(self, address: str) -> None:
        _uncount(self._half_sent_of, address)
        self.half_sent -= 1

    # ----------------------------------------------------------------------------------------------- streams

    @contextmanager
    def hold_stream(self, key: str, tenant: str) -> Iterator[None]:
        """Count a stream of a credential and its tenant. Raises TOO_MANY_STREAMS if there are too many."""
        settings = self._settings
        for bound, held, most, whose in (
            (STREAMS_PER_KEY, self._streams_of_key.get(key, 0), settings.streams_per_key_max, "this credential"),
            (STREAMS_PER_TENANT, self._streams_of_tenant.get(tenant, 0), settings.streams_per_tenant_max, "the tenant"),
        ):  # fmt: skip
            if held >= most:
                raise self.refuse(
                    bound,
                    "TOO_MANY_STREAMS",
                    f"{whose} listens to {most} streams of this server, which is the limit; close one first",
                    STREAM_RETRY_SECONDS,
                )
        _count(self._streams_of_key, key)
        _count(self._streams_of_tenant, tenant)
        try:
            yield
        finally:
            _uncount(self._streams_of_key, key)
            _uncount(self._streams_of_tenant, tenant)


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def _uncount(counts: dict[str, int], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
