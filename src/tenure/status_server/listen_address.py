"""The address on which a server of Tenure listens.

Law: a server listens on other addresses than loopback only with TLS, or behind a proxy that has TLS.
"""

from __future__ import annotations

import socket

from tenure.errors import TenureError
from tenure.private_files import hide

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def check_tls(host: str, *, tls_cert: str | None, tls_key: str | None, behind_proxy: bool) -> None:
    """Refuse to listen where keys would be sent in the clear."""
    if tls_key is not None:
        hide(tls_key)
    if (tls_cert is None) != (tls_key is None):
        raise TenureError("LISTEN_REFUSED", "--tls-cert and --tls-key belong together")
    if host not in LOOPBACK and tls_cert is None and not behind_proxy:
        raise TenureError(
            "LISTEN_REFUSED",
            f"{host} can be reached from other machines, and keys would pass in the clear: "
            "give --tls-cert and --tls-key, or --behind-proxy where something in front of it speaks TLS",
        )


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket on an address; port 0 is any free port."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as fault:
        listening.close()
        raise TenureError("LISTEN_REFUSED", f"{host}:{port}: {fault.strerror}") from fault
    return listening


def format_address(listening: socket.socket, *, tls: bool) -> str:
    """The address of a bound socket, as a URL."""
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{shown}:{port}"
