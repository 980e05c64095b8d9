"""What clients may lay on one server process, and what they do: connections, requests under way, streams.

Laws:
1. Everything a client can make this process hold is counted here, and has a bound (`Settings`). What is beyond it is refused
   with a code, before anything is held for it, and counted (`tenure_http_refused_total`).
2. Bounds per address are for clients, not for proxies: behind a proxy they count requests under way by the client's address.
3. What was counted is counted off again, whatever ends it.
"""

from __future__ import annotations

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
"""What is bounded, as the label `bound` names it."""
RETRY_SECONDS = 1
STREAM_RETRY_SECONDS = 15


class LoadLimits:
    """See the laws above."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.connections = 0
        self.body_bytes = 0
        """Bytes that requests hold: their headers and bodies."""
        self.half_sent = 0
        self.refused: dict[str, int] = dict.fromkeys(BOUNDS, 0)
        self._from: dict[str, int] = {}
        """Connections, or behind a proxy requests, by address."""
        self._bodies: dict[str, int] = {}
        """Half-sent bodies by address."""
        self._by_key: dict[str, int] = {}
        self._by_tenant: dict[str, int] = {}
        """Streams."""

    def refuse(self, bound: str, code: str, message: str, seconds: int = RETRY_SECONDS) -> TenureError:
        """A refusal, counted."""
        self.refused[bound] += 1
        return TenureError(code, message, retry_after=seconds, close=True)

    # ------------------------------------------------------------------------------------------- connections

    def open_connection(self) -> None:
        """Somebody connects."""
        if self.connections >= self._settings.connections_max:
            raise self.refuse(
                CONNECTIONS,
                "SERVER_BUSY",
                f"the server has {self.connections} connections, which is its limit",
            )
        self.connections += 1

    def close_connection(self) -> None:
        """A connection that was opened has ended."""
        self.connections -= 1

    def count_address(self, address: str) -> None:
        """A connection, or behind a proxy a request, comes from an address."""
        most = self._settings.connections_per_address_max
        if self._from.get(address, 0) >= most:
            raise self.refuse(
                CONNECTIONS_PER_ADDRESS,
                "TOO_MANY_CONNECTIONS",
                f"{address} has {most} connections, which is the limit for one address",
            )
        _count(self._from, address)

    def uncount_address(self, address: str) -> None:
        """It has ended."""
        _uncount(self._from, address)

    # ------------------------------------------------------------------------------------------------ bodies

    def hold_bytes(self, count: int) -> None:
        """Headers, or bytes of a body, have come, and are held until their request is answered."""
        most = self._settings.body_bytes_total_max
        if self.body_bytes + count > most:
            raise self.refuse(
                BODY_BYTES,
                "SERVER_BUSY",
                f"the headers and bodies of all requests under way hold {most} bytes, which is the limit",
            )
        self.body_bytes += count

    def free_bytes(self, count: int) -> None:
        """They are not held any more."""
        self.body_bytes -= count

    def begin_body(self, address: str) -> None:
        """A body has begun and is not complete."""
        most = self._settings.bodies_per_address_max
        if self._bodies.get(address, 0) >= most:
            raise self.refuse(
                BODIES_PER_ADDRESS,
                "TOO_MANY_CONNECTIONS",
                f"{address} has {most} half-sent bodies, which is the limit for one address",
            )
        _count(self._bodies, address)
        self.half_sent += 1

    def end_body(self, address: str) -> None:
        """It is complete, or will never be."""
        _uncount(self._bodies, address)
        self.half_sent -= 1

    # ----------------------------------------------------------------------------------------------- streams

    def open_stream(self, key: str, tenant: str) -> None:
        """Somebody wants to listen."""
        by_key, by_tenant = self._settings.streams_per_key_max, self._settings.streams_per_tenant_max
        for bound, held, most, whose in (
            (STREAMS_PER_KEY, self._by_key.get(key, 0), by_key, "this credential"),
            (STREAMS_PER_TENANT, self._by_tenant.get(tenant, 0), by_tenant, "the tenant"),
        ):
            if held >= most:
                raise self.refuse(
                    bound,
                    "TOO_MANY_STREAMS",
                    f"{whose} listens to {most} streams of this server, which is the limit; close one first",
                    STREAM_RETRY_SECONDS,
                )
        _count(self._by_key, key)
        _count(self._by_tenant, tenant)

    def close_stream(self, key: str, tenant: str) -> None:
        """They do not listen any more."""
        _uncount(self._by_key, key)
        _uncount(self._by_tenant, tenant)


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def _uncount(counts: dict[str, int], name: str) -> None:
    left = counts[name] - 1
    if left:
        counts[name] = left
    else:
        del counts[name]
