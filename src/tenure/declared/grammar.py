"""What a workflow file is made of. A new key is a line here: validation, the published schema and `tenure.declared`
follow from it.
"""

from __future__ import annotations

from typing import Any

from tenure import money
from tenure.declared.document import Node, Path, Problems
from tenure.declared.shapes import (
    Either,
    Field,
    Flag,
    Json,
    Length,
    ListOf,
    MapOf,
    Real,
    Record,
    Text,
    Variants,
    Whole,
)
from tenure.kernel import profiles
from tenure.kernel.profile import NAME_PATTERN
from tenure.limits import (
    EXPRESSION_BYTES_MAX,
    INTEGER_MAX,
    LABEL_CHARS_MAX,
    RETRIES_MAX,
    WORKFLOW_BYTES_MAX,
    WORKFLOW_STEPS_MAX,
)

DEFAULT_PROFILE = "agent-runs"
TYPES = ("string", "integer", "number", "boolean", "array", "object")

_WORD = r"[A-Za-z_][A-Za-z0-9_]{0,99}"
_WORD_SAYS = "letters, digits and underscores, and begins with none of the digits"
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
_seconds = Length()


class _Profile(Text, frozen=True, kw_only=True):
    """The name of a profile. Which own ones there are is known when a file is read, not to the published schema."""

    def read(self, node: Node, path: Path, problems: Problems) -> Any:
        """A name that there is."""
        return Text(what=self.what, choices=profiles.names()).read(node, path, problems)

    def schema(self) -> dict[str, Any]:
        """One of ours, for editors to offer, or a name that somebody may have given an own one."""
        return {
            "anyOf": [
                {"enum": [*profiles.built_in()]},
                {"type": "string", "pattern": f"^(?:{NAME_PATTERN})$"},
            ]
        }


RETRY = Record(
    what="retry",
    doc="How often a failed step is tried again, and after how long.",
    fields=(
        Field(
            name="max",
            shape=Whole(least=0, most=RETRIES_MAX, doc="Tries after the first one. Default: the profile's."),
        ),
        Field(
            name="backoff",
            shape=ListOf(
                item=Length(zero=True),
                least=1,
                most=100,
                what="a list of delays",
                doc="Delays before each of them; the last one repeats. Default: the profile's.",
            ),
        ),
        Field(
            name="jitter",
            shape=Real(
                least=0.0, most=1.0, doc="How much chance adds to a delay, as a part of it. Default: 0.2."
            ),
        ),
    ),
)

INPUT = Record(
    what="an input",
    fields=(
        Field(name="type", shape=Text(what="a type", choices=TYPES), required=True),
        Field(
            name="default",
            shape=Json(doc="Without a default the input must be given; null makes it optional."),
        ),
        Field(name="description", shape=Text(most=LABEL_CHARS_MAX, lines=True)),
        Field(name="enum", shape=ListOf(item=Json(), least=1, doc="The only values it may have.")),
        Field(
            name="items", shape=Text(what="a type", choices=TYPES, doc="Of an array: the type of its items.")
        ),
        Field(name="minimum", shape=Real(doc="Of a number.")),
        Field(name="maximum", shape=Real(doc="Of a number.")),
        Field(name="min_length", shape=Whole(least=0, most=INTEGER_MAX, doc="Of a string or an array.")),
        Field(name="max_length", shape=Whole(least=0, most=INTEGER_MAX, doc="Of a string or an array.")),
        Field(
            name="secret",
            shape=Flag(
                doc="Of a string: it is a reference to a secret, `env:NAME` or `file:/PATH`, and nothing else."
            ),
        ),
    ),
)

INPUTS = MapOf(
    key=_WORD,
    says=_WORD_SAYS,
    value=INPUT,
    most=100,
    doc="What a run is given; checked when it is submitted.",
)

DEFAULTS = Record(
    what="defaults",
    doc="What steps have that say nothing of their own.",
    fields=(
        Field(name="retry", shape=RETRY),
        Field(name="timeout", shape=_seconds),
        Field(name="queue", shape=_queue),
    ),
)

_COMMON = (
    Field(
        name="id",
        shape=Text(what="an id", pattern=_ID, says=_ID_SAYS, most=100, doc="Unique and stable."),
        required=True,
    ),
    Field(
        name="needs",
        shape=ListOf(
            item=Text(what="a step's id"),
            most=WORKFLOW_STEPS_MAX,
            what="a list of step ids",
            doc="Steps that come first. Default: the step before it; []: none.",
        ),
    ),
    Field(
        name="if",
        shape=Text(
            what="an expression",
            most=EXPRESSION_BYTES_MAX,
            loose=True,
            lines=True,
            doc="CEL; where it is false, the step succeeds at once with the output null.",
        ),
    ),
    Field(name="required", shape=Flag(doc="false: the run may succeed without this step. Default: true.")),
)

_WORK = (
    Field(name="timeout", shape=Length(doc="For one try.")),
    Field(name="retry", shape=RETRY),
    Field(name="queue", shape=_queue),
    Field(
        name="idempotency_key",
        shape=Text(
            most=LABEL_CHARS_MAX,
            template=True,
            doc="The same for every try of the same effect. Default: the run's id and the step's.",
        ),
    ),
    Field(
        name="idempotent",
        shape=Flag(doc="true: doing it twice is the same as doing it once. Default: false."),
    ),
)

_WITH = Field(name="with", shape=Json(kind="map", doc="The arguments; texts may have ${{ expressions }}."))

APPROVAL = Record(
    what="approval",
    doc="A question to people.",
    fields=(
        Field(
            name="title",
            shape=Text(
                most=LABEL_CHARS_MAX,
                template=True,
                doc="The question; it is fixed when the run is submitted, so that only inputs can be in it.",
            ),
            required=True,
        ),
        Field(
            name="action",
            shape=Text(doc="A short word for the history, which is kept for good. Default: the step's id."),
        ),
        Field(name="tier", shape=Text(what="a tier", choices=("low", "med", "high"), doc="Default: low.")),
        Field(name="people", shape=Whole(least=1, most=100, doc="How many have to say yes. Default: 1.")),
        Field(
            name="group",
            shape=Text(doc="The group that those who decide belong to. Default: anybody who may approve."),
        ),
        Field(name="within", shape=_seconds),
    ),
)

WAIT = Record(
    what="wait",
    doc="Something outside of the run: an event, or time.",
    fields=(
        Field(name="event", shape=Text(template=True, doc="The name of the event.")),
        Field(
            name="source",
            shape=Text(template=True, doc="Where the event is expected from; told, not compared."),
        ),
        Field(name="within", shape=Length(doc="How long to wait for the event.")),
        Field(name="time", shape=Length(doc="Instead of an event: how long to wait.")),
    ),
)

_ARGUMENT = Text(what="an argument", least=0, most=WORKFLOW_BYTES_MAX, template=True, loose=True, lines=True)

STEP = Variants(
    what="a step",
    common=_COMMON,
    kinds={
        "run": (
            Field(
                name="run",
                shape=Either(
                    listed=ListOf(item=_ARGUMENT, least=1, what="a list of arguments"),
                    single=Text(
                        what="a command",
                        most=WORKFLOW_BYTES_MAX,
                        lines=True,
                        doc="Split into arguments; no shell.",
                    ),
                    doc="A command. No shell sees it unless `shell: true` asks for one.",
                ),
                required=True,
            ),
            Field(
                name="shell",
                shape=Flag(doc="Give the text to `sh -c`. It has no expressions then; put values into env."),
            ),
            Field(
                name="env",
                shape=MapOf(
                    key=_WORD,
                    says=_WORD_SAYS,
                    value=_ARGUMENT,
                    most=500,
                    doc="Its environment, beside PATH, HOME and LANG; nothing else of the worker's is passed on.",
                ),
            ),
            Field(
                name="cwd",
                shape=Text(what="a folder", most=LABEL_CHARS_MAX, template=True, doc="Where it is started."),
            ),
            Field(
                name="output",
                shape=Text(
                    what="an output",
                    choices=("text", "json"),
                    doc="json: what it prints is JSON, under `json` in the step's output. Default: text.",
                ),
            ),
            *_WORK,
        ),
        "uses": (
            Field(
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
            Field(
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
        "approval": (Field(name="approval", shape=APPROVAL, required=True),),
        "wait": (Field(name="wait", shape=WAIT, required=True),),
    },
)

WORKFLOW = Record(
    what="a workflow",
    doc="A declared workflow of Tenure.",
    fields=(
        Field(name="name", shape=_name, required=True),
        Field(
            name="version",
            shape=Text(
                what="a version",
                most=100,
                loose=True,
                doc="Default: the first 12 hex digits of the definition's digest.",
            ),
        ),
        Field(
            name="profile",
            shape=_Profile(what="a profile", doc=f"Whose lifecycle it has. Default: {DEFAULT_PROFILE}."),
        ),
        Field(name="timeout", shape=Length(doc="For the whole run. Default: the profile's.")),
        Field(
            name="budget",
            shape=Text(
                what="an amount such as 5 USD",
                pattern=money.PATTERN,
                doc="What a run may cost; it ends BUDGET_EXCEEDED when it has spent more.",
            ),
        ),
        Field(
            name="compensate",
            shape=Flag(doc="Whether a run that is canceled has its actions undone, by a run of its own."),
        ),
        Field(name="inputs", shape=INPUTS),
        Field(name="defaults", shape=DEFAULTS),
        Field(
            name="steps",
            shape=ListOf(item=STEP, least=1, most=WORKFLOW_STEPS_MAX, what="a list of steps"),
            required=True,
        ),
    ),
)


def json_schema() -> dict[str, Any]:
    """The published JSON Schema."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tenure workflow",
        **WORKFLOW.described(),
    }
