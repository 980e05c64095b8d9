"""The store's conformance suite on other versions of PostgreSQL: `python -m tests.chaos.postgres_versions 15 17 18`.

`make postgres VERSION=15` does the same. Versions 15 and 17 come from Debian (bookworm, trixie) and are installed into a folder.
Version 18 is the one that the tests use anyway. Prints one line per version. The exit code is 0 if everything passed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.chaos.debian import PartsUnavailable, install

SUITES = {"15": "bookworm", "17": "trixie"}
OWN = "18"
"""The version in the wheel that the tests depend on."""
TESTS = ("tests/conformance", "-k", "postgres")


def environment_of(version: str) -> dict[str, str]:
    """Return the environment that makes the tests use this version."""
    given = {
        name: value for name, value in os.environ.items() if name not in ("TENURE_TEST_DSN", "TENURE_PG_BIN")
    }
    if version in SUITES:
        folder = install(SUITES[version], [f"postgresql-{version}"])
        given["TENURE_PG_BIN"] = str(folder / f"usr/lib/postgresql/{version}/bin")
    elif version != OWN:
        raise PartsUnavailable(f"PostgreSQL {version} is not one of {', '.join([*SUITES, OWN])}.")
    return given


def main(arguments: list[str]) -> int:
    """Test each version. Arguments after `--` go to pytest instead of the conformance tests."""
    versions, _, tests = " ".join(arguments).partition(" -- ")
    wrong = 0
    for version in versions.split() or [*SUITES, OWN]:
        try:
            environment = environment_of(version)
        except PartsUnavailable as missing:
            print(f"postgres {version}: {missing}", file=sys.stderr)
            return 2
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(tests.split() or TESTS)]
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        last = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1]
        if done.returncode != 0:
            wrong += 1
            print(done.stdout[-6000:], file=sys.stderr)
        print(f"postgres {version}: {re.sub(r'=', '', last).strip()}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
