"""A hook in a database, as a server would have made it."""

from tenure.engine import Engine
from tenure.kernel.server_rows import HookRow
from tenure.store.hook_deliveries import HookDeliveries
from tenure.store.identity import AdminChange

HOOK = "hk_" + "a" * 40


async def add_hook(engine: Engine, name: str, rules: str, settings: str = "{}") -> None:
    """A hook of Bob's, of the engine's tenant."""
    hook = HookRow(
        HOOK, engine.tenant, "default", "generic", name, '["env:X"]', rules, "person:bob", settings, 0, 0
    )
    change = AdminChange(tenant=engine.tenant, kind="hook.created", actor="t", about={})
    await HookDeliveries(engine.store).put_hook(hook, change)
