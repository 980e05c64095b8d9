"""The grammar of a workflow file. To add a key, add a line here: validation and the published schema follow from it."""

from __future__ import annotations

from typing import Any

from tenure import money
from tenure.expressions.schema import (
    Boolean,
    Duration,
    Either,
    Integer,
    JsonValue,
    ListOf,
    MapOf,
    Number,
    Record,
    SchemaField,
    Text,
    Variants,
)
from tenure.expressions.yaml_document import FileProblems, YamlNode, YamlPath
from tenure.kernel import profiles
from tenure.kernel.commands import DEFAULT_PROFILE
from tenure.kernel.profile import NAME_PATTERN
from tenure.limits import (
    EXPRESSION_BYTES_MAX,
    INTEGER_MAX,
    LABEL_CHARS_MAX,
    RETRIES_MAX,
    WORKFLOW_BYTES_MAX,
    WORKFLOW_STEPS_MAX,
)

TYPES = ("string", "integer", "number", "boolean", "array", "object")

_WORD = r"[A-Za-z_][A-Za-z0-9_]{0,99}"
_WORD_SAYS = "letters, digits and underscores, not beginning with a digit"
_ID = r"[A-Za-z_][A-Za-z0-9_-]{0,99}"
_ID_SAYS = "letters, digits, _ and -, beginning with a letter or _; at most 100"
_DOTTED = r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,149}"
_DOTTED_SAYS = "letters, digits, and . _ - / between them; at most 150"

_name = Text(what="a name", pattern=_DOTTED, says=_DOTTED_SAYS, most=150)
_queue = Text(
    what="the name of a queue",
    pattern=_ID,
    says=_ID_SAYS,
    most=100,
    doc="The queue whose workers take the step.",
)
_seconds = Duration()


class _Profile(Text, frozen=True, kw_only=True):
    """The name of a profile. Custom profiles are known when a file is read; the published schema cannot list them."""

    def read(self, node: YamlNode, path: YamlPath, problems: FileProblems) -> Any:
        return Text(what=self.what, choices=profiles.names()).read(node, path, problems)

    def schema(self) -> dict[str, Any]:
        """A built-in name, for editors to offer, or any valid name, for custom profiles."""
        return {
            "anyOf": [
                {"enum": [*profiles.built_in_names()]},
                {"type": "string", "pattern": f"^(?:{NAME_PATTERN})$"},
            ]
        }


RETRY = Record(
    what="retry",
    doc="How often a failed step is retried, and after which delays.",
    fields=(
        SchemaField(
            name="max",
            shape=Integer(
                least=0, most=RETRIES_MAX, doc="Retries after the first attempt. Default: the profile's."
            ),
        ),
        SchemaField(
            name="backoff",
            shape=ListOf(
                item=Duration(zero=True),
                least=1,
                most=100,
                what="a list of delays",
                doc="The delay before each retry; the last delay repeats. Default: the profile's.",
            ),
        ),
        SchemaField(
            name="jitter",
            shape=Number(
                least=0.0,
                most=1.0,
                doc="The largest random change of a delay, as a fraction of it. Default: 0.2.",
            ),
        ),
    ),
)

INPUT = Record(
    what="an input",
    fields=(
        SchemaField(name="type", shape=Text(what="a type", choices=TYPES), required=True),
        SchemaField(
            name="default",
            shape=JsonValue(doc="Without a default the input is required; null makes it optional."),
        ),
        SchemaField(name="description", shape=Text(most=LABEL_CHARS_MAX, lines=True)),
        SchemaField(name="enum", shape=ListOf(item=JsonValue(), least=1, doc="The allowed values.")),
        SchemaField(
            name="items", shape=Text(what="a type", choices=TYPES, doc="For an array: the type of its items.")
        ),
        SchemaField(name="minimum", shape=Number(doc="For a number.")),
        SchemaField(name="maximum", shape=Number(doc="For a number.")),
        SchemaField(
            name="min_length", shape=Integer(least=0, most=INTEGER_MAX, doc="For a string or an array.")
        ),
        SchemaField(
            name="max_length", shape=Integer(least=0, most=INTEGER_MAX, doc="For a string or an array.")
        ),
        SchemaField(
            name="secret",
            shape=Boolean(
                doc="For a string: it must be a reference to a secret, `env:NAME` or `file:/PATH`."
            ),
        ),
    ),
)

INPUTS = MapOf(
    key=_WORD,
    says=_WORD_SAYS,
    value=INPUT,
    most=100,
    doc="The inputs of a run; checked when it is submitted.",
)

DEFAULTS = Record(
    what="defaults",
    doc="Values for steps that do not set their own.",
    fields=(
        SchemaField(name="retry", shape=RETRY),
        SchemaField(name="timeout", shape=_seconds),
        SchemaField(name="queue", shape=_queue),
    ),
)

_COMMON = (
    SchemaField(
        name="id",
        shape=Text(what="an id", pattern=_ID, says=_ID_SAYS, most=100, doc="Unique and stable."),
        required=True,
    ),
    SchemaField(
        name="needs",
        shape=ListOf(
            item=Text(what="a step's id"),
            most=WORKFLOW_STEPS_MAX,
            what="a list of step ids",
            doc="Steps that must end first. Default: the previous step; []: none.",
        ),
    ),
    SchemaField(
        name="if",
        shape=Text(
            what="an expression",
            most=EXPRESSION_BYTES_MAX,
            loose=True,
            lines=True,
            doc="CEL; if it is false, the step succeeds immediately with the output null.",
        ),
    ),
    SchemaField(
        name="required", shape=Boolean(doc="false: the run may succeed without this step. Default: true.")
    ),
)

_WORK = (
    SchemaField(name="timeout", shape=Duration(doc="For one attempt.")),
    SchemaField(name="retry", shape=RETRY),
    SchemaField(name="queue", shape=_queue),
    SchemaField(
        name="idempotency_key",
        shape=Text(
            most=LABEL_CHARS_MAX,
            template=True,
            doc="The same for every attempt of the same effect. Default: the run's id and the step's id.",
        ),
    ),
    SchemaField(
        name="idempotent",
        shape=Boolean(doc="true: doing it twice has the same effect as doing it once. Default: false."),
    ),
)

_WITH = SchemaField(
    name="with", shape=JsonValue(kind="map", doc="The arguments; strings may contain ${{ expressions }}.")
)

APPROVAL = Record(
    what="approval",
    doc="A question to people.",
    fields=(
        SchemaField(
            name="title",
            shape=Text(
                most=LABEL_CHARS_MAX,
                template=True,
                doc="The question. It is fixed when the run is submitted, so it can only use inputs.",
            ),
            required=True,
        ),
        SchemaField(
            name="action",
            shape=Text(
                doc="A short name for the history, which is kept permanently. Default: the step's id."
            ),
        ),
        SchemaField(
            name="tier", shape=Text(what="a tier", choices=("low", "med", "high"), doc="Default: low.")
        ),
        SchemaField(
            name="people", shape=Integer(least=1, most=100, doc="How many people must approve. Default: 1.")
        ),
        SchemaField(
            name="group",
            shape=Text(doc="The group that approvers must belong to. Default: anyone who may approve."),
        ),
        SchemaField(name="within", shape=_seconds),
    ),
)

WAIT = Record(
    what="wait",
    doc="A wait for an event or for an amount of time.",
    fields=(
        SchemaField(name="event", shape=Text(template=True, doc="The name of the event.")),
        SchemaField(
            name="source",
            shape=Text(template=True, doc="The expected origin of the event; shown, but not compared."),
        ),
        SchemaField(name="within", shape=Duration(doc="How long to wait for the event.")),
        SchemaField(name="time", shape=Duration(doc="Instead of an event: how long to wait.")),
    ),
)

_ARGUMENT = Text(what="an argument", least=0, most=WORKFLOW_BYTES_MAX, template=True, loose=True, lines=True)

STEP = Variants(
    what="a step",
    common=_COMMON,
    kinds={
        "run": (
            SchemaField(
                name="run",
                shape=Either(
                    listed=ListOf(item=_ARGUMENT, least=1, what="a list of arguments"),
                    single=Text(
                        what="a command",
                        most=WORKFLOW_BYTES_MAX,
                        lines=True,
                        doc="Split into arguments; no shell.",
                    ),
                    doc="A command. It runs without a shell unless `shell: true` is set.",
                ),
                required=True,
            ),
            SchemaField(
                name="shell",
                shape=Boolean(
                    doc="Pass the text to `sh -c`. It cannot contain expressions then; put values into env."
                ),
            ),
            SchemaField(
                name="env",
                shape=MapOf(
                    key=_WORD,
                    says=_WORD_SAYS,
                    value=_ARGUMENT,
                    most=500,
                    doc="Environment variables, besides PATH, HOME and LANG; the worker passes on no others.",
                ),
            ),
            SchemaField(
                name="cwd",
                shape=Text(what="a folder", most=LABEL_CHARS_MAX, template=True, doc="The working folder."),
            ),
            SchemaField(
                name="output",
                shape=Text(
                    what="an output",
                    choices=("text", "json"),
                    doc="json: the command prints JSON, which becomes `json` in the step's output. Default: text.",
                ),
            ),
            *_WORK,
        ),
        "uses": (
            SchemaField(
                name="uses",
                shape=Text(
                    what="the name of a tool",
                    pattern=_DOTTED,
                    says=_DOTTED_SAYS,
                    most=150,
                    doc="A registered tool.",
                ),
                required=True,
            ),
            _WITH,
            *_WORK,
        ),
        "workflow": (
            SchemaField(
                name="workflow",
                shape=Text(
                    what="the name of a workflow",
                    pattern=_DOTTED,
                    says=_DOTTED_SAYS,
                    most=150,
                    doc="A child workflow.",
                ),
                required=True,
            ),
            _WITH,
            *_WORK,
        ),
        "approval": (SchemaField(name="approval", shape=APPROVAL, required=True),),
        "wait": (SchemaField(name="wait", shape=WAIT, required=True),),
    },
)

PLANNER = Record(
    what="planner",
    doc="In place of steps: the tool that plans each run. It gets the inputs and returns the list of the run's steps.",
    fields=(
        SchemaField(
            name="uses",
            shape=Text(
                what="the name of a tool",
                pattern=_DOTTED,
                says=_DOTTED_SAYS,
                most=150,
                doc="A registered tool.",
            ),
            required=True,
        ),
        SchemaField(name="timeout", shape=Duration(doc="For one attempt.")),
        SchemaField(name="retry", shape=RETRY),
        SchemaField(name="queue", shape=_queue),
    ),
)

WORKFLOW = Record(
    what="a workflow",
    doc="A declared workflow of Tenure.",
    fields=(
        SchemaField(name="name", shape=_name, required=True),
        SchemaField(
            name="version",
            shape=Text(
                what="a version",
                most=100,
                loose=True,
                doc="Default: the first 12 hex digits of the definition's digest.",
            ),
        ),
        SchemaField(
            name="profile",
            shape=_Profile(what="a profile", doc=f"The lifecycle of its runs. Default: {DEFAULT_PROFILE}."),
        ),
        SchemaField(name="timeout", shape=Duration(doc="For the whole run. Default: the profile's.")),
        SchemaField(
            name="budget",
            shape=Text(
                what="an amount such as 5 USD",
                pattern=money.PATTERN,
                doc="The most a run may cost; a run that spends more ends with BUDGET_EXCEEDED.",
            ),
        ),
        SchemaField(
            name="compensate",
            shape=Boolean(doc="Whether the actions of a canceled run are undone, by another run."),
        ),
        SchemaField(name="inputs", shape=INPUTS),
        SchemaField(name="defaults", shape=DEFAULTS),
        SchemaField(
            name="steps",
            shape=ListOf(
                item=STEP,
                least=1,
                most=WORKFLOW_STEPS_MAX,
                what="a list of steps",
                doc="Required, unless there is a planner.",
            ),
        ),
        SchemaField(name="planner", shape=PLANNER),
    ),
)


def json_schema() -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tenure workflow",
        **WORKFLOW.described(),
    }
