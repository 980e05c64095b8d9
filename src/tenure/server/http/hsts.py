"""HSTS: over TLS every answer tells browsers to come by TLS from now on.

Law: it is said where the client came by TLS: to this server, or to the trusted proxy that says so. Subdomains may be others'.
"""

from __future__ import annotations

HSTS = "max-age=31536000"
"""For a year."""
HSTS_HEADER = (b"strict-transport-security", HSTS.encode())
