"""Policies of embedded engines: a file that is made active when the engine starts.

Law: it is checked against the engine's own connectors (where it has any), and it is active only where the tenant has no people: what two of them
must decide at a server, no file decides (see `store.policies`, law 4).
"""

from __future__ import annotations

from pathlib import Path

from tenure.govern.policy.checking import Connectors, check
from tenure.govern.policy.loading import load, read_text
from tenure.kernel.governance import Governance
from tenure.store.policies import Governing
from tenure.store.port import Store


async def installed(store: Store, tenant: str, policy: str | Path, connectors: Connectors) -> Governance:
    """Make a policy active for a tenant: a path, or the text itself (which has more than one line)."""
    is_text = isinstance(policy, str) and "\n" in policy
    text = str(policy) if is_text else read_text(Path(policy))
    source = "<policy>" if is_text else str(policy)
    check(text, source, connectors) if connectors else load(text, source)
    return await Governing(store, tenant).install(text)
