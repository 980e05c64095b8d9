"""`python -m bench.policy`: how long a ruling of a policy with 200 rules takes, of which 20 are about the action.

    python -m bench.policy [--rules 200] [--selected 20] [--rulings 20000]

Laws:
1. Each ruling has new facts, so that no part of an earlier ruling can be reused.
2. Every ruling is checked. A wrong one ends the bench with 2.
3. It prints a JSON line for each figure: the name, the microseconds per ruling (median of five rounds), and the bar.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Annotated, Any

import typer

from bench.report import print_json
from tenure.govern.policy import CompiledPolicy, load_policy
from tenure.govern.policy.facts import time_facts

ROUNDS = 5
BAR_US = 200.0
CONDITIONS = (
    'action.target.repo.startsWith("acme/") && run.writes < 100',
    "time.weekday <= 7 && time.hour >= 0",
    'action.fields.labels.all(l, l != "secret") && size(action.fields.labels) < 10',
    'person.kind == "person" && "triage" in person.groups',
    'run.workflow == "triage" && (run.budget == null || run.spent < run.budget)',
)


def text(rules: int, selected: int) -> str:
    """A policy whose first `selected` rules are about one operation."""
    return "version: 1\nrules:\n" + "".join(
        f"  - name: rule-{i}\n"
        "    connector: github\n"
        f"    operation: {'label.add' if i < selected else f'other.{i}'}\n"
        f"    when: '{CONDITIONS[i % len(CONDITIONS)]}'\n"
        "    allow: true\n"
        for i in range(rules)
    )


def facts(n: int) -> dict[str, Any]:
    """The facts of the n-th action."""
    return {
        "action": {
            "connector": "github",
            "operation": "label.add",
            "target": {"repo": "acme/web", "issue": n},
            "fields": {"labels": ["bug", "triaged", f"n-{n}"]},
            "tier": "low",
            "key": f"run_1:main:github.label.add:{n}",
            "reverses": False,
        },
        "run": {
            "id": f"run_{n}",
            "workflow": "triage",
            "version": "1",
            "profile": "governed-runtime",
            "workspace": "main",
            "repo": None,
            "trigger": {"type": "api", "ref": None},
            "created_at": "2026-02-14T08:00:00Z",
            "attempt": 1,
            "writes": n % 90,
            "spent": n,
            "budget": None,
            "currency": "USD",
        },
        "tenant": {"id": "acme"},
        "person": {"id": "ada", "kind": "person", "roles": ["operator"], "groups": ["triage"]},
        "time": time_facts(1_771_056_000_000_000 + n),
    }


def main(
    rules: Annotated[int, typer.Option()] = 200,
    selected: Annotated[int, typer.Option()] = 20,
    rulings: Annotated[int, typer.Option(help="In each round.")] = 20_000,
) -> None:
    """Measure how long a ruling takes."""
    began = time.perf_counter()
    policy = CompiledPolicy(load_policy(text(rules, selected)), 1)
    compiled_us = (time.perf_counter() - began) * 1e6
    taken = []
    for _ in range(ROUNDS):
        given = [facts(n) for n in range(rulings)]
        began = time.perf_counter()
        made = [policy.ruling(one) for one in given]
        taken.append((time.perf_counter() - began) / rulings * 1e6)
        if any(one.outcome != "allow" or one.rules.count("allow") != selected for one in made):
            print(f"WRONG: {made[0]}", file=sys.stderr)
            raise typer.Exit(2)
    ruling_us = statistics.median(taken)
    for line in (
        {"figure": "policy ruling", "rules": rules, "selected": selected, "us": round(ruling_us, 1), "bar_us": BAR_US,
         "met": ruling_us < BAR_US, "load": round(os.getloadavg()[0], 1)},
        {"figure": "policy compiled", "rules": rules, "us": round(compiled_us, 1)},
    ):  # fmt: skip
        print_json(line)


if __name__ == "__main__":
    typer.run(main)
