"""Writes docs/roles.md: who may do what, from `tenure.server.identity.roles`. `--check` writes nothing and fails when it is stale."""

import sys
from pathlib import Path

from tenure.server.identity.principals import ROLES
from tenure.server.identity.roles import ROUTES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "roles.md"
MARK = "yes"
HEAD = """# Who may do what

<!-- Made by tools/roles_page.py from src/tenure/server/identity/roles.py. -->

Every route of the API, and the roles that may use it. What is not here is refused to everybody, and no role implies
another: an admin who is to approve is given both roles. A test reads this page and walks every route with no key, with a
wrong key, with each role, and with another tenant's ids.

| role | is for |
|---|---|
| viewer | looking at runs, and nothing else |
| operator | starting and steering runs, schedules and workflows |
| approver | answering what runs ask; only a person's key does, a service's never |
| admin | the tenant's clients, people, keys, hooks and webhooks; and what an operator may |
| runner | taking work and doing it |

The last column has those who are let in by something else than a role:

- `anyone`: no credential, or one that the route itself checks (a signature, a one-time code, a key to exchange);
- `lease`: the token of that lease, which a claim handed out;
- `installation`: the operator of the installation, who belongs to no tenant (`tenure keys create --operator`);
- `here`: any credential; on the loopback listener, none is needed.

HEAD goes wherever GET does, and OPTIONS everywhere. How tenants, people and keys are made is in
[tenants.md](tenants.md).
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
