"""The grammar of a pipeline file (`.tenure/ci.yaml`): the jobs of a repository. It extends the grammar of workflow files: commands, `needs`,
`if`, `retry` and durations are written the same way. To add a key, add a line here: validation and the published schema follow from it.
"""

from __future__ import annotations

from typing import Any

from tenure.declared.grammar import RETRY
from tenure.expressions.schema import (
    Boolean,
    ByteSize,
    Duration,
    Either,
    Integer,
    JsonValue,
    ListOf,
    MapOf,
    Record,
    SchemaField,
    Text,
    Variants,
)
from tenure.limits import (
    EXPRESSION_BYTES_MAX,
    LABEL_CHARS_MAX,
    PIPELINE_JOBS_MAX,
    PIPELINE_PROJECTS_MAX,
    WORKFLOW_BYTES_MAX,
)

ID_PATTERN = r"[A-Za-z_][A-Za-z0-9_-]{0,99}"
ID_SAYS = "letters, digits, _ and -, beginning with a letter or _; at most 100"
NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_]{0,99}"
NAME_SAYS = "letters, digits and underscores, not beginning with a digit"
LABEL_PATTERN = r"[a-z0-9][a-z0-9._-]{0,31}"
LABEL_SAYS = "lower-case letters, digits, and . _ - after the first character; at most 32"
HOST_PATTERN = r"(?:\*\.)?[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(?::[0-9]{1,5})?"
HOST_SAYS = "HOST, *.DOMAIN or HOST:PORT"
RESERVED_AXES = ("include", "exclude")

_glob = Text(
    what="a glob", most=500, doc="Relative to the top folder. * matches within a folder, ** across folders."
)
_globs = ListOf(item=_glob, least=1, most=100, what="a list of globs")
_folder = Text(what="a folder", most=500, doc="Relative to the top folder of the repository.")
_label = Text(what="a label", pattern=LABEL_PATTERN, says=LABEL_SAYS, most=32, template=True)
_host = Text(what="a host", pattern=HOST_PATTERN, says=HOST_SAYS, most=260)
_argument = Text(what="an argument", least=0, most=WORKFLOW_BYTES_MAX, template=True, loose=True, lines=True)
_command = Either(
    listed=ListOf(item=_argument, least=1, what="a list of arguments"),
    single=Text(what="a script", most=WORKFLOW_BYTES_MAX, lines=True),
    doc="A text is a script for `sh -e`; it cannot contain expressions: put values into env. A list is a program and its arguments.",
)
_cwd = Text(
    what="a folder", most=500, doc="The working folder, relative to the workspace. Default: the workspace."
)

LABELS = ListOf(item=_label, most=6, what="a list of labels", doc="What the runner must have.")
ENV = MapOf(
    key=NAME_PATTERN,
    says=NAME_SAYS,
    value=_argument,
    most=500,
    doc="Environment variables. Values may contain ${{ matrix.NAME }} and ${{ change.NAME }}.",
)
LIMITS = Record(
    what="limits",
    doc="What the job may use. The settings of the repository have the largest values.",
    fields=(
        SchemaField(name="memory", shape=ByteSize()),
        SchemaField(name="processes", shape=Integer(least=1, most=100_000)),
        SchemaField(name="disk", shape=ByteSize()),
        SchemaField(name="log", shape=ByteSize()),
    ),
)
_timeout = Duration(doc="For one attempt. Default: the repository's.")

MATRIX = MapOf(
    key=NAME_PATTERN,
    says=NAME_SAYS,
    value=ListOf(item=JsonValue(), least=1, most=256, what="a list of values"),
    most=20,
    doc=(
        "Axes with their values: the job runs once for each combination. `exclude` is a list of maps; a combination that has the values"
        " of one of them is left out. `include` is a list of maps that are added as combinations."
    ),
)

CACHE = Record(
    what="a cache",
    fields=(
        SchemaField(name="key", shape=Text(most=200, template=True), required=True),
        SchemaField(name="files", shape=_globs),
        SchemaField(name="paths", shape=_globs, required=True),
        SchemaField(
            name="fallback",
            shape=ListOf(
                item=Text(most=200, template=True),
                most=10,
                doc="Beginnings of keys. The newest cache with one of them is used if there is none with the key.",
            ),
        ),
    ),
    doc="`files`: the key is extended by the digest of these files.",
)

ARTIFACT = Record(
    what="an artifact",
    fields=(
        SchemaField(
            name="name",
            shape=Text(what="a name", pattern=ID_PATTERN, says=ID_SAYS, most=100),
            required=True,
        ),
        SchemaField(name="paths", shape=_globs, required=True),
        SchemaField(name="retention", shape=Duration(doc="Default: the repository's.")),
        SchemaField(name="always", shape=Boolean(doc="Upload it after a failure, too. Default: false.")),
    ),
)

DOWNLOAD = Record(
    what="a download",
    fields=(
        SchemaField(name="job", shape=Text(what="a job", doc="One of the jobs in `needs`."), required=True),
        SchemaField(name="artifact", shape=Text(what="an artifact"), required=True),
        SchemaField(name="to", shape=_folder),
    ),
)

SERVICE = Record(
    what="a service",
    fields=(
        SchemaField(name="run", shape=_command, required=True),
        SchemaField(name="ready", shape=_command),
        SchemaField(name="ready_within", shape=Duration(doc="Default: 30s.")),
    ),
    doc="A program beside the commands. `ready` is a command that succeeds as soon as it can be used.",
)

COMMAND = Record(
    what="a command",
    fields=(
        SchemaField(name="run", shape=_command, required=True),
        SchemaField(name="name", shape=Text(most=LABEL_CHARS_MAX)),
        SchemaField(name="cwd", shape=_cwd),
    ),
)

_COMMON = (
    SchemaField(
        name="needs",
        shape=ListOf(
            item=Text(what="a job's id"),
            most=PIPELINE_JOBS_MAX,
            what="a list of job ids",
            doc="Jobs that must succeed first. Default: none.",
        ),
    ),
    SchemaField(
        name="if",
        shape=Text(
            what="an expression",
            most=EXPRESSION_BYTES_MAX,
            loose=True,
            lines=True,
            doc="CEL over `change` and `matrix`. If it is false, the job is out, and so are the jobs that need it.",
        ),
    ),
    SchemaField(
        name="paths",
        shape=ListOf(item=_glob, least=1, most=100, doc="The job is in if one of these files changed."),
    ),
    SchemaField(
        name="paths_ignore",
        shape=ListOf(item=_glob, least=1, most=100, doc="Changed files that do not count."),
    ),
    SchemaField(
        name="project",
        shape=Either(
            listed=ListOf(item=_folder, least=1, most=100),
            single=_folder,
            doc="Projects: the job is in if one of them, or what it depends on, changed.",
        ),
    ),
    SchemaField(
        name="inputs",
        shape=ListOf(
            item=_glob,
            least=1,
            most=100,
            doc="All files that the job reads. Its workspace holds nothing else, and an earlier result with the same inputs is reused.",
        ),
    ),
    SchemaField(name="always", shape=Boolean(doc="true: the job is in, whatever changed. Default: false.")),
    SchemaField(name="matrix", shape=MATRIX),
    SchemaField(name="env", shape=ENV),
    SchemaField(name="labels", shape=LABELS),
    SchemaField(
        name="services",
        shape=MapOf(
            key=ID_PATTERN, says=ID_SAYS, value=SERVICE, most=8, doc="Programs that the commands use."
        ),
    ),
    SchemaField(
        name="network", shape=ListOf(item=_host, most=100, doc="Hosts that the job may reach. Default: none.")
    ),
    SchemaField(
        name="secrets",
        shape=ListOf(
            item=Text(what="a name", pattern=NAME_PATTERN, says=NAME_SAYS),
            most=50,
            doc="Names of secrets, which become environment variables.",
        ),
    ),
    SchemaField(name="caches", shape=ListOf(item=CACHE, most=10)),
    SchemaField(name="artifacts", shape=ListOf(item=ARTIFACT, most=50)),
    SchemaField(name="downloads", shape=ListOf(item=DOWNLOAD, most=50)),
    SchemaField(name="reports", shape=ListOf(item=_glob, most=50, doc="JUnit XML files.")),
    SchemaField(name="timeout", shape=_timeout),
    SchemaField(name="retry", shape=RETRY),
    SchemaField(
        name="allow_failure", shape=Boolean(doc="true: the run may succeed without it. Default: false.")
    ),
    SchemaField(
        name="toolchain",
        shape=MapOf(
            key=ID_PATTERN,
            says=ID_SAYS,
            value=Text(what="a version", most=200, loose=True, template=True),
            most=20,
            doc="Names and versions of the tools that the job relies on. A change makes earlier results useless.",
        ),
    ),
    SchemaField(name="limits", shape=LIMITS),
)

JOB = Variants(
    what="a job",
    common=_COMMON,
    kinds={
        "run": (
            SchemaField(name="run", shape=_command, required=True),
            SchemaField(name="cwd", shape=_cwd),
        ),
        "commands": (
            SchemaField(
                name="commands",
                shape=ListOf(item=COMMAND, least=1, most=100, what="a list of commands"),
                required=True,
            ),
        ),
    },
)

PIPELINE = Record(
    what="a pipeline",
    doc="The jobs of a repository, for Tenure's CI.",
    fields=(
        SchemaField(
            name="projects",
            shape=MapOf(
                key=r"[^\x00-\x1f]{1,500}",
                says="the path of a folder",
                value=ListOf(item=_folder, most=PIPELINE_PROJECTS_MAX, what="a list of folders"),
                most=PIPELINE_PROJECTS_MAX,
                doc="Folders, each with the folders that it depends on.",
            ),
        ),
        SchemaField(
            name="discover",
            shape=Text(
                what="a language",
                choices=("python",),
                doc="Find the dependencies of projects in their imports. The code is parsed and never executed.",
            ),
        ),
        SchemaField(
            name="defaults",
            shape=Record(
                what="defaults",
                doc="Values for jobs that do not set their own. `env` is merged.",
                fields=(
                    SchemaField(name="env", shape=ENV),
                    SchemaField(name="labels", shape=LABELS),
                    SchemaField(name="timeout", shape=_timeout),
                    SchemaField(name="retry", shape=RETRY),
                    SchemaField(name="limits", shape=LIMITS),
                ),
            ),
        ),
        SchemaField(
            name="jobs",
            shape=MapOf(key=ID_PATTERN, says=ID_SAYS, value=JOB, most=PIPELINE_JOBS_MAX),
            required=True,
        ),
    ),
)


def pipeline_json_schema() -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tenure pipeline",
        **PIPELINE.described(),
    }
