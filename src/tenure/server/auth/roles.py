"""Who may do what: the table of routes and roles. `docs/roles.md` is generated from it.

Laws:
1. Deny by default: a route that is not in the table is refused to everybody, and a test fails.
2. No role implies another. An admin who also approves has both roles.
3. Besides the roles: `anyone` (no credential, or one that the route itself checks: a signature, a one-time code),
   `lease` (the token of that lease), `installation` (the operator of the installation) and `here` (any credential, or
   the loopback listener).
4. The table is also the list of routes: OPTIONS and 405 list its methods. HEAD goes wherever GET does, and OPTIONS everywhere.
"""

from __future__ import annotations

import re
from functools import cache

from tenure.services.identity.principals import ROLES

_PARAMETER = re.compile(r"\{\w+\}")
ANYONE, LEASE, INSTALLATION, HERE = "anyone", "lease", "installation", "here"
_EVERY = " ".join(ROLES)
_SELF = f"{_EVERY} {INSTALLATION}"
_LOOK = "viewer operator approver admin"
_STEER = "operator admin"
_CONFIRM = "operator approver admin"

ROUTES: dict[str, dict[str, str]] = {
    "The service": {
        "GET /healthz": ANYONE,
        "GET /readyz": ANYONE,
        "GET /metrics": HERE,
        "GET /openapi.json": HERE,
        "GET /docs": HERE,
        "GET /errors": ANYONE,
        "GET /errors/{code}": ANYONE,
    },
    "Sessions and oneself": {
        "POST /session": ANYONE,
        "GET /session": _SELF,
        "DELETE /session": _SELF,
        "POST /enrolments": ANYONE,
        "GET /me/keys": _SELF,
        "POST /me/keys/{key_id}/rotate": _SELF,
        "DELETE /me/keys/{key_id}": _SELF,
        "PUT /me/slack": _EVERY,
        "DELETE /me/slack": _EVERY,
    },
    "Runs": {
        "POST /runs": _STEER,
        "POST /runs/batch": _STEER,
        "GET /runs": _LOOK,
        "POST /runs/cancel": _STEER,
        "GET /runs/{run_id}": _LOOK,
        "PATCH /runs/{run_id}": _STEER,
        "GET /runs/{run_id}/status": _LOOK,
        "GET /runs/{run_id}/page": _LOOK,
        "GET /runs/{run_id}/result": _LOOK,
        "GET /runs/{run_id}/steps": _LOOK,
        "GET /runs/{run_id}/steps/{key}/attempts": _LOOK,
        "GET /runs/{run_id}/steps/{key}/logs": _LOOK,
        "GET /runs/{run_id}/steps/{key}/log": _LOOK,
        "GET /runs/{run_id}/steps/{key}/tests": _LOOK,
        "GET /runs/{run_id}/tests": _LOOK,
        "POST /runs/{run_id}/steps/{key}/cancel": _STEER,
        "GET /runs/{run_id}/events": _LOOK,
        "GET /runs/{run_id}/checkpoints": _LOOK,
        "GET /runs/{run_id}/logs": _LOOK,
        "GET /runs/{run_id}/tries": _LOOK,
        "GET /runs/{run_id}/artifacts": _LOOK,
        "GET /runs/{run_id}/artifacts/{name}": _LOOK,
        "GET /runs/{run_id}/why": _LOOK,
        "GET /runs/{run_id}/decisions": _LOOK,
        "GET /runs/{run_id}/receipts": _LOOK,
        "GET /runs/{run_id}/costs": _LOOK,
        "GET /costs": _LOOK,
        "GET /runs/{run_id}/evidence": _LOOK,
        "GET /runs/{run_id}/evidence/{part}/bundle": _LOOK,
        "GET /runs/{run_id}/evidence/{part}/statement": _LOOK,
        "GET /runs/{run_id}/evidence/{part}/proof": _LOOK,
        "GET /evidence": _LOOK,
        "POST /runs/{run_id}/cancel": _STEER,
        "POST /runs/{run_id}/approve": "approver",
        "POST /runs/{run_id}/resume": _STEER,
        "POST /runs/{run_id}/rerun": _STEER,
        "POST /runs/{run_id}/undo": _STEER,
        "GET /runs/{run_id}/undo": _LOOK,
        "POST /runs/{run_id}/pause": _STEER,
        "POST /runs/{run_id}/unpause": _STEER,
        "POST /runs/{run_id}/revoke": _STEER,
        "POST /runs/{run_id}/reported": _STEER,
        "POST /runs/{run_id}/signals/{name}": _STEER,
        "POST /agents/run": _STEER,
    },
    "Workflows": {
        "GET /workflows": _LOOK,
        "GET /workflows/{name}": _LOOK,
        "PUT /workflows/{name}": _STEER,
        "POST /workflows/{name}/confirm": _CONFIRM,
    },
    "People's questions": {
        "GET /approvals": _LOOK,
        "GET /approvals/{approval_id}": _LOOK,
        "POST /approvals/{approval_id}/decision": "approver",
        "POST /approvals/{approval_id}/withdraw": "approver",
        "GET /inbox/stats": _LOOK,
        "GET /receipts": _LOOK,
        "GET /receipts/{receipt_id}": _LOOK,
        "POST /receipts/{receipt_id}/settle": "approver",
        "GET /proposals/pending": _LOOK,
        "POST /proposals/{proposal_id}/decision": "approver",
    },
    "Policies and freezes": {
        "GET /policies": _LOOK,
        "POST /policies": "admin",
        "POST /policies/shadow": "admin",
        "GET /policies/{version}": _LOOK,
        "POST /policies/{version}/activate": "admin approver",
        "POST /policies/{version}/withdraw": "admin",
        "GET /freezes": _LOOK,
        "POST /freezes/thaw": "admin approver",
        "POST /freezes": _STEER,
    },
    "The ledger": {
        "GET /ledger/checkpoints": _LOOK,
        "GET /ledger/proof": _LOOK,
        "GET /ledger/consistency": _LOOK,
        "GET /ledger/trust": _LOOK,
    },
    "Live status": {
        "GET /events/stream": _LOOK,
    },
    "Hooks and webhooks": {
        "POST /hooks/github/{hook_id}": ANYONE,
        "POST /hooks/slack/{hook_id}/commands": ANYONE,
        "POST /hooks/slack/{hook_id}/actions": ANYONE,
        "POST /hooks/generic/{hook_id}": ANYONE,
        "POST /hooks/servicenow/{hook_id}": ANYONE,
        "GET /hooks": _LOOK,
        "POST /hooks": "admin",
        "GET /hooks/{hook_id}": _LOOK,
        "PUT /hooks/{hook_id}": "admin",
        "POST /hooks/{hook_id}/confirm": "admin approver",
        "DELETE /hooks/{hook_id}": "admin",
        "GET /hooks/{hook_id}/deliveries": _LOOK,
        "GET /hooks/{hook_id}/deliveries/{delivery_id}": _LOOK,
        "POST /hooks/{hook_id}/deliveries/{delivery_id}/replay": _STEER,
        "GET /webhooks": _LOOK,
        "POST /webhooks": "admin",
        "GET /webhooks/{webhook_id}": _LOOK,
        "PUT /webhooks/{webhook_id}": "admin",
        "DELETE /webhooks/{webhook_id}": "admin",
        "GET /webhooks/{webhook_id}/dead": _LOOK,
        "POST /webhooks/{webhook_id}/dead/retry": _STEER,
    },
    "CI": {
        "POST /ci/runs": _STEER,
        "GET /ci/runs/{run_id}/plan": _LOOK,
    },
    "VCS reports": {
        "GET /reports": _LOOK,
        "GET /reports/{run_id}": _LOOK,
        "POST /reports/{run_id}/retry": _STEER,
    },
    "Schedules": {
        "GET /schedules": _LOOK,
        "POST /schedules": _STEER,
        "GET /schedules/{name}": _LOOK,
        "PUT /schedules/{name}": _STEER,
        "DELETE /schedules/{name}": _STEER,
        "POST /schedules/{name}/confirm": _CONFIRM,
        "POST /schedules/{name}/pause": _STEER,
        "POST /schedules/{name}/unpause": _STEER,
        "POST /schedules/{name}/trigger": _STEER,
    },
    "Runners": {
        "POST /runner/register": "runner",
        "POST /runner/workflows": "runner",
        "POST /runner/claim": "runner",
        "GET /runner/leases/{lease_id}": LEASE,
        "GET /runner/leases/{lease_id}/waits": LEASE,
        **{
            f"POST /runner/leases/{{lease_id}}/{verb}": LEASE
            for verb in (
                "ack", "running", "heartbeat", "checkpoint", "log", "uploading", "suspend", "wait", "start", "propose",
                "cost", "complete", "fail", "release", "park", "cancel-ack",
            )
        },
        "POST /runner/leases/{lease_id}/act": LEASE,
        "GET /runner/actions": "runner",
        "PUT /runner/leases/{lease_id}/artifacts/{name}": LEASE,
        "GET /runner/leases/{lease_id}/artifacts/{name}": LEASE,
        "PUT /runner/leases/{lease_id}/log-chunks/{seq}": LEASE,
        "POST /runner/leases/{lease_id}/uploads": LEASE,
        "PUT /runner/leases/{lease_id}/uploads/{upload}/parts/{part}": LEASE,
        "POST /runner/leases/{lease_id}/uploads/{upload}/complete": LEASE,
        "GET /runner/leases/{lease_id}/needs/{job}/artifacts/{name}": LEASE,
        "GET /runner/leases/{lease_id}/caches": LEASE,
        "POST /runner/leases/{lease_id}/report": LEASE,
        "POST /runner/leases/{lease_id}/test-history": LEASE,
        "POST /runner/messages": "runner",
    },
    "A tenant's own people and keys": {
        "GET /clients": "admin",
        "POST /clients": "admin",
        "GET /clients/{client_id}": "admin",
        "PUT /clients/{client_id}": "admin",
        "DELETE /clients/{client_id}": "admin",
        "POST /clients/{client_id}/confirm": "admin",
        "GET /people": "admin",
        "POST /people": "admin",
        "GET /people/{person_id}": "admin",
        "PUT /people/{person_id}": "admin",
        "DELETE /people/{person_id}": "admin",
        "POST /people/{person_id}/confirm": "admin",
        "POST /people/{person_id}/enrolment": "admin",
        "GET /keys": "admin",
        "POST /keys": "admin",
        "GET /keys/{key_id}": "admin",
        "POST /keys/{key_id}/rotate": "admin",
        "DELETE /keys/{key_id}": "admin",
        "POST /keys/{key_id}/confirm": "admin",
        "GET /audit": "admin",
    },
    "The installation": {
        "GET /admin/tenants": INSTALLATION,
        "POST /admin/tenants": INSTALLATION,
        "GET /admin/tenants/{tenant_id}": INSTALLATION,
        "PUT /admin/tenants/{tenant_id}": INSTALLATION,
        "DELETE /admin/tenants/{tenant_id}": INSTALLATION,
        "PUT /admin/tenants/{tenant_id}/caps": INSTALLATION,
        "GET /admin/tenants/{tenant_id}/caps": INSTALLATION,
        "POST /admin/tenants/{tenant_id}/people": INSTALLATION,
        "POST /admin/tenants/{tenant_id}/people/{person_id}/confirm": INSTALLATION,
        "GET /admin/tenants/{tenant_id}/slack-apps": INSTALLATION,
        "PUT /admin/tenants/{tenant_id}/slack-apps/{team_id}": INSTALLATION,
        "DELETE /admin/tenants/{tenant_id}/slack-apps/{team_id}": INSTALLATION,
        "GET /admin/audit": INSTALLATION,
    },
}  # fmt: skip

ALLOWED: dict[str, frozenset[str]] = {
    route: frozenset(roles.split()) for group in ROUTES.values() for route, roles in group.items()
}
"""`METHOD /path` -> who may use it."""


@cache
def _methods_by_path() -> list[tuple[re.Pattern[str], str]]:
    """The patterns of all paths with their methods; paths without parameters come first."""
    methods: dict[str, set[str]] = {}
    for route in ALLOWED:
        method, _, path = route.partition(" ")
        methods.setdefault(path, {"OPTIONS"}).update({method, "HEAD"} if method == "GET" else {method})
    return [
        (re.compile("[^/]+".join(map(re.escape, _PARAMETER.split(path)))), ", ".join(sorted(methods[path])))
        for path in sorted(methods, key=lambda path: path.count("{"))
    ]


def methods_at(path: str) -> str | None:
    """The methods of a path, as `Allow` lists them; None if there is no such path."""
    return next((allow for pattern, allow in _methods_by_path() if pattern.fullmatch(path)), None)
