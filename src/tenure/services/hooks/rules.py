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

from tenure.errors import Detail, TenureError
from tenure.expressions import expression as expressions
from tenure.expressions import templates
from tenure.expressions.expression import MalformedExpression
from tenure.limits import NAME_CHARS_MAX
from tenure.shapes.hooks import HookRule, HookTrigger

ROOTS = ("event", "action", "body", "headers")
RULES_MAX = 100
RULES_BYTES_MAX = 256 * 1024


class RuleMatch(msgspec.Struct, frozen=True, kw_only=True):
    """The rule that fits a delivery, with its values."""

    index: int
    rule: HookRule
    input: dict[str, Any]
    labels: dict[str, str]
    metadata: dict[str, Any]
    concurrency_key: str | None
    trigger: HookTrigger
    run: str | None
    data: Any


def find_problems(rules: list[HookRule]) -> list[Detail]:
    """All that is wrong with rules, with the places."""
    found = list(_problems(rules))
    if len(rules) > RULES_MAX:
        found.insert(0, Detail("rules", f"there are {len(rules)}; at most {RULES_MAX}"))
    elif len(msgspec.json.encode(rules)) > RULES_BYTES_MAX:
        found.insert(0, Detail("rules", f"they have over {RULES_BYTES_MAX} bytes"))
    return found


def _problems(rules: list[HookRule]) -> Iterator[Detail]:
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
            for place, text in templates.find_templates(value, (word,)):
                if problem := _malformed(text):
                    yield Detail(at + _place(place), problem)


def _place(place: templates.TemplatePlace) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)


def _malformed(text: str, *, expression: bool = False) -> str:
    try:
        if expression:
            expressions.parse_expression(text, ROOTS)
        else:
            templates.parse_template(text, ROOTS)
    except MalformedExpression as fault:
        return str(fault)
    return ""


def match_rule(rules: list[HookRule], scope: Mapping[str, Any]) -> RuleMatch | None:
    """The first rule that fits, with its values; EXPRESSION_FAILED where an expression has none. All of them share one budget."""
    with expressions.shared_budget():
        return _fitting(rules, scope)


def _fitting(rules: list[HookRule], scope: Mapping[str, Any]) -> RuleMatch | None:
    for i, rule in enumerate(rules):
        try:
            if not _is_true(rule.when, scope):
                continue
            return _values(i, rule, scope)
        except TenureError as refused:
            raise TenureError(refused.code, f"rules[{i}]: {refused.message}") from refused
        except MalformedExpression as fault:
            raise TenureError("EXPRESSION_FAILED", f"rules[{i}]: {fault}") from fault
    return None


def _is_true(when: str, scope: Mapping[str, Any]) -> bool:
    found = expressions.parse_expression(when, ROOTS).value(scope)
    if not isinstance(found, bool):
        raise expressions.expression_error(when, "`when` is neither true nor false")
    return found


def _values(index: int, rule: HookRule, scope: Mapping[str, Any]) -> RuleMatch:
    def filled(value: Any) -> Any:
        return templates.evaluate_templates(value, scope, ROOTS)

    run = None if rule.run is None else expressions.parse_expression(rule.run, ROOTS).value(scope)
    if rule.run is not None and not isinstance(run, str):
        raise expressions.expression_error(rule.run, "`run` is not a run's id")
    trigger = {word: _text(filled(text)) for word, text in msgspec.to_builtins(rule.trigger).items()}
    key = None if rule.concurrency_key is None else _text(filled(rule.concurrency_key))
    return RuleMatch(
        index=index,
        rule=rule,
        input=filled(rule.input),
        labels={name: _text(filled(text)) or "" for name, text in rule.labels.items()},
        metadata=filled(rule.metadata),
        concurrency_key=key,
        trigger=msgspec.convert(trigger, HookTrigger),
        run=run,
        data=scope["body"] if rule.data is None else filled(rule.data),
    )


def _text(value: Any) -> str | None:
    return None if value is None else templates.format_value(value)
