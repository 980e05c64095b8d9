"""Rules: what becomes of something a hook was told.

Laws:
1. The first rule whose `when` is true decides; where none is, nothing happens. A `when` that is neither true nor false,
   or an expression without a value, stops the delivery with its reason.
2. `when` and `run` are expressions; every text in the rest may hold `${{ ... }}`. Both look at `event`, `action`, `body`
   and `headers`, by the same means and limits as workflow files: plain paths and CEL, never evaluated code.
3. What is wrong with rules is told when they are written, with its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tenure.declared import expressions, templates
from tenure.declared.expressions import Malformed
from tenure.errors import Detail, TenureError
from tenure.limits import NAME_CHARS_MAX

ROOTS = ("event", "action", "body", "headers")
RULES_MAX = 100
RULES_BYTES_MAX = 256 * 1024


class TriggerRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the run's trigger says, as templates; for GitHub what is left out is taken from the event."""

    ref: str | None = None
    repo: str | None = None
    pr_id: str | None = None
    pr_url: str | None = None
    commit: str | None = None
    correlation_id: str | None = None


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Start a run of `workflow`, or deliver `signal` to the run that `run` names."""

    when: str = "true"
    workflow: str | None = None
    version: str | None = None
    input: dict[str, Any] = {}
    labels: dict[str, str] = {}
    metadata: dict[str, Any] = {}
    priority: int = 0
    concurrency_key: str | None = None
    supersede: bool = False
    """Whether a newer run with the same key ends the older one; else it waits for it."""
    workspace: str | None = None
    profile: str | None = None
    trigger: TriggerRule = TriggerRule()
    signal: str | None = None
    run: str | None = None
    """An expression: the id of the run that gets the signal."""
    data: Any = None
    """What the signal says, as a template; nothing: the body."""


class Fitting(msgspec.Struct, frozen=True, kw_only=True):
    """The rule that fits a delivery, with its values."""

    index: int
    rule: Rule
    input: dict[str, Any]
    labels: dict[str, str]
    metadata: dict[str, Any]
    concurrency_key: str | None
    trigger: TriggerRule
    run: str | None
    data: Any


def problems(rules: list[Rule]) -> list[Detail]:
    """All that is wrong with rules, with the places."""
    found = list(_problems(rules))
    if len(rules) > RULES_MAX:
        found.insert(0, Detail("rules", f"there are {len(rules)}; at most {RULES_MAX}"))
    elif len(msgspec.json.encode(rules)) > RULES_BYTES_MAX:
        found.insert(0, Detail("rules", f"they have over {RULES_BYTES_MAX} bytes"))
    return found


def _problems(rules: list[Rule]) -> Iterator[Detail]:
    for i, rule in enumerate(rules):
        at = f"rules[{i}]"
        if (rule.workflow is None) == (rule.signal is None):
            yield Detail(at, "has either `workflow`, to start a run, or `signal` and `run`")
        if (rule.signal is None) != (rule.run is None):
            yield Detail(at, "`signal` and `run` go together: what is told, and to which run")
        if rule.supersede and rule.concurrency_key is None:
            yield Detail(f"{at}.supersede", "needs a `concurrency_key`: which runs are the same")
        for word in ("workflow", "version", "workspace", "profile", "signal"):
            text = getattr(rule, word)
            if text is not None and not (0 < len(text) <= NAME_CHARS_MAX and text.isprintable()):
                yield Detail(f"{at}.{word}", f"is printable and has 1 to {NAME_CHARS_MAX} characters")
        for word in ("when", "run"):
            text = getattr(rule, word)
            if text is not None and (problem := _malformed(text, expression=True)):
                yield Detail(f"{at}.{word}", problem)
        for word in ("input", "labels", "metadata", "concurrency_key", "trigger", "data"):
            value = msgspec.to_builtins(getattr(rule, word))
            for place, text in templates.texts(value, (word,)):
                if problem := _malformed(text):
                    yield Detail(at + _place(place), problem)


def _place(place: templates.Place) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)


def _malformed(text: str, *, expression: bool = False) -> str:
    try:
        if expression:
            expressions.parse(text, ROOTS)
        else:
            templates.parse(text, ROOTS)
    except Malformed as fault:
        return str(fault)
    return ""


def fitting(rules: list[Rule], scope: Mapping[str, Any]) -> Fitting | None:
    """The first rule that fits, with its values; EXPRESSION_FAILED where an expression has none. All of them share one budget."""
    with expressions.shared_budget():
        return _fitting(rules, scope)


def _fitting(rules: list[Rule], scope: Mapping[str, Any]) -> Fitting | None:
    for i, rule in enumerate(rules):
        try:
            if not _is_true(rule.when, scope):
                continue
            return _values(i, rule, scope)
        except TenureError as refused:
            raise TenureError(refused.code, f"rules[{i}]: {refused.message}") from refused
        except Malformed as fault:
            raise TenureError("EXPRESSION_FAILED", f"rules[{i}]: {fault}") from fault
    return None


def _is_true(when: str, scope: Mapping[str, Any]) -> bool:
    found = expressions.parse(when, ROOTS).value(scope)
    if not isinstance(found, bool):
        raise expressions.failed(when, "`when` is neither true nor false")
    return found


def _values(index: int, rule: Rule, scope: Mapping[str, Any]) -> Fitting:
    def filled(value: Any) -> Any:
        return templates.evaluate(value, scope, ROOTS)

    run = None if rule.run is None else expressions.parse(rule.run, ROOTS).value(scope)
    if rule.run is not None and not isinstance(run, str):
        raise expressions.failed(rule.run, "`run` is not a run's id")
    trigger = {word: _text(filled(text)) for word, text in msgspec.to_builtins(rule.trigger).items()}
    key = None if rule.concurrency_key is None else _text(filled(rule.concurrency_key))
    return Fitting(
        index=index,
        rule=rule,
        input=filled(rule.input),
        labels={name: _text(filled(text)) or "" for name, text in rule.labels.items()},
        metadata=filled(rule.metadata),
        concurrency_key=key,
        trigger=msgspec.convert(trigger, TriggerRule),
        run=run,
        data=scope["body"] if rule.data is None else filled(rule.data),
    )


def _text(value: Any) -> str | None:
    return None if value is None else templates.as_text(value)
