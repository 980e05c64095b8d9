"""The meaning of a file: YAML 1.2, defaults, digests, and hostile files."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.declared import load_workflow, load_workflow_file
from tenure.errors import TenureError

RELEASE = Path(__file__).parent / "release.yaml"
ONE = "name: x\nsteps:\n  - id: a\n    run: [make]\n"


def with_value(text: str) -> object:
    return (
        load_workflow(f"name: x\nsteps:\n  - id: a\n    uses: t\n    with: {{v: {text}}}\n")
        .steps[0]
        .arguments["v"]
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"), ("no", "no"), ("off", "off"), ("y", "y"), ("1:30", "1:30"), ("1_000", "1_000"), ("yes", "yes"),
        ("true", True), ("False", False), ("tRUE", "tRUE"), ("null", None), ("~", None), ("'null'", "null"),
        ("12", 12), ("-12", -12), ("+3", 3), ("007", 7), ("0o17", 15), ("0x1F", 31), ("0b1", "0b1"), ("1.5", 1.5),
        ("1e3", 1000.0), (".5", 0.5), ("2026-11-15", "2026-11-15"), ("'12'", "12"), ("12abc", "12abc"), ("=", "="),
        ("[a, {b: on}]", ["a", {"b": "on"}]), ("{on: 1, 2: 3}", {"on": 1, "2": 3}),
    ],
)  # fmt: skip
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    found = with_value(text)
    assert found == value
    assert type(found) is type(value)


def test_the_example_is_loaded_with_defaults() -> None:
    declared = load_workflow_file(RELEASE)
    build, label, gate, healthy, cool, child = declared.steps
    assert (declared.name, declared.version, declared.profile) == ("release", "1", "governed-runtime")
    assert declared.timeout_seconds == 7_200
    assert (build.run, build.timeout_seconds, build.retry.backoff) == (("make", "image"), 600, (1.0, 5.0))
    assert build.env == {"REF": "${{ inputs.ref }}", "PORT": "8080"}
    assert (label.target, label.timeout_seconds, label.retry.max) == ("github.label", 300, 3)
    assert gate.approval is not None
    assert (gate.approval.tier, gate.approval.people, gate.approval.action) == ("high", 2, "gate")
    assert healthy.wait is not None
    assert (healthy.wait.event, healthy.wait.within) == ("deploy.healthy", 3_600)
    assert cool.wait is not None
    assert cool.wait.time == 600
    assert (child.kind, child.target) == ("workflow", "other-name")
    assert [step.index for step in declared.steps] == list(range(6))


def test_the_retry_of_a_step_inherits_the_defaults() -> None:
    step = load_workflow(
        ONE + "    retry: {max: 1}\ndefaults: {retry: {max: 9, backoff: [1s], jitter: 0}}\n"
    ).steps[0]
    assert (step.retry.max, step.retry.backoff, step.retry.jitter) == (1, (1.0,), 0)


def test_a_version_is_explicit_or_the_digest() -> None:
    assert load_workflow(ONE + "version: 1.10\n").version == "1.10"
    declared = load_workflow(ONE)
    assert declared.version == declared.digest[:12]


def test_the_digest_covers_the_meaning_of_a_file() -> None:
    plain = load_workflow(ONE + "timeout: 5m\nversion: 1\n")
    other = load_workflow(
        "steps: [{run: ['make'], id: 'a'}]  # a comment\ntimeout: 300\nversion: 2\nname: x\n"
    )
    assert plain.digest == other.digest
    assert plain.digest != load_workflow(ONE + "timeout: 6m\n").digest
    assert load_workflow(ONE, "here").digest == load_workflow(ONE, "there").digest


def test_a_command_text_is_split_and_an_expression_stays_one_argument() -> None:
    text = """run: make "a b" REF=${{ inputs.r }} '${{ inputs.r + " }} x" }}' c\\ d"""
    declared = load_workflow(f"name: x\ninputs: {{r: {{type: string}}}}\nsteps:\n  - id: a\n    {text}\n")
    assert declared.steps[0].run == (
        "make", "a b", "REF=${{ inputs.r }}", '${{ inputs.r + " }} x" }}', "c d",
    )  # fmt: skip
    first = declared.plan({"r": "one two; rm -rf /"})[0].input
    assert first is not None
    assert b'"REF=one two; rm -rf /","one two; rm -rf / }} x"' in first


def test_a_shell_must_be_requested_explicitly() -> None:
    step = load_workflow(
        'name: x\nsteps:\n  - id: a\n    shell: true\n    run: |\n      echo "$A" | wc\n'
    ).steps[0]
    assert step.run == ("sh", "-c", 'echo "$A" | wc\n')


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: "a: &a [x]\n" + "".join(f"b{i}: &b{i} [*a, *a]\n" for i in range(20)), "anchors and aliases"),
        (lambda: "[" * 100_000, "nested more than 32 levels deep"),
        (lambda: "{a: " * 50_000, "nested more than 32 levels deep"),
        (lambda: "- " * 100_000, "nested more than 32 levels deep"),
        (lambda: "[" + "x," * 30_000 + "]", "more than 20000 keys and values"),
        (lambda: "x" * 300_000, "the file has 300000 bytes; at most 262144 are allowed"),
        (lambda: "name: " + "9" * 10_000 + "\n", "more than 63 bits"),
        (lambda: "name: '\ud800'\n", "not Unicode text"),
        (lambda: "!!python/object/apply:os.system ['true']", "tags are not allowed"),
        (lambda: "%TAG ! tag:x,1:\n--- !y z", "tags are not allowed"),
        (lambda: ONE + "".join(f"  - id: s{i}\n    run: [x]\n" for i in range(1_200)), "1 to 1000 items, not 1201"),
    ],
)  # fmt: skip
def test_a_hostile_file_is_refused(make: Callable[[], str], message: str) -> None:
    with pytest.raises(TenureError, match=message) as caught:
        load_workflow(make())
    assert caught.value.code == "WORKFLOW_INVALID"


def test_a_thousand_steps_in_a_row_are_accepted() -> None:
    steps = "".join(f"  - id: s{i}\n    uses: t\n" for i in range(999))
    last = "  - id: last\n    uses: t\n    with: {x: '${{ steps.s0.output }}'}\n"
    assert len(load_workflow("name: x\nsteps:\n" + steps + last).steps) == 1_000


@given(st.text(max_size=200))
def test_any_text_is_a_workflow_or_refused(text: str) -> None:
    with pytest.raises(TenureError) as caught:
        load_workflow(text)
    assert caught.value.code == "WORKFLOW_INVALID"


@given(st.text(alphabet="abc${}[]().'\"-+ \n:#&*!|>,?", max_size=80))
def test_any_value_is_loaded_or_refused(text: str) -> None:
    for place in (
        "run: [a]\n    if: ",
        "run: ",
        "run: [a]\n    env: {A: ",
        "run: [a]\n    idempotency_key: ",
    ):
        code = "WORKFLOW_INVALID"
        try:
            load_workflow(f"name: x\nsteps:\n  - id: a\n    {place}{text}\n")
        except TenureError as fault:
            code = fault.code
        assert code == "WORKFLOW_INVALID"


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TenureError, match="No such file"):
        load_workflow_file(tmp_path / "none.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(TenureError, match="not UTF-8"):
        load_workflow_file(binary)


def test_problems_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(ONE + "x: 1\n")
    with pytest.raises(TenureError, match=r"w\.yaml:5:1: x: "):
        load_workflow_file(file)
