"""What a policy file is made of, as data: reading it and the published schema follow from this."""

from __future__ import annotations

from typing import Any

from tenure.declared.shapes import Either, Field, Flag, Json, Length, ListOf, Record, Text, Variants, Whole
from tenure.govern.policy.model import TIERS
from tenure.limits import (
    EXPRESSION_BYTES_MAX,
    LABEL_CHARS_MAX,
    NAME_CHARS_MAX,
    POLICY_CASES_MAX,
    POLICY_PEOPLE_MAX,
    POLICY_RULES_MAX,
)

FORMAT = 1
WITHIN_SECONDS = 86_400.0
"""How long people have, where a rule does not say."""

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"
_NAME_SAYS = "letters, digits, and . _ - between them; at most 100"
_name = Text(what="a name", pattern=_NAME, says=_NAME_SAYS, most=100)
_operation = Text(
    what="an operation", pattern=_NAME, says=_NAME_SAYS, most=100, doc="As in `label.add`; no patterns."
)
_why = Text(what="a reason", most=LABEL_CHARS_MAX)
_tier = Text(what="a tier", choices=TIERS, doc="Default: the action's own.")

APPROVAL = Record(
    what="an approval",
    doc="People must say yes first.",
    fields=(
        Field(name="tier", shape=_tier),
        Field(
            name="people",
            shape=Whole(least=1, most=POLICY_PEOPLE_MAX, doc="How many must say yes. Default: 1."),
        ),
        Field(
            name="group",
            shape=Text(
                what="a group",
                most=NAME_CHARS_MAX,
                doc="The group that everybody who says yes belongs to. Default: any approver.",
            ),
        ),
        Field(name="within", shape=Length(doc="How long they have. Default: 1d.")),
    ),
)

RULE = Variants(
    what="a rule",
    common=(
        Field(name="name", shape=_name, required=True),
        Field(
            name="connector",
            shape=Text(what="a connector", pattern=_NAME, says=_NAME_SAYS, most=100, doc="No patterns."),
            required=True,
        ),
        Field(
            name="operation",
            shape=Either(
                listed=ListOf(item=_operation, least=1, most=100, what="a list of operations"),
                single=_operation,
            ),
            required=True,
        ),
        Field(
            name="when",
            shape=Text(
                what="a condition",
                most=EXPRESSION_BYTES_MAX * 2,
                lines=True,
                doc="CEL over action, run, tenant, person and time. Default: always.",
            ),
        ),
    ),
    kinds={
        "allow": (
            Field(name="allow", shape=Flag(doc="`true`.")),
            Field(name="why", shape=_why),
        ),
        "deny": (Field(name="deny", shape=_why),),
        "approval": (
            Field(name="approval", shape=APPROVAL),
            Field(name="why", shape=_why),
        ),
    },
)

CASE = Record(
    what="a test",
    doc="What the policy must say of an action.",
    fields=(
        Field(name="name", shape=Text(what="a name", most=NAME_CHARS_MAX), required=True),
        Field(
            name="action",
            shape=Text(what="an action", most=NAME_CHARS_MAX, doc="`connector.operation`."),
            required=True,
        ),
        Field(name="target", shape=Json(kind="map")),
        Field(name="fields", shape=Json(kind="map")),
        Field(name="tier", shape=_tier),
        Field(name="key", shape=Text(most=NAME_CHARS_MAX)),
        Field(name="reverses", shape=Flag(doc="Whether it takes another action back.")),
        Field(name="run", shape=Json(kind="map")),
        Field(name="tenant", shape=Json(kind="map")),
        Field(name="person", shape=Json(kind="map")),
        Field(name="time", shape=Json(kind="map")),
        Field(
            name="expect",
            shape=Text(what="an outcome", choices=("allow", "deny", "needs_approval")),
            required=True,
        ),
        Field(
            name="rules",
            shape=ListOf(item=_name, most=POLICY_RULES_MAX, doc="The rules that speak. Default: whichever."),
        ),
        Field(
            name="error",
            shape=Text(
                what="a code",
                choices=("POLICY_ERROR", "POLICY_NO_RULE"),
                doc="Why it is denied, if no rule says so.",
            ),
        ),
        Field(name="approval", shape=APPROVAL),
    ),
)

POLICY = Record(
    what="a policy",
    fields=(
        Field(
            name="version",
            shape=Whole(least=FORMAT, most=FORMAT, doc="Of this format."),
            required=True,
        ),
        Field(
            name="rules",
            shape=ListOf(item=RULE, least=1, most=POLICY_RULES_MAX, what="a list of rules"),
            required=True,
        ),
        Field(name="tests", shape=ListOf(item=CASE, most=POLICY_CASES_MAX, what="a list of tests")),
    ),
)


def schema() -> dict[str, Any]:
    """The format as JSON Schema, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tenure policy",
        **POLICY.schema(),
    }
