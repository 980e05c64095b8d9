"""Hooks as rows, as a server creates them."""

from tenure.engine import Engine
from tenure.kernel.server_rows import HookRow
from tenure.store.hook_deliveries import HookDeliveries
from tenure.store.identity import AdminChange

HOOK = "hk_" + "a" * 40


async def add_hook(engine: Engine, name: str, rules: str, settings: str = "{}") -> None:
    """Add a hook of Bob to the tenant of the engine."""
    hook = HookRow(
        HOOK, engine.tenant, "default", "generic", name, '["env:X"]', rules, "person:bob", settings, 0, 0
    )
    change = AdminChange(tenant=engine.tenant, kind="hook.created", actor="t", about={})
    await HookDeliveries(engine.store).put_hook(hook, change)
