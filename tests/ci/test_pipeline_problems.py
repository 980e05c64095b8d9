"""Pipelines with problems: each is found, with its line and column."""

import pytest

from tenure.ci.pipeline import load_pipeline
from tenure.errors import TenureError
from tests.ci.plans import plan

HEAD = "jobs:\n  a:\n    run: x\n"
CASES = {
    "no YAML": ("jobs: [", "2:1", "this is not YAML"),
    "no jobs": ("jobs: {}\n", "1:1", "at least one job"),
    "a misspelled key": (HEAD + "    pahts: [x]\n", "4:5", "did you mean 'paths'?"),
    "no command": ("jobs:\n  a:\n    env: {A: b}\n", "3:5", "a job needs one of run, commands"),
    "an unknown need": (HEAD + "  b:\n    run: x\n    needs: [aa]\n", "6:13", "there is no job 'aa'; did you mean 'a'?"),
    "a cycle": (
        "jobs:\n  a: {run: x, needs: [c]}\n  b: {run: x, needs: [a]}\n  c: {run: x, needs: [b]}\n",
        "2:15",
        "the needs form a cycle: a -> c -> b -> a",
    ),
    "a path that leaves": (HEAD + "    paths: [../x]\n", "4:13", "it would leave the workspace"),
    "an absolute glob": (HEAD + "    inputs:\n      - src\n      - /etc/**\n", "6:9", "must be relative"),
    "an artifact that leaves": (HEAD + "    artifacts: [{name: x, paths: [a/../../b]}]\n", "4:35", "leave the workspace"),
    "a folder that leaves": (HEAD + "    cwd: ../..\n", "4:10", "leave the workspace"),
    "a project that leaves": (HEAD + "projects: {../x: []}\n", "4:12", "leave the workspace"),
    "an unknown project": (HEAD + "    project: libs\n", "4:14", "there is no project 'libs'"),
    "an unknown dependency": (HEAD + "projects: {a: [b]}\n", "4:16", "there is no project 'b'"),
    "an expression in a script": ("jobs:\n  a:\n    run: echo ${{ change.branch }}\n", "3:10", "put the value into env"),
    "an expression in a shell": (
        'jobs:\n  a:\n    run: [sh, -c, "echo ${{ change.branch }}"]\n', "3:19", "put the value into env",
    ),
    "an unknown fact": (HEAD + "    if: change.brunch == 'x'\n", "4:9", "there is no change.brunch"),
    "an unknown root": (HEAD + "    if: env.X == 'x'\n", "4:9", "there is no 'env'"),
    "a condition that is no boolean": (HEAD + "    if: change.branch\n", "4:9", "must be true or false"),
    "a condition without a value": (HEAD + "    if: change.files[3] == 'x'\n", "4:9", ""),
    "an unknown axis": (HEAD + "    env: {A: '${{ matrix.os }}'}\n", "4:14", "matrix has no axis 'os'"),
    "a matrix of maps": (HEAD + "    matrix: {os: [{a: b}]}\n", "4:19", "a string, a number or a boolean"),
    "an excluded axis": (HEAD + "    matrix: {os: [a], exclude: [{py: 1}]}\n", "4:33", "no axis 'py'"),
    "two equal combinations": (HEAD + "    matrix: {os: [1, '1']}\n", "4:5", "twice"),
    "a matrix without end": (
        HEAD + "    matrix: {a: [1, 2, 3, 4, 5, 6, 7, 8, 9], b: [1, 2, 3, 4, 5, 6, 7, 8, 9], c: [1, 2, 3, 4]}\n", "4:5", "324 combinations",
    ),
    "an artifact of a job that is not needed": (
        HEAD + "    downloads: [{job: b, artifact: x}]\n", "4:23", "must be in the needs",
    ),
    "a download of nothing": (
        HEAD + "  b: {run: x, needs: [a], downloads: [{job: a, artifact: out}]}\n", "4:58", "has no artifact 'out'",
    ),
    "an anchor": ("jobs: &a {}\n", "1:7", "anchors and aliases are not allowed"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_problem_has_its_line_and_column(case: str) -> None:
    text, place, says = CASES[case]
    with pytest.raises(TenureError) as failed:
        plan(text, ["x"])
    assert failed.value.code == "PIPELINE_INVALID"
    found = [(detail.path, detail.problem) for detail in failed.value.details]
    assert found[0][0] == f".tenure/ci.yaml:{place}"
    assert says in found[0][1]


def test_a_hundred_thousand_jobs_are_refused_before_they_are_made() -> None:
    axes = "matrix: {a: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16], b: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]}"
    text = "jobs:\n" + "".join(f"  j{n}: {{run: x, {axes}}}\n" for n in range(417))
    with pytest.raises(TenureError, match="the pipeline has 100080 jobs; at most 10000 are allowed"):
        load_pipeline(text, "ci.yaml")


def test_needs_that_matrices_multiply_are_bounded() -> None:
    axis = f"matrix: {{n: [{', '.join(map(str, range(250)))}]}}"
    text = "jobs:\n" + "".join(
        f"  j{n}: {{run: x, {axis}, needs: [{', '.join(f'j{m}' for m in range(n))}]}}\n" for n in range(5)
    )
    with pytest.raises(TenureError, match="needs, matrices included"):
        plan(text, ["x"])


def test_scripts_that_a_matrix_multiplies_are_bounded() -> None:
    text = f"jobs: {{a: {{run: '{'x' * 200_000}', matrix: {{n: [{', '.join(map(str, range(100)))}]}}}}}}"
    with pytest.raises(TenureError, match="bytes; at most 8388608 are allowed"):
        plan(text, ["x"])


def test_conditions_share_a_budget() -> None:
    def conditions(number: int) -> str:
        jobs = (
            f"  j{n}: {{run: x, if: 'change.files.exists(f, f.contains(\"x{n}\"))'}}\n" for n in range(number)
        )
        return "jobs:\n" + "".join(jobs)

    files = [f"src/{n:04}.py" for n in range(1_000)]
    plan(conditions(2), files)
    with pytest.raises(TenureError, match="together") as failed:
        plan(conditions(400), files)
    assert failed.value.code == "PIPELINE_INVALID"
