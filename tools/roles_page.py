"""Writes docs/roles.md: who may do what, from `tenure.server.auth.roles`. `--check` writes nothing and fails when it is stale."""

import sys
from pathlib import Path

from tenure.server.auth.roles import ROUTES
from tenure.services.identity.principals import ROLES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "roles.md"
MARK = "yes"
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
    """The page as it should be."""
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
            cells = [MARK if role in who else "" for role in ROLES]
            others = " ".join(f"`{one}`" for one in who if one not in ROLES)
            lines.append(f"| `{route}` | {' | '.join(cells)} | {others} |")
        lines.append("")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Write the page, or check it."""
    if arguments not in ([], ["--check"]):
        print("usage: roles_page.py [--check]")
        return 2
    fresh = PAGE.exists() and PAGE.read_text(encoding="utf-8") == page()
    if arguments:
        print("docs/roles.md is up to date" if fresh else "docs/roles.md is stale: run `make docs`")
        return 0 if fresh else 1
    PAGE.write_text(page(), encoding="utf-8")
    print(f"docs/roles.md: {'as it was' if fresh else 'written'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
