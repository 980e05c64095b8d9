"""The check that the packages of the extra `server` are installed."""

from __future__ import annotations

from importlib import import_module

from tenure.errors import TenureError

PACKAGES = ("httptools", "litestar", "prometheus_client", "uvicorn")


def require_server_extra(*names: str) -> None:
    """Raise EXTRA_MISSING unless these packages of the extra `server`, or all, are installed."""
    for name in names or PACKAGES:
        try:
            import_module(name)
        except ImportError as missing:
            raise TenureError(
                "EXTRA_MISSING", f"the server needs {name}: pip install 'tenure[server]'"
            ) from missing
