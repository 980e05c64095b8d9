"""From a workflow and its inputs to a plan, and from a claimed step to its input."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenure.declared import DeclaredWorkflow, load_workflow, load_workflow_file
from tenure.declared.step_inputs import needed_steps, prepare_step, template_references
from tenure.errors import TenureError
from tenure.kernel import profiles
from tenure.kernel.commands import BackoffSpec, StepSpec
from tenure.kernel.decide.plans import check_plan

RELEASE = load_workflow_file(Path(__file__).parent / "release.yaml")
SCOPE: dict[str, Any] = {
    "inputs": {"ref": "main", "dry": False},
    "steps": {"build": {"output": {"stdout": "img:1", "n": 2}}},
    "run": {"id": "run_1", "workflow": "release", "attempt": 1},
    "trigger": {"type": "api", "ref": None, "repo": None},
}


def flow(steps: str, head: str = "") -> DeclaredWorkflow:
    return load_workflow(f"name: x\n{head}\nsteps:\n{steps}")


def template(step: StepSpec) -> Any:
    assert step.template is not None
    assert step.input is None
    return msgspec.json.decode(step.template)


def handed(step: StepSpec, scope: dict[str, Any] | None = None) -> Any:
    """The plain values that the worker of a step gets."""
    if step.template is None:
        return msgspec.json.decode(step.input or b"null")
    made = prepare_step(step.template, scope or {})
    assert not made.skipped
    return msgspec.json.decode(made.input)


def needs(step: StepSpec) -> set[str]:
    assert step.template is not None
    return needed_steps(template_references(step.template))


def test_the_kernel_accepts_the_plan() -> None:
    plan = RELEASE.plan({})
    needs = check_plan(plan, profiles.get("governed-runtime"), {}, 0)
    assert needs == [[], ["build"], ["label"], ["gate"], ["healthy"], ["cool"]]
    assert [step.kind for step in plan] == ["work", "work", "approval", "wait", "wait", "work"]
    assert [step.queue for step in plan] == [
        "default|run",
        "default|tool:github.label",
        "default",
        "default",
        "default",
        "default|tool:workflow:other-name",
    ]
    assert [step.tool for step in plan] == ["run", "github.label", "", "", "", "workflow:other-name"]
    assert plan[0].backoff == BackoffSpec((1.0, 5.0), 0.2)
    assert (plan[0].retries, plan[0].timeout_seconds) == (2, 600)


def test_templates_over_inputs_are_evaluated_at_creation_and_others_later() -> None:
    build, label, gate, *_, child = RELEASE.plan({"ref": "v2"})
    assert build.template is None
    assert handed(build) == {"argv": ["make", "image"], "env": {"REF": "v2", "PORT": "8080"}}
    assert template(label)["with"] == {
        "issue": 7,
        "image": "${{ steps.build.output.stdout }}",
        "all": {"ref": "v2", "dry": False},
    }
    assert template(label)["open"] == [["idempotency_key"], ["with", "image"]]
    assert label.condition == "inputs.dry == false"
    assert handed(gate) == {"title": "Deploy v2"}
    assert gate.approval is not None
    assert gate.approval.action == "gate", (
        "the title has user input, so it is in a payload; the history has only the step's name"
    )
    assert needs(child) == {"build"}


def test_a_key_that_names_the_run_is_evaluated_when_the_id_is_known() -> None:
    run = SCOPE["run"]
    known = RELEASE.plan({}, run=run, trigger=SCOPE["trigger"])[1]
    assert known.idempotency_key == "label:run_1:main"
    assert "idempotency_key" not in template(known)
    unknown = RELEASE.plan({})[1]
    assert unknown.idempotency_key == ""
    assert unknown.template is not None
    assert prepare_step(unknown.template, SCOPE).idempotency_key == "label:run_1:main"
    first = {**SCOPE, "run": {**run, "id": "run_0"}}
    assert prepare_step(unknown.template, SCOPE, first).idempotency_key == "label:run_0:main"


def test_only_named_facts_of_the_run_are_evaluated_and_never_the_try() -> None:
    declared = flow(
        "  - id: a\n    uses: t\n    with: {i: '${{ run.id }}', t: '${{ run.tenant }}', n: '${{ run.attempt }}', r: '${{ run }}'}\n"
    )
    step = declared.plan({}, run={"id": "r", "attempt": 1})[0]
    assert template(step)["with"]["i"] == "r"
    assert template(step)["open"] == [["with", "t"], ["with", "n"], ["with", "r"]]
    scope = {"run": {"id": "r", "tenant": "acme", "attempt": 3}}
    assert handed(step, scope) == {"i": "r", "t": "acme", "n": 3, "r": scope["run"]}


@pytest.mark.parametrize(
    ("value", "each"), [("${{ run.attempt }}", True), ("${{ run }}", True), ("${{ run.id }}", False)]
)
def test_an_input_that_names_the_try_is_evaluated_for_each_try(value: str, each: bool) -> None:
    (step,) = flow(f"  - {{id: a, uses: t, with: {{x: '{value}'}}}}\n").plan({})
    assert step.template is not None
    assert prepare_step(step.template, SCOPE).each_try is each


def test_a_resolved_step_has_no_templates_left() -> None:
    _, label, *_, child = RELEASE.plan({})
    assert handed(label, SCOPE)["image"] == "img:1"
    assert handed(child, SCOPE) == {"image": "img:1:main"}


def test_a_step_with_a_false_condition_is_skipped_without_evaluation() -> None:
    label = RELEASE.plan({"dry": True})[1]
    assert (label.skipped, label.condition) == (True, "inputs.dry == false")
    assert (label.input, label.template) == (None, None)
    check_plan(RELEASE.plan({"dry": True}), profiles.get("governed-runtime"), {}, 0)


def test_a_condition_on_an_output_is_evaluated_when_its_needs_have_ended() -> None:
    declared = flow(
        "  - {id: build, uses: t}\n"
        "  - {id: b, uses: t, if: steps.build.output.n > inputs.n, with: {x: '${{ inputs.o.gone }}'}}\n",
        "inputs: {n: {type: integer}, o: {type: object, default: {}}}",
    )
    step = declared.plan({"n": 5})[1]
    assert step.template is not None
    assert needs(step) == {"build"}
    assert prepare_step(step.template, {**SCOPE, "inputs": {"n": 5, "o": {}}}).skipped
    with pytest.raises(TenureError, match=r"inputs\.o has no 'gone'"):
        prepare_step(step.template, {**SCOPE, "inputs": {"n": 1, "o": {}}})


def test_arguments_that_look_like_internal_references_are_refused() -> None:
    with pytest.raises(
        TenureError, match=r"step a: with: the name of an argument must not begin with '\$tenure'"
    ):
        flow("  - {id: a, uses: t, with: {$tenure.artifact: x}}\n").plan({})


def test_a_condition_must_be_boolean() -> None:
    declared = flow("  - {id: a, uses: t, if: inputs.n}\n", "inputs: {n: {type: integer}}")
    with pytest.raises(TenureError, match="a condition must be true or false, not 5"):
        declared.plan({"n": 5})


@pytest.mark.parametrize(
    "text", ["inputs.go", "${{ inputs.go }}", "${{ inputs.go == true }}", "inputs.go && true"]
)
def test_a_condition_may_be_wrapped_in_braces(text: str) -> None:
    declared = flow(f"  - {{id: a, uses: t, if: '{text}'}}\n", "inputs: {go: {type: boolean}}")
    assert handed(declared.plan({"go": True})[0]) == {}
    assert declared.plan({"go": False})[0].skipped


def test_a_gate_with_a_false_condition_keeps_its_place_and_is_skipped() -> None:
    declared = flow(
        "  - {id: gate, approval: {title: 'ok? ${{ inputs.o.gone }}'}, if: '!inputs.dry'}\n"
        "  - {id: news, wait: {event: '${{ inputs.o.gone }}'}, if: '!inputs.dry'}\n  - {id: b, uses: t}\n",
        "inputs: {dry: {type: boolean}, o: {type: object, default: {}}}",
    )
    asked, skipped = declared.plan({"dry": False, "o": {"gone": "x"}}), declared.plan({"dry": True})
    assert [s.kind for s in asked] == [s.kind for s in skipped] == ["approval", "wait", "work"]
    assert [s.skipped for s in asked] == [False, False, False]
    assert [s.skipped for s in skipped] == [True, True, False]
    assert [s.name for s in asked] == [s.name for s in skipped]
    for plan in (asked, skipped):
        check_plan(plan, profiles.get("agent-runs"), {}, 0)


def test_a_value_that_looks_like_a_template_stays_a_value() -> None:
    declared = flow(
        "  - {id: build, uses: t}\n"
        "  - id: b\n    run: ['echo', '${{ inputs.t }}', '${{ steps.build.output.stdout }}']\n    env: {T: '${{ inputs.t }}'}\n",
        "inputs: {t: {type: string}}",
    )
    hostile = "${{ steps.build.output.secret }}"
    step = declared.plan({"t": hostile})[1]
    assert needs(step) == {"build"}
    scope = {**SCOPE, "steps": {"build": {"output": {"stdout": "${{ run.id }}", "secret": "s3cret"}}}}
    assert handed(step, scope) == {"argv": ["echo", hostile, "${{ run.id }}"], "env": {"T": hostile}}


@pytest.mark.parametrize(("value", "text"), [("[1]", r"\[1\]"), ("null", "null"), ("{a: 1}", r"\{")])
def test_an_expression_is_one_argument(value: str, text: str) -> None:
    kind = {"[": "array", "{": "object", "n": "string"}[value[0]]
    declared = flow(
        "  - {id: a, run: [echo, '${{ inputs.v }}']}\n", f"inputs: {{v: {{type: {kind}, default: {value}}}}}"
    )
    with pytest.raises(
        TenureError, match=rf"run\[1\]: an argument must be a string, a number or a boolean, not {text}"
    ):
        declared.plan({})


def test_numbers_and_booleans_become_text_in_arguments() -> None:
    declared = flow(
        "  - id: a\n    run: [echo, '${{ inputs.n }}', '${{ inputs.b }}', 7, true]\n    env: {L: '${{ inputs.l }}'}\n",
        "inputs: {n: {type: number, default: 1.5}, b: {type: boolean, default: true}, l: {type: array, default: [1, a]}}",
    )
    assert handed(declared.plan({})[0]) == {
        "argv": ["echo", "1.5", "true", "7", "true"],
        "env": {"L": '[1,"a"]'},
    }


def test_a_null_character_is_refused_in_commands() -> None:
    declared = flow("  - {id: a, run: [echo, '${{ inputs.v }}']}\n", "inputs: {v: {type: string}}")
    with pytest.raises(TenureError, match="NUL"):
        declared.plan({"v": "a\0b"})


def test_a_title_that_becomes_too_long_is_refused_at_submission() -> None:
    declared = flow(
        "  - {id: g, approval: {title: 'Deploy ${{ inputs.v }}'}}\n", "inputs: {v: {type: string}}"
    )
    with pytest.raises(TenureError, match=r"step g: approval\.title: has 1207 characters with these inputs"):
        declared.plan({"v": "x" * 1200})
    with pytest.raises(TenureError, match="printable"):
        declared.plan({"v": "a\nb"})


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b'{"if": 7}', b'{"x": 1}', b'{"open": [["with", "gone"]]}']
)
def test_an_invalid_template_is_refused(text: bytes) -> None:
    with pytest.raises(TenureError) as caught:
        template_references(text)
    assert caught.value.code == "INVALID_INPUT"


# ------------------------------------------------------------------------------------------------ inputs

TYPED = flow(
    "  - {id: a, uses: t}\n",
    """inputs:
  ref: {type: string, default: main, min_length: 2, max_length: 10}
  count: {type: integer, minimum: 1, maximum: 5}
  share: {type: number, default: 0.5}
  env: {type: string, enum: [dev, prod], default: dev}
  tags: {type: array, items: string, default: [], max_length: 2}
  extra: {type: object, default: null}
  dry: {type: boolean, default: false}
""",
)


def test_missing_inputs_get_their_defaults() -> None:
    assert TYPED.bind({"count": 2, "tags": ("a",)}) == {
        "ref": "main", "count": 2, "share": 0.5, "env": "dev", "tags": ["a"], "extra": None, "dry": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["inputs.count is required: an integer"]),
        ({"count": "2"}, ['inputs.count must be an integer, not "2"']),
        ({"count": True}, ["inputs.count must be an integer, not true"]),
        ({"count": 2.0}, ["inputs.count must be an integer, not 2.0"]),
        ({"count": 9}, ["inputs.count must be at most 5, not 9"]),
        ({"count": 0, "ref": "x"}, ["inputs.ref must have at least 2 characters, not 1", "inputs.count must be at least 1, not 0"]),
        ({"count": 1, "env": "test"}, ['inputs.env must be one of "dev", "prod", not "test"']),
        ({"count": 1, "tags": ["a", 2]}, ["inputs.tags item 1 must be a string, not 2"]),
        ({"count": 1, "tags": ["a", "b", "c"]}, ["inputs.tags must have at most 2 items, not 3"]),
        ({"count": 1, "share": float("nan")}, ["inputs.share must be a number, not null"]),
        ({"count": 1, "dry": 0}, ["inputs.dry must be a boolean, not 0"]),
        ({"count": 1, "ref": None}, ["inputs.ref must be a string, not null"]),
        ({"count": 1, "extra": {1: 2}}, ['inputs.extra must be an object, not {"1":2}']),
        ({"count": 1, "raf": "x"}, ["inputs.raf workflow x has no such input; did you mean 'ref'?"]),
    ],
)  # fmt: skip
def test_all_invalid_inputs_are_reported_at_once(given: dict[str, Any], expected: list[str]) -> None:
    with pytest.raises(TenureError) as caught:
        TYPED.bind(given)
    assert caught.value.code == "INVALID_INPUT"
    assert [f"{d.path} {d.problem}" for d in caught.value.details] == expected
    with pytest.raises(TenureError):
        TYPED.plan(given)


def test_a_secret_input_must_be_a_reference_and_errors_do_not_repeat_it() -> None:
    """I53."""
    asks = flow("  - {id: a, uses: t}\n", "inputs:\n  token: {type: string, secret: true}\n")
    assert asks.bind({"token": "env:TENURE_SECRET_acme_T"}) == {"token": "env:TENURE_SECRET_acme_T"}
    for given in ("hunter2", ["hunter2"], {"hunter2": 1}, 2, None, "env:hunter2 x"):
        with pytest.raises(TenureError) as caught:
            asks.bind({"token": given})
        assert caught.value.code == "INVALID_INPUT"
        assert "hunter2" not in f"{caught.value} {caught.value.details}"
    for wrong in ("{type: integer, secret: true}", "{type: string, secret: true, default: hunter2}"):
        with pytest.raises(TenureError, match="WORKFLOW_INVALID"):
            flow("  - {id: a, uses: t}\n", f"inputs:\n  token: {wrong}\n")


def test_a_value_that_is_not_json_is_refused() -> None:
    with pytest.raises(TenureError, match="must be JSON"):
        TYPED.bind({"count": 1, "extra": {"a": object()}})


def test_texts_from_the_command_line_become_typed_values() -> None:
    texts = {"ref": "007", "count": "3", "dry": "true", "tags": '["a"]'}
    assert TYPED.from_texts(texts) == {"ref": "007", "count": 3, "dry": True, "tags": ["a"]}
    with pytest.raises(TenureError, match=r"inputs\.dry must be a boolean in JSON, not 'yes'"):
        TYPED.from_texts({"dry": "yes"})
