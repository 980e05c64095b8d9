"""Writes docs/firestore.indexes.json, the composite indexes of the Firestore mirror. `--check` writes nothing and fails if the file is
stale."""

import sys

from tenure.publish.firestore.indexes import render_indexes
from tools.generated_files import ROOT, write_or_check

FILE = ROOT / "docs" / "firestore.indexes.json"

if __name__ == "__main__":
    sys.exit(write_or_check({FILE: render_indexes()}))
