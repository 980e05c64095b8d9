"""Invalid files, and the exact error for each: line, column, path and advice."""

from textwrap import dedent

import pytest

from tenure.declared import load_workflow
from tenure.errors import TenureError

ONE = "name: x\nsteps:\n  - id: a\n    run: [make]\n"


def refused(text: str) -> list[str]:
    """The problems of a file, one line each."""
    with pytest.raises(TenureError) as caught:
        load_workflow(text, "f.yaml")
    fault = caught.value
    assert fault.code == "WORKFLOW_INVALID"
    lines = [f"{detail.path}: {detail.problem}".removeprefix("f.yaml:") for detail in fault.details]
    assert fault.message.splitlines() == [f"f.yaml:{line}" for line in lines]
    return lines


CASES: dict[str, tuple[str, list[str]]] = {
    "empty": ("", ["1:1: the file is empty; a workflow needs a name and steps"]),
    "a comment only": ("# nothing\n", ["1:1: the file is empty; a workflow needs a name and steps"]),
    "no map": ("- a\n", ["1:1: must be a map: a workflow, not a list"]),
    "a text": ("hello\n", ["1:1: must be a map: a workflow, not hello"]),
    "no YAML": ("name: [x\nsteps: y\n", ["2:6: this is not YAML: did not find expected ',' or ']'"]),
    "a tab": ("name: x\n\tsteps: []\n", ["2:1: this is not YAML: found a tab character that violates indentation"]),
    "a control character": ("name: x\ny: \x01\n", ["2:4: this is not YAML: control characters are not allowed"]),
    "an anchor": ("name: &n x\n", ["1:7: name: anchors and aliases are not allowed (&n); write the value out"]),
    "an alias": ("name: *n\n", ["1:7: name: anchors and aliases are not allowed (*n); write the value out"]),
    "a merge key": ("name: x\n<<: {a: 1}\n", ["2:1: merge keys (<<) are not allowed; write the entries out"]),
    "a tag": (
        "name: !!python/name:os.system x\n",
        ["1:7: name: tags are not allowed (tag:yaml.org,2002:python/name:os.system); put a string in quotes"],
    ),
    "two documents": (ONE + "---\nname: y\n", ["5:1: a file must contain one workflow; a second document begins here"]),
    "a key twice": (ONE + "name: y\n", ["5:1: name: the key 'name' is already in line 1"]),
    "a key that is a list": ("[a]: x\n", ["1:1: a key must be a plain string"]),
    "nothing in it": ("a: 1\n", [
        "1:1: a workflow needs 'name'",
        "1:1: a workflow needs 'steps' or a 'planner'",
        "1:1: a: a workflow has no 'a'; there are name, version, profile, timeout, budget, compensate, inputs, defaults, steps, planner",
    ]),
    "a misspelled key": (ONE + "tiemout: 5m\n", ["5:1: tiemout: a workflow has no 'tiemout'; did you mean 'timeout'?"]),
    "a name that is a number": (ONE.replace("x", "5"), ["1:7: name: must be a name (put it in quotes), not 5"]),
    "a name with blanks": (
        ONE.replace("x", "a b"),
        ["1:7: name: must be a name: letters, digits, and . _ - / between them; at most 150, not a b"],
    ),
    "no length of time": (
        ONE + "timeout: 5 minutes\n",
        ["5:10: timeout: '5 minutes' is not a length of time; write 90s, 5m, 2h, 1d, 1h30m or plain seconds"],
    ),
    "no time at all": (ONE + "timeout: 0\n", ["5:10: timeout: must be longer than 0, not 0"]),
    "sexagesimal": (
        ONE + "timeout: 1:30\n",
        ["5:10: timeout: '1:30' is not a length of time; write 90s, 5m, 2h, 1d, 1h30m or plain seconds"],
    ),
    "a profile that is no name": (ONE + "profile: Delta CI\n", [
        ("5:10: profile: must be one of agent-runs, approval-runs, delta-ci, git-with-intent, governed-runtime, tenure,"
         " not Delta CI"),
    ]),
    "an unknown profile": (ONE + "profile: governed\n", [
        ("5:10: profile: must be one of agent-runs, approval-runs, delta-ci, git-with-intent, governed-runtime, tenure,"
        " not governed; did you mean 'governed-runtime'?"),
    ]),
    "no steps": ("name: x\nsteps: []\n", ["2:8: steps: must be a list of steps of 1 to 1000 items, not 0"]),
    "steps that are a map": ("name: x\nsteps: {a: 1}\n", ["2:8: steps: must be a list of steps, not a map"]),
    "a step that is a text": ("name: x\nsteps:\n  - make\n", ["3:5: steps[0]: must be a map: a step, not make"]),
    "a step without a kind": (
        "name: x\nsteps:\n  - id: a\n    use: b\n",
        ["3:5: steps[0]: a step needs one of run, uses, workflow, approval, wait; did you mean 'uses'?"],
    ),
    "a step of two kinds": (
        "name: x\nsteps:\n  - id: a\n    uses: b\n    run: [c]\n",
        ["3:5: steps[0]: a step has uses and run; it needs exactly one of run, uses, workflow, approval, wait"],
    ),
    "a step without an id": ("name: x\nsteps:\n  - run: [c]\n", ["3:5: steps[0]: a step with 'run' needs 'id'"]),
    "a key of another kind": (ONE + "    with: {}\n", [
        ("5:5: steps[0].with: a step with 'run' has no 'with'; there are id, needs, if, required, run, shell, env, cwd,"
        " output, timeout, retry, queue, idempotency_key, idempotent"),
    ]),
    "an id with blanks": (
        "name: x\nsteps:\n  - id: a b\n    run: [c]\n",
        ["3:9: steps[0].id: must be an id: letters, digits, _ and -, beginning with a letter or _; at most 100, not a b"],
    ),
    "an id twice": (
        ONE + "  - id: a\n    run: [c]\n",
        ["5:9: steps[1].id: step 'a' is already defined in line 3; ids must be unique"],
    ),
    "too many retries": (
        ONE + "    retry:\n      max: 5000\n",
        ["6:12: steps[0].retry.max: must be an integer from 0 to 1000, not 5000"],
    ),
    "retries that are a text": (
        ONE + "    retry: {max: '3', backof: [1s]}\n",
        [
            "5:18: steps[0].retry.max: must be an integer from 0 to 1000, not 3",
            "5:23: steps[0].retry.backof: retry has no 'backof'; did you mean 'backoff'?",
        ],
    ),
    "a wrong delay": (
        ONE + "    retry: {backoff: [1s, soon]}\n",
        ["5:27: steps[0].retry.backoff[1]: 'soon' is not a length of time; write 90s, 5m, 2h, 1d, 1h30m or plain seconds"],
    ),
    "jitter alone": (
        ONE + "    retry: {jitter: 0.5}\n",
        ["5:21: steps[0].retry.jitter: jitter needs a backoff; set its delays too"],
    ),
    "an unknown need": (
        ONE + "  - id: b\n    run: [c]\n    needs: [a, aa]\n",
        ["7:16: steps[1].needs[1]: there is no step 'aa'; did you mean 'a'?"],
    ),
    "a need of itself": (ONE + "    needs: [a]\n", ["5:13: steps[0].needs[0]: a step cannot need itself"]),
    "a cycle": (
        ONE + "    needs: [b]\n  - id: b\n    run: [c]\n",
        ["5:5: steps[0].needs: the needs form a cycle: a -> b -> a"],
    ),
    "an unknown input": (
        ONE + "    env: {A: '${{ inputs.rev }}'}\ninputs: {ref: {type: string}}\n",
        ["5:14: steps[0].env.A: there is no input 'rev'; did you mean 'ref'?"],
    ),
    "an unknown root": (
        ONE + "    env: {A: '${{ secrets.key }}'}\n",
        ["5:14: steps[0].env.A: there is no 'secrets'; an expression can use inputs, steps, run, trigger, slot"],
    ),
    "an unknown step": (
        ONE + "  - id: b\n    run: ['${{ steps.aa.output }}']\n",
        ["6:11: steps[1].run[0]: there is no step 'aa'; did you mean 'a'?"],
    ),
    "a step that is not needed": (
        ONE + "  - id: b\n    needs: []\n    uses: t\n    with: {x: {y: ['${{ steps.a.output }}']}}\n",
        ["8:20: steps[1].with.x.y[0]: step 'a' may not have ended by then; add it to this step's needs"],
    ),
    "its own output": (
        ONE + "    cwd: ${{ steps.a.output.stdout }}\n",
        ["5:10: steps[0].cwd: a step cannot use its own output"],
    ),
    "not the output": (
        ONE + "  - id: b\n    uses: t\n    with: {x: '${{ steps.a.stdout }}'}\n",
        ["7:15: steps[1].with.x: only the output of a step can be used: steps.a.output"],
    ),
    "all steps at once": (
        ONE + "  - id: b\n    uses: t\n    with: {x: '${{ steps }}'}\n",
        ["7:15: steps[1].with.x: a reference to a step needs its id: steps.ID.output"],
    ),
    "a field a run has not": (
        ONE + "    env: {A: '${{ run.ids }}'}\n",
        ["5:14: steps[0].env.A: there is no run.ids; there are id, workflow, version, tenant, repo, attempt; did you mean 'id'?"],
    ),
    "an open expression": (
        ONE + "    env: {A: 'x ${{ inputs.a'}\n",
        ["5:14: steps[0].env.A: an expression begins with ${{ but has no closing }}"],
    ),
    "an empty expression": (ONE + "    env: {A: '${{ }}'}\n", ["5:14: steps[0].env.A: the expression is empty"]),
    "a key that is an expression": (
        ONE + "  - id: b\n    uses: t\n    with: {'${{ run.id }}': 1}\n",
        ["7:12: steps[1].with.${{ run.id }}: a key cannot be an expression; only values can"],
    ),
    "steps in a title": (
        ONE + "  - id: b\n    approval: {title: 'Use ${{ steps.a.output }}?'}\n",
        ["6:23: steps[1].approval.title: steps.a.output is not known when the run is submitted; only inputs can be used here"],
    ),
    "steps in an event": (
        ONE + "  - id: b\n    wait: {event: '${{ steps.a.output }}'}\n",
        ["6:19: steps[1].wait.event: steps.a.output is not known when the run is submitted; only inputs can be used here"],
    ),
    "steps in a gate's condition": (
        ONE + "  - id: b\n    wait: {time: 5m}\n    if: steps.a.output.exit_code == 0\n",
        [
            "7:9: steps[1].if: steps.a.output.exit_code is not known when the run is submitted; only inputs can be used here"
        ],
    ),
    "a slot in a key": (
        ONE + "    idempotency_key: k${{ slot }}\n",
        ["5:22: steps[0].idempotency_key: slot is not the same for every attempt; an idempotency key can use inputs, steps, run, trigger"],
    ),
    "a try in a condition": (
        ONE + "    if: run.attempt < 3\n",
        [
            "5:9: steps[0].if: run.attempt is not known: a condition is decided once, before the first attempt; it can use run.id",
        ],
    ),
    "a try in a key": (
        ONE + "    idempotency_key: k${{ run.attempt }}\n",
        [
            "5:22: steps[0].idempotency_key: run.attempt is not the same for every attempt; an idempotency key can use run.id",
        ],
    ),
    "a wait for nothing": (
        ONE + "  - id: b\n    wait: {within: 5m}\n",
        ["6:5: steps[1].wait: a wait needs either an event or a time"],
    ),
    "a wait for both": (
        ONE + "  - id: b\n    wait: {event: e, time: 5m}\n",
        ["6:5: steps[1].wait: a wait needs either an event or a time"],
    ),
    "a limit of a time": (
        ONE + "  - id: b\n    wait: {time: 5m, within: 1h}\n",
        ["6:30: steps[1].wait.within: 'within' belongs to an event, not to a time"],
    ),
    "an unknown tier": (
        ONE + "  - id: b\n    approval: {title: t, tier: hi}\n",
        ["6:32: steps[1].approval.tier: must be one of low, med, high, not hi; did you mean 'high'?"],
    ),
    "an expression in a shell": (
        "name: x\nsteps:\n  - id: a\n    run: echo ${{ run.id }}\n    shell: true\n",
        ['4:10: steps[0].run: a shell command cannot contain expressions; put the value into env and use "$NAME"'],
    ),
    "an expression in a shell by hand": (
        "name: x\nsteps:\n  - id: a\n    run: [/bin/bash, -ec, 'echo ${{ run.id }}']\n",
        ['4:27: steps[0].run[2]: a shell command cannot contain expressions; put the value into env and use "$NAME"'],
    ),
    "a list for a shell": (
        "name: x\nsteps:\n  - id: a\n    run: [echo]\n    shell: true\n",
        ["4:5: steps[0].run: with shell: true the command must be a single string"],
    ),
    "an open quote": (
        "name: x\nsteps:\n  - id: a\n    run: echo 'it\n",
        ["4:10: steps[0].run: the command cannot be split into arguments: no closing quotation"],
    ),
    "no program": ("name: x\nsteps:\n  - id: a\n    run: '  '\n", ["4:10: steps[0].run: a command needs a program to start"]),
    "an environment that is none": (
        ONE + "    env: {A-B: 1}\n",
        ["5:11: steps[0].env.A-B: a name here must have letters, digits and underscores, not beginning with a digit"],
    ),
    "a wrong type": (
        ONE + "inputs:\n  a: {type: sting}\n",
        [
            ("6:13: inputs.a.type: must be one of string, integer, number, boolean, array, object, not sting;"
            " did you mean 'string'?")
        ],
    ),
    "a default of another type": (
        ONE + "inputs:\n  a: {type: integer, default: 'no'}\n",
        ['6:31: inputs.a.default: must be an integer, not "no"'],
    ),
    "a bound of a text": (
        ONE + "inputs:\n  a: {type: string, minimum: 3}\n",
        ["6:30: inputs.a.minimum: belongs to an integer or a number, not to a string"],
    ),
    "no CEL": (
        ONE + "    if: inputs.a ==\ninputs: {a: {type: string}}\n",
        [
            "5:9: steps[0].if: this is not supported CEL: the expression ends where a value is expected"
        ],
    ),
    "too many comprehensions": (
        ONE + "    if: 'inputs.a.all(x, x.all(y, y.all(z, z)))'\ninputs: {a: {type: array}}\n",
        ["5:9: steps[0].if: 3 comprehensions are nested; at most 2 are allowed"],
    ),
    "needs where steps are in order": (
        ONE + "    needs: []\nprofile: approval-runs\n",
        ["5:5: steps[0].needs: profile approval-runs runs steps strictly in order; remove it"],
    ),
    "an optional step where there are none": (
        ONE + "    required: false\nprofile: approval-runs\n",
        ["5:15: steps[0].required: profile approval-runs has no optional steps; remove it"],
    ),
    "a bar in a queue": (
        ONE + "    queue: a|b\n",
        [
            ("5:12: steps[0].queue: must be the name of a queue: letters, digits, _ and -, beginning with a letter or _;"
            " at most 100, not a|b")
        ],
    ),
    "a tool that does not fit its queue": (
        f"name: x\nsteps:\n  - id: a\n    uses: {'t' * 120}\n    queue: {'q' * 90}\n",
        ["4:11: steps[0].uses: queue and tool together have 216 characters; at most 200"],
    ),
    "a number that is none": (
        ONE + "  - id: b\n    uses: t\n    with: {a: .inf, b: 1e999, c: 99999999999999999999}\n",
        [
            "7:15: steps[1].with.a: .inf is not a valid number; put a string in quotes",
            "7:24: steps[1].with.b: 1e999 is too large for a number; put a string in quotes",
            "7:34: steps[1].with.c: the number has more than 63 bits; put a string in quotes",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_problems_are_reported_with_place_and_advice(case: str) -> None:
    text, expected = CASES[case]
    assert refused(text) == expected


def test_all_problems_are_reported_at_once() -> None:
    text = dedent("""\
        nome: x
        steps:
          - id: a
            run: [make]
            tries: 3
          - id: b
            uses: t
            needs: [c]
            with: {x: "${{ inputs.y }}"}
        """)
    assert refused(text) == [
        "1:1: a workflow needs 'name'",
        "1:1: nome: a workflow has no 'nome'; did you mean 'name'?",
        (
            "5:5: steps[0].tries: a step with 'run' has no 'tries'; there are id, needs, if, required, run, shell, env, cwd,"
            " output, timeout, retry, queue, idempotency_key, idempotent"
        ),
        "8:13: steps[1].needs[0]: there is no step 'c'",
        "9:15: steps[1].with.x: there is no input 'y'",
    ]


def test_only_the_first_of_many_problems_are_reported() -> None:
    text = ONE + "".join(f"k{i}: 1\n" for i in range(200))
    with pytest.raises(TenureError) as caught:
        load_workflow(text, "f.yaml")
    assert len(caught.value.details) == 50
    assert caught.value.message.splitlines()[-1] == "f.yaml: and 150 more"
    assert caught.value.data["problems"] == 200


@pytest.mark.clause("GOV-02")
@pytest.mark.parametrize("kind", ["run: [make]", "uses: github.label"])
def test_in_the_governed_runtime_a_step_with_effects_needs_a_key_or_idempotence(kind: str) -> None:
    text = f"name: x\nprofile: governed-runtime\nsteps:\n  - id: a\n    {kind}\n"
    assert refused(text) == [
        (
            "4:5: steps[0]: under governed-runtime a step with effects needs an idempotency_key that is stable for the step and its"
            " target, or idempotent: true"
        )
    ]
    assert len(refused(text + "    idempotent: false\n")) == 1
    keyed = load_workflow(text + "    idempotency_key: label:${{ run.id }}\n")
    assert keyed.steps[0].id == "a"
    assert keyed.steps[0].index == 0
    assert load_workflow(text + "    idempotent: true\n").steps[0].idempotent
    assert load_workflow(text.replace("governed-runtime", "agent-runs")).steps[0].idempotency_key == ""


@pytest.mark.clause("GOV-02")
def test_a_governed_step_carries_its_id_its_tool_and_its_key_into_the_plan() -> None:
    text = "name: x\nprofile: governed-runtime\ninputs: {issue: {type: integer}}\nsteps:\n  - id: label\n"
    declared = load_workflow(
        text + "    uses: github.label\n    idempotency_key: 'label:${{ run.id }}:${{ inputs.issue }}'\n"
    )
    step, again = (declared.plan({"issue": 7}, run={"id": "run_1"})[0] for _ in range(2))
    assert (step.name, step.tool, step.idempotency_key) == ("label", "github.label", "label:run_1:7")
    assert step == again, "the key is stable"
