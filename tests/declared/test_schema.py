"""The published schema agrees with the validation."""

import re
from pathlib import Path
from typing import Any

import pytest

from tenure.declared import json_schema, load_workflow
from tenure.errors import TenureError
from tenure.expressions.yaml_document import FileProblems, read_yaml
from tests.declared.test_file_problems import CASES
from tools import json_schemas
from tools.generated_files import ROOT, find_stale

RELEASE = Path(__file__).parent / "release.yaml"
SHAPES = (
    "no map", "nothing in it", "a misspelled key", "a name that is a number", "a name with blanks", "no length of time",
    "no time at all", "sexagesimal", "a profile that is no name", "no steps", "steps that are a map", "a step that is a text",
    "a step without a kind", "a step of two kinds", "a step without an id", "a key of another kind",
    "an id with blanks", "too many retries", "retries that are a text", "a wrong delay", "an unknown tier",
    "an environment that is none", "a wrong type", "a bar in a queue",
)  # fmt: skip
"""Cases that a schema can detect, because the form of one value is wrong."""

TYPES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float),
}  # fmt: skip


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Validate against the part of JSON Schema that ours uses. An unknown keyword fails the test."""
    return all(keyword_fits(name, wanted, value, schema) for name, wanted in schema.items())


def keyword_fits(name: str, wanted: Any, value: Any, schema: dict[str, Any]) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match name:
        case "description" | "title" | "examples" | "$schema":
            return True
        case "type":
            kinds = [wanted] if isinstance(wanted, str) else wanted
            return any(
                isinstance(value, TYPES[k]) and (k == "boolean" or not isinstance(value, bool)) for k in kinds
            )
        case "enum":
            return value in wanted
        case "anyOf":
            return any(fits(value, option) for option in wanted)
        case "oneOf":
            return sum(fits(value, option) for option in wanted) == 1
        case "pattern":
            return not isinstance(value, str) or re.search(wanted, value) is not None
        case "minLength" | "maxLength":
            return not isinstance(value, str) or (
                len(value) >= wanted if name == "minLength" else len(value) <= wanted
            )
        case "minimum" | "maximum" | "exclusiveMinimum":
            return not number or {"i": value >= wanted, "a": value <= wanted, "x": value > wanted}[name[1]]
        case "minItems" | "maxItems":
            return not isinstance(value, list) or (
                len(value) >= wanted if name == "minItems" else len(value) <= wanted
            )
        case "items":
            return not isinstance(value, list) or all(fits(item, wanted) for item in value)
        case "maxProperties":
            return not isinstance(value, dict) or len(value) <= wanted
        case "required":
            return not isinstance(value, dict) or all(key in value for key in wanted)
        case "properties":
            return not isinstance(value, dict) or all(
                fits(value[key], below) for key, below in wanted.items() if key in value
            )
        case "propertyNames":
            return not isinstance(value, dict) or all(fits(key, wanted) for key in value)
        case "additionalProperties":
            if not isinstance(value, dict):
                return True
            others = [item for key, item in value.items() if key not in schema.get("properties", {})]
            return not others if wanted is False else all(fits(item, wanted) for item in others)
        case _:
            raise AssertionError(f"the schema has {name!r}, which this test does not know")


def plain(text: str) -> Any:
    return read_yaml(text, FileProblems("x")).plain()


def test_the_published_schema_is_up_to_date() -> None:
    assert find_stale(json_schemas.texts()) == [], "run `make docs`"


def test_a_valid_file_matches_the_schema() -> None:
    assert fits(plain(RELEASE.read_text()), json_schema())


@pytest.mark.parametrize("case", SHAPES)
def test_a_malformed_file_does_not_match_the_schema(case: str) -> None:
    assert not fits(plain(CASES[case][0]), json_schema())


def blocks(page: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)


def test_the_examples_of_the_page_match_the_schema() -> None:
    page = (ROOT / "docs" / "declared.md").read_text()
    whole = [block for block in blocks(page) if block.startswith("name:")]
    assert whole
    for block in whole:
        load_workflow(block)
        assert fits(plain(block), json_schema())


def test_the_error_on_the_page_is_the_real_one() -> None:
    page = (ROOT / "docs" / "declared.md").read_text()
    text, message = re.findall(
        r"```yaml\n(# release\.yaml.*?)```.*?```text\n(.*?)```", page, flags=re.DOTALL
    )[0]
    with pytest.raises(TenureError) as caught:
        load_workflow(text, "release.yaml")
    assert caught.value.message == message.rstrip("\n")
