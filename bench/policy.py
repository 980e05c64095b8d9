"""`python -m bench.policy`: what it takes to ask a policy of 200 rules, of which 20 are about the action.

    python -m bench.policy [--rules 200] [--selected 20] [--rulings 20000]

Laws:
1. Each ruling has facts of its own, which no ruling before it has seen: nothing of a ruling can be kept.
2. Every ruling is looked at: one that does not say what it must ends the bench with 2.
3. One JSON line for each figure, on stdout: the name, microseconds for a ruling (median of five rounds), and the bar.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Annotated, Any

import msgspec
import typer

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
    """A policy with so many rules, the first of which are about one operation."""
    lines = ["version: 1", "rules:"]
    for i in range(rules):
        operation = "label.add" if i < selected else f"other.{i}"
        lines += [
            f"  - name: rule-{i}",
            "    connector: github",
            f"    operation: {operation}",
            f"    when: '{CONDITIONS[i % len(CONDITIONS)]}'",
            "    allow: true",
        ]
    return "\n".join(lines) + "\n"


def facts(n: int) -> dict[str, Any]:
    """Of the n-th action."""
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
    """Measure it."""
    began = time.perf_counter()
    policy = CompiledPolicy(load_policy(text(rules, selected)), 1)
    compiled_us = (time.perf_counter() - began) * 1e6
    taken = []
    for _ in range(ROUNDS):
        given = [facts(n) for n in range(rulings)]
        began = time.perf_counter()
        said = [policy.ruling(one) for one in given]
        taken.append((time.perf_counter() - began) / rulings * 1e6)
        if any(one.outcome != "allow" or one.rules.count("allow") != selected for one in said):
            print(f"WRONG: {said[0]}", file=sys.stderr)
            raise typer.Exit(2)
    ruling_us = statistics.median(taken)
    for line in (
        {"figure": "policy ruling", "rules": rules, "selected": selected, "us": round(ruling_us, 1), "bar_us": BAR_US,
         "met": ruling_us < BAR_US, "load": round(os.getloadavg()[0], 1)},
        {"figure": "policy compiled", "rules": rules, "us": round(compiled_us, 1)},
    ):  # fmt: skip
        print(msgspec.json.encode(line).decode())


if __name__ == "__main__":
    typer.run(main)
