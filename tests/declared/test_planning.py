"""From a workflow and its inputs to a plan, and from a claimed step to its work."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenure.declared import Declared, load, load_file, needed_steps, resolve
from tenure.declared.planning import MARK
from tenure.errors import TenureError
from tenure.kernel import profiles
from tenure.kernel.commands import BackoffSpec, StepSpec
from tenure.kernel.decide.plans import check_plan

RELEASE = load_file(Path(__file__).parent / "release.yaml")
SCOPE: dict[str, Any] = {
    "inputs": {"ref": "main", "dry": False},
    "steps": {"build": {"output": {"stdout": "img:1", "n": 2}}},
    "run": {"id": "run_1", "workflow": "release", "attempt": 1},
    "trigger": {"type": "api", "ref": None, "repo": None},
}


def flow(steps: str, head: str = "") -> Declared:
    return load(f"name: x\n{head}\nsteps:\n{steps}")


def job(step: StepSpec) -> Any:
    assert step.input is not None
    found = msgspec.json.decode(step.input)
    assert (next(iter(found)) == MARK) == (step.kind == "work")
    return {key: value for key, value in found.items() if key != MARK}


def test_a_plan_is_one_that_the_kernel_takes() -> None:
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


def test_what_only_needs_inputs_is_evaluated_at_once_and_the_rest_stays_open() -> None:
    build, label, gate, *_, child = RELEASE.plan({"ref": "v2"})
    assert job(build) == {
        "run": ["make", "image"],
        "env": {"REF": "v2", "PORT": "8080"},
        "idempotent": True,
    }
    assert job(label)["with"] == {
        "issue": 7,
        "image": "${{ steps.build.output.stdout }}",
        "all": {"ref": "v2", "dry": False},
    }
    assert job(label)["open"] == [["with", "image"], ["idempotency_key"]]
    assert job(gate) == {"title": "Deploy v2"}
    assert gate.approval is not None
    assert gate.approval.action == "gate", (
        "what people typed is a payload, the history has the step's own word"
    )
    assert child.input is not None
    assert needed_steps(child.input) == {"build"}


def test_a_key_that_names_the_run_is_fixed_by_who_knows_it() -> None:
    run = SCOPE["run"]
    known = RELEASE.plan({}, run=run, trigger=SCOPE["trigger"])[1]
    assert known.idempotency_key == "label:run_1:main"
    assert "idempotency_key" not in job(known)
    unknown = RELEASE.plan({})[1]
    assert unknown.idempotency_key == ""
    assert unknown.input is not None
    assert resolve(unknown.input, SCOPE).idempotency_key == "label:run_1:main"


def test_of_a_run_only_what_is_named_is_fixed_and_never_the_try() -> None:
    declared = flow(
        "  - id: a\n    uses: t\n    with: {i: '${{ run.id }}', t: '${{ run.tenant }}', n: '${{ run.attempt }}', r: '${{ run }}'}\n"
    )
    step = declared.plan({}, run={"id": "r", "attempt": 1})[0]
    assert job(step)["with"]["i"] == "r"
    assert job(step)["open"] == [["with", "t"], ["with", "n"], ["with", "r"]]
    assert step.input is not None
    scope = {"run": {"id": "r", "tenant": "acme", "attempt": 3}}
    assert resolve(step.input, scope).arguments == {"i": "r", "t": "acme", "n": 3, "r": scope["run"]}


def test_a_resolved_step_has_no_templates_left() -> None:
    build, label, *_, child = RELEASE.plan({})
    assert build.input is not None
    assert label.input is not None
    assert child.input is not None
    work = resolve(build.input, {})
    assert (work.argv, work.env, work.skipped) == (("make", "image"), {"REF": "main", "PORT": "8080"}, False)
    assert resolve(label.input, SCOPE).arguments["image"] == "img:1"
    assert resolve(child.input, SCOPE).arguments == {"image": "img:1:main"}


def test_a_step_whose_condition_is_false_is_skipped_and_nothing_of_it_is_evaluated() -> None:
    label = RELEASE.plan({"dry": True})[1]
    assert job(label) == {"if": False}
    assert label.input is not None
    assert resolve(label.input, {}).skipped
    assert needed_steps(label.input) == set()


def test_a_condition_on_an_output_is_decided_when_the_step_is_claimed() -> None:
    declared = flow(
        "  - {id: build, uses: t}\n"
        "  - {id: b, uses: t, if: steps.build.output.n > inputs.n, with: {x: '${{ inputs.o.gone }}'}}\n",
        "inputs: {n: {type: integer}, o: {type: object, default: {}}}",
    )
    step = declared.plan({"n": 5})[1].input
    assert step is not None
    assert needed_steps(step) == {"build"}
    assert resolve(step, {**SCOPE, "inputs": {"n": 5, "o": {}}}).skipped
    with pytest.raises(TenureError, match=r"inputs\.o has no 'gone'"):
        resolve(step, {**SCOPE, "inputs": {"n": 1, "o": {}}})


def test_a_condition_that_is_neither_true_nor_false_is_refused() -> None:
    declared = flow("  - {id: a, uses: t, if: inputs.n}\n", "inputs: {n: {type: integer}}")
    with pytest.raises(TenureError, match="an if is true or false, not 5"):
        declared.plan({"n": 5})


@pytest.mark.parametrize(
    "text", ["inputs.go", "${{ inputs.go }}", "${{ inputs.go == true }}", "inputs.go && true"]
)
def test_a_condition_may_be_wrapped_out_of_habit(text: str) -> None:
    declared = flow(f"  - {{id: a, uses: t, if: '{text}'}}\n", "inputs: {go: {type: boolean}}")
    assert job(declared.plan({"go": True})[0]) == {"with": {}}
    assert job(declared.plan({"go": False})[0]) == {"if": False}


def test_a_gate_whose_condition_is_false_keeps_its_place_and_is_over_at_once() -> None:
    declared = flow(
        "  - {id: gate, approval: {title: ok?}, if: '!inputs.dry'}\n  - {id: b, uses: t, needs: [gate]}\n",
        "inputs: {dry: {type: boolean}}",
    )
    asked, skipped = declared.plan({"dry": False}), declared.plan({"dry": True})
    assert asked[0].kind == "approval"
    assert skipped[0].kind == "wait"
    assert skipped[0].wait is not None
    assert skipped[0].wait.within_seconds == 1e-6
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
    step = declared.plan({"t": hostile})[1].input
    assert step is not None
    assert needed_steps(step) == {"build"}
    scope = {**SCOPE, "steps": {"build": {"output": {"stdout": "${{ run.id }}", "secret": "s3cret"}}}}
    work = resolve(step, scope)
    assert work.argv == ("echo", hostile, "${{ run.id }}")
    assert work.env == {"T": hostile}


@pytest.mark.parametrize(("value", "text"), [("[1]", r"\[1\]"), ("null", "null"), ("{a: 1}", r"\{")])
def test_an_argument_is_one_word(value: str, text: str) -> None:
    kind = {"[": "array", "{": "object", "n": "string"}[value[0]]
    declared = flow(
        "  - {id: a, run: [echo, '${{ inputs.v }}']}\n", f"inputs: {{v: {{type: {kind}, default: {value}}}}}"
    )
    step = declared.plan({})[0].input
    assert step is not None
    with pytest.raises(
        TenureError, match=rf"run\[1\]: an argument is a text, a number or a boolean, not {text}"
    ):
        resolve(step, {})


def test_numbers_and_truth_values_are_words_and_an_environment_takes_json() -> None:
    declared = flow(
        "  - id: a\n    run: [echo, '${{ inputs.n }}', '${{ inputs.b }}', 7, true]\n    env: {L: '${{ inputs.l }}'}\n",
        "inputs: {n: {type: number, default: 1.5}, b: {type: boolean, default: true}, l: {type: array, default: [1, a]}}",
    )
    step = declared.plan({})[0].input
    assert step is not None
    work = resolve(step, {})
    assert work.argv == ("echo", "1.5", "true", "7", "true")
    assert work.env == {"L": '[1,"a"]'}


def test_a_nul_reaches_no_command() -> None:
    declared = flow("  - {id: a, run: [echo, '${{ inputs.v }}']}\n", "inputs: {v: {type: string}}")
    step = declared.plan({"v": "a\0b"})[0].input
    assert step is not None
    with pytest.raises(TenureError, match="NUL"):
        resolve(step, {})


def test_a_title_that_becomes_too_long_is_refused_at_submission() -> None:
    declared = flow(
        "  - {id: g, approval: {title: 'Deploy ${{ inputs.v }}'}}\n", "inputs: {v: {type: string}}"
    )
    with pytest.raises(
        TenureError, match=r"step g: approval\.title: with these inputs it has 1207 characters"
    ):
        declared.plan({"v": "x" * 1200})
    with pytest.raises(TenureError, match="printable"):
        declared.plan({"v": "a\nb"})


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b'{"if": 7}', b'{"x": 1}', b'{"open": [["with", "gone"]]}']
)
def test_an_input_of_another_kind_of_step_is_refused(text: bytes) -> None:
    with pytest.raises(TenureError) as caught:
        needed_steps(text)
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


def test_inputs_are_filled_with_their_defaults() -> None:
    assert TYPED.bind({"count": 2, "tags": ("a",)}) == {
        "ref": "main", "count": 2, "share": 0.5, "env": "dev", "tags": ["a"], "extra": None, "dry": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, ["inputs.count must be given: an integer"]),
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
def test_inputs_that_do_not_fit_are_named_all_at_once(given: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(TenureError) as caught:
        TYPED.bind(given)
    assert caught.value.code == "INVALID_INPUT"
    assert [f"{d.path} {d.problem}" for d in caught.value.details] == said
    with pytest.raises(TenureError):
        TYPED.plan(given)


def test_a_secret_input_takes_a_reference_and_the_secret_itself_is_not_repeated() -> None:
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


def test_a_value_that_is_no_json_is_refused() -> None:
    with pytest.raises(TenureError, match="must be JSON"):
        TYPED.bind({"count": 1, "extra": {"a": object()}})


def test_a_command_lines_texts_become_values() -> None:
    texts = {"ref": "007", "count": "3", "dry": "true", "tags": '["a"]'}
    assert TYPED.from_texts(texts) == {"ref": "007", "count": 3, "dry": True, "tags": ["a"]}
    with pytest.raises(TenureError, match=r"inputs\.dry must be a boolean in JSON, not 'yes'"):
        TYPED.from_texts({"dry": "yes"})
