"""Where commands look after runs: an engine beside its database, or a server.

Law: the two have the same groups and methods (`engine.runs.list`, `client.runs.list`). The type checker sees to that: commands
call a `Backend`, which may be either.
"""

from __future__ import annotations

from tenure.client.client import Client
from tenure.engine.engine import Engine

Backend = Engine | Client
