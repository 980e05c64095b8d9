"""The cost of an invalid file: only a few of its unknown words get a suggestion."""

from collections.abc import Callable

import pytest

from tenure.declared import load_workflow
from tenure.declared.model import WorkflowInput, bind_inputs
from tenure.errors import TenureError
from tenure.expressions.json_schema import check_value
from tenure.limits import PROBLEMS_MAX, SUGGESTIONS_MAX, WORKFLOW_BYTES_MAX
from tenure.suggestions import WORD_CHARS_MAX, suggest
from tests.server.cpu_cost import seconds_of

STEPS = 950
LONG = "a-name-that-is-as-long-as-names-may-be-" * 5


def _steps(line: Callable[[int], str]) -> str:
    steps = "".join(
        f"  - id: {LONG[: 40 - len(str(i))]}{i}\n    run: 'true'\n{line(i)}" for i in range(STEPS)
    )
    return f"name: a\nsteps:\n{steps}"


FILES = {
    "needs that are not there": lambda: _steps(lambda i: f"    needs: [{LONG[:42]}{i}x]\n"),
    "steps that are not there": lambda: _steps(lambda i: f"    if: steps.{LONG[:42]}{i}x.output\n"),
    "inputs that are not there": lambda: _steps(lambda i: f"    if: inputs.{LONG[:42]}{i}x\n"),
    "keys that are not there": lambda: _steps(lambda i: f"    needss{i}: [x]\n"),
    "kinds that are not there": lambda: (
        "name: a\nsteps:\n" + "".join(f"  - id: s{i}\n    runn{i}: x\n" for i in range(STEPS))
    ),
    "many needs of one step": lambda: (
        "name: a\nsteps:\n  - id: a\n    run: x\n    needs: [" + "x, " * 18_000 + "y]\n"
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_full_of_unknown_words_is_refused_quickly(kind: str) -> None:
    text = FILES[kind]()
    assert len(text) <= WORKFLOW_BYTES_MAX
    with pytest.raises(TenureError) as refused:
        load_workflow(text, "a")
    assert refused.value.message.count("did you mean") <= SUGGESTIONS_MAX
    good = _steps(lambda _: "")
    usual = seconds_of(lambda _: lambda: load_workflow(good, "a"), 0)
    assert seconds_of(lambda _: lambda: load_workflow(text, "a"), 0) < 10 * usual, (
        "it must cost about as much as other files of its size"
    )


def test_an_input_full_of_unknown_names_is_refused_quickly() -> None:
    inputs = {f"{LONG[:40]}{i}": WorkflowInput(type="string") for i in range(1_000)}
    given = {f"{LONG[:41]}{i}x": "y" for i in range(5_000)}
    with pytest.raises(TenureError) as refused:
        bind_inputs("a", inputs, given)
    assert refused.value.message.count("did you mean") <= SUGGESTIONS_MAX
    assert len(refused.value.details) <= PROBLEMS_MAX
    assert seconds_of(lambda _: lambda: bind_inputs("a", inputs, given), 0) < 0.1


def test_an_action_full_of_unknown_fields_is_refused_quickly() -> None:
    below = {
        "type": "object",
        "properties": {f"{LONG[:40]}{i}": {"type": "string"} for i in range(200)},
        "additionalProperties": False,
    }
    given = [{f"{LONG[:41]}{i}{n}": 1 for n in range(10)} for i in range(100)]
    with pytest.raises(TenureError) as refused:
        check_value({"type": "array", "items": below}, given, "fields")
    assert refused.value.message.count("did you mean") <= SUGGESTIONS_MAX
    assert len(refused.value.details) <= PROBLEMS_MAX


def test_a_suggestion_is_found_among_many_names_and_costs_little() -> None:
    names = [f"step-number-{i}" for i in range(5_000)] + ["build-release"]
    assert suggest("biuld-release", names) == ["build-release"]
    hard = ["".join("abc"[(i * 7 + j * j) % 3] for j in range(WORD_CHARS_MAX)) for i in range(5_000)]
    word = "".join("abc"[j**3 % 3] for j in range(WORD_CHARS_MAX))
    assert seconds_of(lambda _: lambda: suggest(word, hard), 0) < 0.1
    assert suggest("x" * 10_000, names) == []
