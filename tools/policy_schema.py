"""Writes docs/schema/policy.json: the JSON Schema of policy files, for editors.

It comes from `tenure.govern.policy.grammar`, which is also what files are checked against. `--check` writes nothing and
fails when the file is stale.
"""

import json
import sys
from pathlib import Path

from tenure.govern.policy.grammar import policy_json_schema

PAGE = Path(__file__).resolve().parent.parent / "docs" / "schema" / "policy.json"


def text() -> str:
    """The file as it should be."""
    return json.dumps(policy_json_schema(), indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    """Write the schema, or check it."""
    if arguments not in ([], ["--check"]):
        print("usage: policy_schema.py [--check]")
        return 2
    fresh = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text()
    if arguments:
        print("docs/schema/policy.json is " + ("up to date" if fresh else "stale; run `make docs`"))
        return 0 if fresh else 1
    PAGE.write_text(text(), encoding="utf-8")
    print("docs/schema/policy.json: " + ("up to date" if fresh else "written"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
