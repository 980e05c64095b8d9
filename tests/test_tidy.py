"""Rules about the code that a linter cannot check. Each failure names the file and line."""

import ast
import builtins
import dis
import re
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tenure.errors import CODES
from tenure.store import port, query_registry
from tests.chaos.story_bugs import PLANTED_BUGS
from tests.simulation.planted_bugs import BUGS, changed_code

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "tenure"

ING_NOUNS = {"paging", "signing", "testing", "tracing"}
"""Names of modules that end in -ing and are nouns of the field."""

WALL_CLOCK_HOMES = ("src/tenure/clock.py",)
WALL_CLOCK_CALLS = {
    "time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today",
}  # fmt: skip
KERNEL_FORBIDDEN = {
    "apsw", "asyncio", "asyncpg", "logging", "os", "pathlib", "secrets", "socket", "sqlite3", "structlog",
    "subprocess", "threading", "time", "uuid",
}  # fmt: skip
OTHER_SQLITE = ("bench/peers/dbos.py",)
"""Code that opens files of other systems, never files that Tenure opens."""

# The brackets keep these patterns from matching themselves.
OUTSIDE_WORLD = re.compile(
    r"(?<![\w.])/(?:roo[t]|wor[k]|hom[e]/\w+)(?![\w-])"  # folders of a machine
    r"|\.\./share[d]|\bfile:///(?!path)"
    r"|\b(?:extra-)?index-ur[l]\b|\bfind-link[s]\b|/simpl[e]/"  # package sources of a machine
    r"|\b(?:10|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2,3}\b"  # private networks
)
UNFINISHED = re.compile(r"\b(?:TOD[O]|FIXM[E]|XX[X])\b")
EXCUSE = re.compile(r"#\s*(?:noqa|type:\s*ignore|ruff:\s*noqa|mypy:)")
EXCUSE_WITH_REASON = re.compile(
    r"#\s*(?:noqa: [A-Z]+\d+(?:, ?[A-Z]+\d+)*|type: ignore\[[\w-]+(?:, ?[\w-]+)*\])\s+(?:#|-)\s*\w.{7,}"
)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def modules(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def code_files() -> list[Path]:
    return [path for name in ("src", "tests", "tools", "bench", "examples") for path in modules(ROOT / name)]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def parsed(folder: Path) -> Iterator[tuple[str, ast.Module]]:
    for path in modules(folder):
        yield relative(path), tree_of(path)


def project_files() -> list[Path]:
    """The files that git would commit: tracked files, and new files that are not ignored."""
    command = [
        "git",
        "-c",
        f"safe.directory={ROOT}",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def matches(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    found = []
    for path in paths:
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        found += [
            f"{relative(path)}:{n}: {line.strip()}" for n, line in enumerate(lines, 1) if pattern.search(line)
        ]
    return found


def dotted(node: ast.expr) -> str:
    """The dotted name of an attribute chain, such as `a.b.c`, as far as it consists of names."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


QUOTED_IMPORT = re.compile(r"\bfrom (tenure|tests|bench|tools)((?:\.\w+)*) import (\w+(?:, ?\w+)*)")
QUOTED_MODULE = re.compile(r"(tests|bench|tools)((?:\.[a-z_]+)+)(?::(\w+))?")


def defined_names(module: str) -> set[str] | None:
    """The names that a module of the project defines or contains; None if there is no such module."""
    base = (SRC.parent if module.split(".", maxsplit=1)[0] == "tenure" else ROOT) / module.replace(".", "/")
    if not base.is_dir():
        return names_in(base.with_suffix(".py")) if base.with_suffix(".py").is_file() else None
    inside = {path.stem for path in base.iterdir()}
    return inside | (names_in(base / "__init__.py") if "__init__" in inside else set())


@cache
def names_in(path: Path) -> set[str]:
    return set(re.findall(r"\w+", path.read_text()))


def quoted_imports(text: str) -> Iterator[tuple[str, str]]:
    """(module, name) for each import in a text that may be a program, and for a text that is a module or `module:name`."""
    for root, rest, names in QUOTED_IMPORT.findall(text):
        yield from ((root + rest, name) for name in re.split(r", ?", names))
    if (found := QUOTED_MODULE.fullmatch(text)) is not None and (
        ROOT / found[1] / found[2].split(".")[1]
    ).is_dir():
        yield found[1] + found[2], found[3] or ""


def test_programs_in_strings_import_what_exists() -> None:
    missing = []
    for path in code_files():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for module, name in quoted_imports(node.value):
                    names = defined_names(module)
                    if names is None or (name and name not in names):
                        missing.append(f"{relative(path)}:{node.lineno}: {module} {name}")
    assert missing == []


def test_a_public_class_name_is_unique_in_the_package() -> None:
    places: dict[str, list[str]] = {}
    for path, tree in parsed(SRC):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_module_is_a_noun() -> None:
    names = {path: Path(path).stem for path, _ in parsed(SRC)}
    assert [path for path, name in names.items() if name.endswith("ing") and name not in ING_NOUNS] == []


def test_every_module_has_a_docstring() -> None:
    assert [path for path, tree in parsed(SRC) if not ast.get_docstring(tree)] == []


def test_no_unfinished_markers_are_left() -> None:
    documents = [
        path for path in project_files() if path.suffix == ".md" and "docs/spec" not in relative(path)
    ]
    sql = [path for path in project_files() if path.suffix in (".sql", ".toml", ".yml")]
    assert matches(UNFINISHED, [*code_files(), *documents, *sql]) == []


def test_only_the_command_line_prints() -> None:
    assert [
        f"{path}:{node.lineno}"
        for path, tree in parsed(SRC)
        if not path.startswith("src/tenure/cli/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and dotted(node.func) == "print"
    ] == []


def wall_clock_reads(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ".".join(dotted(node).split(".")[-2:]) in WALL_CLOCK_CALLS:
            yield node.lineno
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            if names & {"time.time", "time.time_ns"}:
                yield node.lineno


def test_only_the_clock_reads_the_wall_clock() -> None:
    assert [
        f"{path}:{line}"
        for path, tree in parsed(SRC)
        if path not in WALL_CLOCK_HOMES
        for line in wall_clock_reads(tree)
    ] == []  # fmt: skip


def impurities(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Everything that makes a kernel module depend on more than its arguments."""
    for node in ast.walk(tree):
        match node:
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                yield node.lineno, "is asynchronous"
            case ast.Import(names=names):
                for alias in names:
                    if alias.name.split(".")[0] in KERNEL_FORBIDDEN:
                        yield node.lineno, f"imports {alias.name}"
            case ast.ImportFrom(module=str(module)):
                if module.split(".")[0] in KERNEL_FORBIDDEN:
                    yield node.lineno, f"imports {module}"
                if module == "random" and [alias.name for alias in node.names] != ["Random"]:
                    yield node.lineno, "uses the shared random generator; take a Random as an argument"
            case ast.Attribute(value=ast.Name(id="random"), attr=attr) if attr != "Random":
                yield node.lineno, "uses the shared random generator; take a Random as an argument"
            case ast.Call(func=ast.Name(id="open" | "input")):
                yield node.lineno, "does I/O"
            case _:
                pass


PRIVATE_FILES_HOME = "src/tenure/private_files.py"
OTHER_FILES = {
    "src/tenure/ci_runner/archive.py": "files of a job in its workspace, with the modes that they had",
    "src/tenure/cli/dev/init.py": "the user's own source files",
    "src/tenure/cli/dev/lifecycle.py": "a page of this repository",
    "src/tenure/cli/common/work_folder.py": "a temporary folder, which tempfile makes 0700",
    "src/tenure/commands/launcher.py": "files of /proc; it imports nothing of Tenure",
    "src/tenure/runner_conformance/suite.py": "a temporary folder, which tempfile makes 0700",
    "src/tenure/sandbox/agent.py": "files of /proc; it imports nothing of Tenure",
    "src/tenure/sandbox/bubblewrap.py": "the files of /etc that every user of a sandbox reads",
    "src/tenure/sandbox/isolation.py": "a temporary folder, which tempfile makes 0700",
    "src/tenure/sandbox/network_proxy.py": "a folder with a socket, which the user of a sandbox reads",
    "src/tenure/sandbox/sandbox.py": "folders that belong to the user of a sandbox; files of /proc",
    "src/tenure/sandbox/usage_limits.py": "cgroups and files of /proc",
    "src/tenure/testing/lab.py": "a temporary folder, which tempfile makes 0700",
}
"""Other modules that create files and folders: path -> reason."""
MAKES_FILES = {
    "write_text", "write_bytes", "mkdir", "makedirs", "touch", "mkdtemp", "mkstemp", "NamedTemporaryFile", "TemporaryDirectory",
    "copyfile", "copytree", "copy2", "FileHandler",
}  # fmt: skip


def makes_a_file(call: ast.Call) -> bool:
    """Whether a call creates a file or a folder, or opens a file for writing."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in MAKES_FILES:
        return True
    if name != "open":
        return False
    if isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") == "os":
        return True
    at = 0 if isinstance(call.func, ast.Attribute) else 1
    modes = [*call.args[at : at + 1], *(word.value for word in call.keywords if word.arg == "mode")]
    return any(isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax+") for mode in modes)


def test_files_are_created_by_one_helper_that_keeps_them_private() -> None:
    """Tenure's files have mode 0600 and its folders 0700, regardless of the umask: see `tenure.private_files`."""
    found = {
        f"{path}:{node.lineno}": path
        for path, tree in parsed(SRC)
        for node in ast.walk(tree)
        if path != PRIVATE_FILES_HOME and isinstance(node, ast.Call) and makes_a_file(node)
    }
    assert [place for place, path in found.items() if path not in OTHER_FILES] == []
    assert set(OTHER_FILES) <= set(found.values()), "remove the exceptions that are no longer needed"


def test_only_one_place_fails_futures() -> None:
    """`tenure.futures.fail_future`: the caller may be gone, and asyncio must not report an exception that nobody retrieved."""
    homes = ("src/tenure/futures.py", "src/tenure/worker/threads.py")  # the latter has futures of threads
    found = [
        f"{name}:{node.lineno}"
        for name, tree in parsed(SRC)
        if name not in homes
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "set_exception"
    ]
    assert not found, "use tenure.futures.fail_future"


def test_only_one_sqlite_is_used_in_a_process() -> None:
    """Two SQLite libraries on one file release each other's locks when they close it, which breaks the file or the process."""
    found = [
        f"{relative(path)}:{node.lineno}"
        for path in code_files()
        if relative(path) not in OTHER_SQLITE
        for node in ast.walk(tree_of(path))
        if (isinstance(node, ast.Import) and any(alias.name == "sqlite3" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == "sqlite3")
    ]
    assert found == []


def test_suggestions_are_made_in_one_place() -> None:
    """Comparing words is slow, and the sender chooses their number: `tenure.suggestions` limits it."""
    found = [
        place
        for place, tree in parsed(SRC)
        for node in ast.walk(tree)
        if (isinstance(node, ast.ImportFrom) and node.module == "difflib")
        or (isinstance(node, ast.Import) and any(name.name == "difflib" for name in node.names))
    ]
    assert found == ["src/tenure/suggestions.py"]


def test_one_place_builds_the_command_that_creates_a_run() -> None:
    """`kernel.new_run.build_create_run`: a new option of runs has only one way into the command."""
    found = {
        name
        for name, tree in parsed(SRC)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "CreateRun"
    }
    assert found == {"src/tenure/kernel/new_run.py"}


def test_every_planted_bug_matches_the_code() -> None:
    """A planted bug replaces text in a function. If you rewrite the function, update its bug."""
    simulated = [bug.changes for bug in BUGS.values()]
    for changes in simulated + [bug.changes for bug in PLANTED_BUGS.values()]:
        for function, code in changed_code(changes).items():
            known = function.__globals__.keys() | vars(builtins).keys()
            used = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
            assert used <= known, f"{function.__qualname__} has no {used - known}"


def test_the_kernel_is_pure() -> None:
    assert [
        f"{path}:{line} {what}" for path, tree in parsed(SRC / "kernel") for line, what in impurities(tree)
    ] == []  # fmt: skip


def test_every_exception_to_a_check_names_its_code_and_its_reason() -> None:
    unexplained = []
    for path in code_files():
        with tokenize.open(path) as file:
            comments = [
                token for token in tokenize.generate_tokens(file.readline) if token.type == tokenize.COMMENT
            ]
        unexplained += [
            f"{relative(path)}:{token.start[0]}: {token.string}"
            for token in comments
            if EXCUSE.search(token.string) and not EXCUSE_WITH_REASON.search(token.string)
        ]
    assert unexplained == [], "write `# noqa: B008 - why` or `# type: ignore[code]  # why`"


def test_nothing_points_outside_the_repository() -> None:
    assert matches(OUTSIDE_WORLD, project_files()) == []


# ------------------------------------------------------------------------------------------- queries

STATE_COLUMNS = {"state", "status", "outcome", "fence", "version"}
DIALECTS = ("sqlite", "postgres")
UPDATE = re.compile(
    r"\bupdate\s+(?:only\s+)?(?:tenure\.)?(?P<table>[a-z_]+)(?:\s+(?:as\s+)?(?!set\b)\w+)?\s+set\s+",
    re.IGNORECASE,
)
UPSERT = re.compile(
    r"\binsert\s+into\s+(?:tenure\.)?(?P<table>[a-z_]+)\b(?:(?!\binsert\s+into\b).)*?\bdo\s+update\s+set\s+",
    re.IGNORECASE | re.DOTALL,
)


def queries(text: str) -> dict[str, str]:
    """The `-- name: x` blocks of a query file, without their comments."""
    blocks = re.split(r"^--\s*name:\s*(\w+).*$", text, flags=re.MULTILINE)
    named = list(zip(blocks[1::2], blocks[2::2], strict=True))
    names = [name for name, _ in named]
    assert len(names) == len(set(names)), f"defined twice: {sorted({n for n in names if names.count(n) > 1})}"
    return {name: re.sub(r"--.*$", "", body, flags=re.MULTILINE) for name, body in named}


def read_queries(dialect: str, *, own: bool = True) -> dict[str, str]:
    """All queries of a dialect. A name means one query, in whichever file it is. `own` includes the queries of this dialect alone.

    The generated save_variants.sql is left out: tests/tools/test_save_variants.py shows that it follows from the other files.
    """
    shared = {"queries.sql", *(f"{family}.sql" for family in query_registry.QUERY_MODULES)}
    its_own = f"{query_registry.OWN_QUERIES[dialect]}.sql"
    files = {path.name for path in (SRC / "store" / dialect).glob("*.sql")}
    assert files == shared | {its_own, "save_variants.sql"}
    read = shared | {its_own} if own else shared
    return queries("\n".join((SRC / "store" / dialect / name).read_text() for name in sorted(read)))


def assigned_columns(set_clause: str) -> set[str]:
    """The columns that a SET clause writes: names before `=` (alone or as a tuple), outside of parentheses."""
    depth, flat = 0, []
    for token in re.findall(r"'(?:[^']|'')*'|\w+|[^\w\s]", set_clause):
        if depth == 0 and (token == ";" or token.lower() in {"from", "where", "returning"}):
            break
        depth += {"(": 1, ")": -1}.get(token, 0)
        if depth < 0:
            break
        flat.append((depth, token.lower()))
    columns: set[str] = set()
    pending: list[str] = []
    is_target = True
    for depth, token in flat:
        if is_target and token == "=" and depth == 0:
            columns |= set(pending)
            is_target = False
        elif token == "," and depth == 0:
            pending, is_target = [], True
        elif is_target and token.isidentifier():
            pending.append(token)
    return columns


def state_writers(blocks: dict[str, str]) -> dict[str, list[str]]:
    """Table -> the queries that change a state column of its existing rows."""
    writers: dict[str, list[str]] = {}
    for name, body in blocks.items():
        for pattern in (UPDATE, UPSERT):
            for found in pattern.finditer(body):
                if assigned_columns(body[found.end() :]) & STATE_COLUMNS:
                    writers.setdefault(found["table"].lower(), []).append(name)
    return writers


@pytest.mark.parametrize("dialect", DIALECTS)
def test_state_columns_are_written_by_one_statement_per_table(dialect: str) -> None:
    assert {
        table: names for table, names in state_writers(read_queries(dialect)).items() if len(names) > 1
    } == {}


def test_no_statement_that_changes_rows_is_in_python() -> None:
    hidden = re.compile(r"\bupdate\s+[a-z_.]+\s+set\b|\binsert\s+into\s+[a-z_.]+\b", re.IGNORECASE)
    assert [
        f"{path}:{node.lineno}"
        for path, tree in parsed(SRC)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and hidden.search(node.value)
    ] == [], "put statements into .sql files, where the one-writer rule is checked"


def test_statements_name_the_schema_of_every_table() -> None:
    """Tenure's sessions do not search any schema, so a table name without its schema is not found."""
    schema = (ROOT / "docs" / "schema" / "postgres.sql").read_text(encoding="utf-8")
    tables = re.findall(r"create (?:unlogged )?table (?:\w+\.)?(\w+)", schema, flags=re.IGNORECASE)
    assert len(tables) > 30
    bare = re.compile(rf"\b(?:from|join|into|update|using|table)\s+(?:{'|'.join(tables)})\b|::\w+_in\[\]")
    found = {name: bare.findall(text) for name, text in query_registry.load_queries("postgres").items()}
    assert {name: names for name, names in found.items() if names} == {}


def test_both_dialects_define_the_same_queries() -> None:
    sqlite, postgres = (read_queries(dialect, own=False).keys() for dialect in DIALECTS)
    assert sorted(sqlite - postgres) == [], "only in sqlite"
    assert sorted(postgres - sqlite) == [], "only in postgres"


def test_every_query_is_used() -> None:
    """An unused query proves nothing, and may keep an index alive. (The names `save_TABLE` are composed.)"""
    texts = [
        node.value
        for _, tree in parsed(SRC)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    named = {**port.QUERIES, **query_registry.READS, **query_registry.WRITES}
    assert [name for name in named if texts.count(name) < 2 and not name.startswith("save_")] == [], (
        "declared, but not used"
    )


def test_the_one_writer_check_finds_a_second_writer() -> None:
    text = """
        -- name: save_runs  the one writer
        update runs as r set state = n.state, (version, wake_at) = (n.version, least(a, b)) from n where r.id = n.id;
        -- name: beat  touches no state
        update leases set expires_at = (select max(state) from x where y = 1) where fence = $1;
        -- name: cheat
        insert into runs (id, state) values (1, 'x') on conflict (id) do update set note = 'a, state =', state = 'x';
        -- name: add
        insert into steps (id, state) values ($1, $2) on conflict do nothing;
    """
    blocks = queries("\n".join(line.strip() for line in text.splitlines()))
    assert list(blocks) == ["save_runs", "beat", "cheat", "add"]
    assert state_writers(blocks) == {"runs": ["save_runs", "cheat"]}


# -------------------------------------------------------------------------------------------- errors


def test_every_error_code_has_a_page() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "errors").glob("*.md")} - {"README"}
    assert sorted(CODES.keys() - pages) == [], "codes without a page: run `make docs`"
    assert sorted(pages - CODES.keys()) == [], "pages without a code"
