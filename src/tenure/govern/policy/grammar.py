"""The grammar of a policy file, as data: the reader and the published schema follow from it."""

from __future__ import annotations

from typing import Any

from tenure.expressions.schema import (
    Boolean,
    Duration,
    Either,
    Integer,
    JsonValue,
    ListOf,
    Record,
    SchemaField,
    Text,
    Variants,
)
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
"""How long people have if a rule does not say."""

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"
_NAME_SAYS = "letters, digits, and . _ - between them; at most 100"
_name = Text(what="a name", pattern=_NAME, says=_NAME_SAYS, most=100)
_operation = Text(
    what="an operation", pattern=_NAME, says=_NAME_SAYS, most=100, doc="For example `label.add`; no patterns."
)
_why = Text(what="a reason", most=LABEL_CHARS_MAX)
_tier = Text(what="a tier", choices=TIERS, doc="Default: the action's own.")

APPROVAL = Record(
    what="an approval",
    doc="People must approve first.",
    fields=(
        SchemaField(name="tier", shape=_tier),
        SchemaField(
            name="people",
            shape=Integer(least=1, most=POLICY_PEOPLE_MAX, doc="How many people must approve. Default: 1."),
        ),
        SchemaField(
            name="group",
            shape=Text(
                what="a group",
                most=NAME_CHARS_MAX,
                doc="The group that all approvers must belong to. Default: any approver.",
            ),
        ),
        SchemaField(name="within", shape=Duration(doc="How long people have. Default: 1d.")),
    ),
)

RULE = Variants(
    what="a rule",
    common=(
        SchemaField(name="name", shape=_name, required=True),
        SchemaField(
            name="connector",
            shape=Text(what="a connector", pattern=_NAME, says=_NAME_SAYS, most=100, doc="No patterns."),
            required=True,
        ),
        SchemaField(
            name="operation",
            shape=Either(
                listed=ListOf(item=_operation, least=1, most=100, what="a list of operations"),
                single=_operation,
            ),
            required=True,
        ),
        SchemaField(
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
            SchemaField(name="allow", shape=Boolean(doc="`true`.")),
            SchemaField(name="why", shape=_why),
        ),
        "deny": (SchemaField(name="deny", shape=_why),),
        "approval": (
            SchemaField(name="approval", shape=APPROVAL),
            SchemaField(name="why", shape=_why),
        ),
    },
)

CASE = Record(
    what="a test",
    doc="The expected ruling on an action.",
    fields=(
        SchemaField(name="name", shape=Text(what="a name", most=NAME_CHARS_MAX), required=True),
        SchemaField(
            name="action",
            shape=Text(what="an action", most=NAME_CHARS_MAX, doc="`connector.operation`."),
            required=True,
        ),
        SchemaField(name="target", shape=JsonValue(kind="map")),
        SchemaField(name="fields", shape=JsonValue(kind="map")),
        SchemaField(name="tier", shape=_tier),
        SchemaField(name="key", shape=Text(most=NAME_CHARS_MAX)),
        SchemaField(name="reverses", shape=Boolean(doc="Whether it undoes another action.")),
        SchemaField(name="run", shape=JsonValue(kind="map")),
        SchemaField(name="tenant", shape=JsonValue(kind="map")),
        SchemaField(name="person", shape=JsonValue(kind="map")),
        SchemaField(name="time", shape=JsonValue(kind="map")),
        SchemaField(
            name="expect",
            shape=Text(what="an outcome", choices=("allow", "deny", "needs_approval")),
            required=True,
        ),
        SchemaField(
            name="rules",
            shape=ListOf(item=_name, most=POLICY_RULES_MAX, doc="The rules that must apply. Default: any."),
        ),
        SchemaField(
            name="error",
            shape=Text(
                what="a code",
                choices=("POLICY_ERROR", "POLICY_NO_RULE"),
                doc="Why it is denied, if no rule denies it.",
            ),
        ),
        SchemaField(name="approval", shape=APPROVAL),
    ),
)

POLICY = Record(
    what="a policy",
    fields=(
        SchemaField(
            name="version",
            shape=Integer(least=FORMAT, most=FORMAT, doc="The version of this format."),
            required=True,
        ),
        SchemaField(
            name="rules",
            shape=ListOf(item=RULE, least=1, most=POLICY_RULES_MAX, what="a list of rules"),
            required=True,
        ),
        SchemaField(name="tests", shape=ListOf(item=CASE, most=POLICY_CASES_MAX, what="a list of tests")),
    ),
)


def policy_json_schema() -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tenure policy",
        **POLICY.schema(),
    }
