"""Rules of a hook: which run a delivery starts or signals.

Laws:
1. The first rule whose `when` is true applies. If there is none, nothing happens. If a `when` is neither true nor false, or an
   expression has no value, the delivery fails with the reason.
2. `when` and `run` are expressions, and every other text may contain `${{ ... }}`. Both can use `event`, `action`, `body` and `headers`,
   with the syntax and limits of workflow files: paths and CEL, never code.
3. Rules are checked when they are saved. Each problem names its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
    index: int
    rule: HookRule
    input: dict[str, Any]
    labels: dict[str, str]
    metadata: dict[str, Any]
    concurrency_key: str | None
    trigger: HookTrigger
    run: str | None
    data: Any


def find_problems(kind: str, rules: list[HookRule]) -> list[Detail]:
    return list(_problems(kind, rules))


def _problems(kind: str, rules: list[HookRule]) -> Iterator[Detail]:
    if len(rules) > RULES_MAX:
        yield Detail("rules", f"there are {len(rules)} rules; at most {RULES_MAX} are allowed")
    elif len(msgspec.json.encode(rules)) > RULES_BYTES_MAX:
        yield Detail("rules", f"the rules have more than {RULES_BYTES_MAX} bytes")
    for i, rule in enumerate(rules):
        at = f"rules[{i}]"
        if [rule.workflow is not None, rule.signal is not None, rule.ci].count(True) != 1:
            yield Detail(at, "needs either `workflow`, to start a run, or `signal` and `run`, or `ci: true`")
        if rule.ci and kind != "github":
            yield Detail(f"{at}.ci", f"only events of GitHub start CI runs, and this hook's kind is {kind}")
        if (rule.signal is None) != (rule.run is None):
            yield Detail(
                at, "`signal` and `run` must be set together: the event, and the run that receives it"
            )
        if rule.supersede and rule.concurrency_key is None:
            yield Detail(f"{at}.supersede", "needs a `concurrency_key`")
        for word in ("workflow", "version", "workspace", "profile", "signal"):
            text = getattr(rule, word)
            if text is not None and not (0 < len(text) <= NAME_CHARS_MAX and text.isprintable()):
                yield Detail(f"{at}.{word}", f"must have 1 to {NAME_CHARS_MAX} printable characters")
        for word in ("when", "run"):
            text = getattr(rule, word)
            if text is not None and (problem := _malformed(expressions.parse_expression, text)):
                yield Detail(f"{at}.{word}", problem)
        for word in ("input", "labels", "metadata", "concurrency_key", "trigger", "data"):
            value = msgspec.to_builtins(getattr(rule, word))
            for place, text in templates.find_templates(value, (word,)):
                if problem := _malformed(templates.parse_template, text):
                    yield Detail(at + _format_place(place), problem)


def _format_place(place: templates.TemplatePlace) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)


def _malformed(parse: Callable[[str, tuple[str, ...]], object], text: str) -> str:
    try:
        parse(text, ROOTS)
    except MalformedExpression as fault:
        return str(fault)
    return ""


def match_rule(rules: list[HookRule], scope: Mapping[str, Any]) -> RuleMatch | None:
    """The first rule that matches, with its values; EXPRESSION_FAILED if an expression has no value. All expressions share one budget."""
    with expressions.shared_budget():
        for i, rule in enumerate(rules):
            try:
                if _is_true(rule.when, scope):
                    return _evaluate(i, rule, scope)
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


def _evaluate(index: int, rule: HookRule, scope: Mapping[str, Any]) -> RuleMatch:
    def filled(value: Any) -> Any:
        return templates.evaluate_templates(value, scope, ROOTS)

    run = None if rule.run is None else expressions.parse_expression(rule.run, ROOTS).value(scope)
    if rule.run is not None and not isinstance(run, str):
        raise expressions.expression_error(rule.run, "`run` is not a run's id")
    trigger = {word: _text(filled(text)) for word, text in msgspec.to_builtins(rule.trigger).items()}
    return RuleMatch(
        index=index,
        rule=rule,
        input=filled(rule.input),
        labels={name: _text(filled(text)) or "" for name, text in rule.labels.items()},
        metadata=filled(rule.metadata),
        concurrency_key=None if rule.concurrency_key is None else _text(filled(rule.concurrency_key)),
        trigger=msgspec.convert(trigger, HookTrigger),
        run=run,
        data=scope["body"] if rule.data is None else filled(rule.data),
    )


def _text(value: Any) -> str | None:
    return None if value is None else templates.format_value(value)
