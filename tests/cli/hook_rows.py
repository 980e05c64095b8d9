"""A hook in a database, as a server would have made it."""

from tenure.embedded import Engine
from tenure.kernel.service import Hook
from tenure.store.deliveries import Deliveries
from tenure.store.identity import Change

HOOK = "hk_" + "a" * 40


async def add_hook(engine: Engine, name: str, rules: str, settings: str = "{}") -> None:
    """A hook of Bob's, of the engine's tenant."""
    hook = Hook(
        HOOK, engine.tenant, "default", "generic", name, '["env:X"]', rules, "person:bob", settings, 0, 0
    )
    change = Change(tenant=engine.tenant, kind="hook.created", actor="t", about={})
    await Deliveries(engine.store).put_hook(hook, change)
