"""The published schemas of pipelines and CI settings agree with the validation."""

from typing import Any

import pytest

from tenure.ci.pipeline import load_pipeline
from tenure.ci.settings import load_settings, settings_json_schema
from tenure.declared.pipeline_grammar import pipeline_json_schema
from tenure.expressions.yaml_document import FileProblems, read_yaml
from tests.ci.test_pipeline_problems import CASES
from tests.ci.test_planner import DISCOVERED, PIPELINE, REUSABLE
from tests.ci.test_settings import FULL
from tests.declared.test_schema import fits

SHAPES = ("a misspelled key", "no command")
"""Cases that a schema can detect, because the form of one value is wrong."""
WHOLE = """\
defaults: {env: {A: b}, labels: [linux], timeout: 5m, retry: {max: 2}, limits: {memory: 1GiB}}
jobs:
  build:
    commands: [{run: make, name: build, cwd: src}, {run: [make, install]}]
    matrix: {os: [linux, 3, true], exclude: [{os: 3}], include: [{os: mac}]}
    services: {db: {run: postgres, ready: [pg_isready], ready_within: 10s}}
    caches: [{key: pip, files: [a.txt], paths: [.cache], fallback: [pip-]}]
    artifacts: [{name: out, paths: [out/**], retention: 1d, always: true}]
  test: {run: x, needs: [build], downloads: [{job: build, artifact: out, to: out}], network: ["*.example.com:443"]}
"""


def plain(text: str) -> Any:
    return read_yaml(text, FileProblems("text")).plain()


@pytest.mark.parametrize("text", [PIPELINE, REUSABLE, DISCOVERED, WHOLE])
def test_a_valid_pipeline_fits_the_published_schema(text: str) -> None:
    load_pipeline(text, "ci.yaml")
    assert fits(plain(text), pipeline_json_schema())


@pytest.mark.parametrize("case", SHAPES)
def test_a_pipeline_of_the_wrong_form_does_not_fit(case: str) -> None:
    assert not fits(plain(CASES[case][0]), pipeline_json_schema())


def test_valid_settings_fit_the_published_schema() -> None:
    load_settings(FULL)
    assert fits(plain(FULL), settings_json_schema())
    assert not fits(plain(FULL.replace("1GiB", "lots")), settings_json_schema())
