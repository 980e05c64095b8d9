"""Writes the JSON Schemas in docs/schema: workflow files, policy files, pipelines and CI settings, for editors.

They come from the grammars that the files are checked against. `--check` writes nothing and fails if a file is stale.
"""

import json
import sys
from pathlib import Path

from tenure.ci.settings import settings_json_schema
from tenure.declared import json_schema
from tenure.declared.pipeline_grammar import pipeline_json_schema
from tenure.govern.policy.grammar import policy_json_schema
from tools.generated_files import ROOT, write_or_check

FOLDER = ROOT / "docs" / "schema"


def texts() -> dict[Path, str]:
    schemas = {
        "workflow.json": json_schema(),
        "policy.json": policy_json_schema(),
        "pipeline.json": pipeline_json_schema(),
        "ci-settings.json": settings_json_schema(),
    }
    return {
        FOLDER / name: json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        for name, schema in schemas.items()
    }


if __name__ == "__main__":
    sys.exit(write_or_check(texts()))
