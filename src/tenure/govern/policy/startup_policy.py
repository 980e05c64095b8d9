"""Policies of embedded engines: a file that becomes active when the engine starts.

Law: the file is checked against the engine's own connectors, if there are any. It becomes active only if the tenant has no people: a file
cannot replace what two people must decide at a server (see `store.policies`, law 4).
"""

from __future__ import annotations

from pathlib import Path

from tenure.govern.policy.connector_check import ConnectorOperations, check_policy
from tenure.govern.policy.loader import load_policy, read_policy_text
from tenure.kernel.governance_rows import GovernanceRow
from tenure.store.policies import PolicyRegistry
from tenure.store.port import Store


async def install_policy(
    store: Store, tenant: str, policy: str | Path, connectors: ConnectorOperations
) -> GovernanceRow:
    """Make a policy active for a tenant. `policy` is a path, or the text itself, which has more than one line."""
    is_text = isinstance(policy, str) and "\n" in policy
    text = str(policy) if is_text else read_policy_text(Path(policy))
    source = "<policy>" if is_text else str(policy)
    check_policy(text, source, connectors) if connectors else load_policy(text, source)
    return await PolicyRegistry(store, tenant).install(text)
