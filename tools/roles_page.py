"""Writes docs/roles.md: who may do what, from `tenure.server.auth.roles`. `--check` writes nothing and fails if it is stale."""

import sys

from tenure.server.auth.roles import ROUTES
from tenure.services.identity.principals import ROLES
from tools.generated_files import ROOT, write_or_check

PAGE = ROOT / "docs" / "roles.md"
HEAD = """# Roles

<!-- Made by tools/roles_page.py from src/tenure/server/auth/roles.py. -->

This page lists every route of the API and the roles that may use it. Any other route is refused. No role implies another: an
admin who shall approve needs both roles. A test reads this page and calls every route with no key, with a wrong key, with each
role, and with another tenant's ids.

| role | may |
|---|---|
| viewer | look at runs |
| operator | start and control runs, schedules and workflows |
| approver | answer what runs ask; only with a person's key, never with a service's |
| admin | manage the tenant's clients, people, keys, hooks and webhooks, and do what an operator may |
| runner | claim work and do it |

The last column names access without a role:

- `anyone`: no credential, or one that the route itself checks (a signature, a one-time code, a key to exchange);
- `lease`: the token of that lease, which a claim returned;
- `installation`: the operator of the installation, who belongs to no tenant (`tenure keys create --operator`);
- `here`: any credential; on the loopback listener, none is needed.

HEAD is allowed wherever GET is, and OPTIONS everywhere. [Tenants, people and keys](tenants.md) explains how to create them.
"""


def page() -> str:
    lines = [HEAD]
    for title, routes in ROUTES.items():
        lines += [
            f"## {title}",
            "",
            f"| route | {' | '.join(ROLES)} | others |",
            f"|---|{'---|' * (len(ROLES) + 1)}",
        ]
        for route, allowed in routes.items():
            who = allowed.split()
            cells = ["yes" if role in who else "" for role in ROLES]
            others = " ".join(f"`{one}`" for one in who if one not in ROLES)
            lines.append(f"| `{route}` | {' | '.join(cells)} | {others} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(write_or_check({PAGE: page()}))
