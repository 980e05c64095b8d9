"""Pages of documentation as programs: their blocks are run in order, in a folder for each page.

- A `python` or `yaml` block whose first line is a comment with a file's name (`# app.py`) is saved under that name.
- Every other `python` block is executed; the blocks of a page share one namespace. `await` works at the top level.
- A `sh` block is run by bash with this environment's `tenure`. Its variables are kept for the next `sh` block.
- A `text` block directly after one of these is its output. The lines must appear in this order, other lines may be between
  them, and `...` matches anything.
- `<!-- not run: why -->` in the line before a block keeps it from being run.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = {"python", "sh", "yaml", "text", "json", "mermaid", "toml", "http"}
BLOCK_SECONDS = 90
_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<why>[^\n]+?) -->\n)?```(?P<language>[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"# ([\w./-]+\.(?:py|ya?ml))\n")
_DRIVER = Path(__file__).with_name("driver.py")


class Block(NamedTuple):
    """A fenced block."""

    line: int
    language: str
    text: str
    not_run: str | None
    prints: str | None

    @property
    def file(self) -> str | None:
        """The name under which the block is saved, if it is a file."""
        found = _FILE.match(self.text) if self.language in ("python", "yaml") else None
        return found[1] if found else None


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page."""
    text = page.read_text()
    found = list(_FENCE.finditer(text))
    made = []
    for here, following in zip_longest(found, found[1:]):
        prints = None
        if following is not None and following["language"] == "text":
            between = text[here.end() : following.start()]
            prints = following["text"] if not between.strip() else None
        line = text.count("\n", 0, here.start()) + 1
        made.append(Block(line, here["language"], here["text"], here["why"], prints))
    return made


def run(page: Path, folder: Path) -> None:
    """Run a page. An error names the page and the line."""
    with _Session(folder) as session:
        for block in blocks(page):
            place = f"{page.name}:{block.line}"
            if block.not_run is not None:
                continue
            if block.file is not None:
                target = folder / block.file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(block.text)
                if block.language == "python":
                    compile(block.text, place, "exec")
            elif block.language == "python":
                _check(place, block, session.python("\n" * block.line + block.text, page.name))
            elif block.language == "sh":
                _check(place, block, session.shell(block.text))


class Done(NamedTuple):
    """The result of a block."""

    ok: bool
    printed: str


def _check(place: str, block: Block, done: Done) -> None:
    assert done.ok, f"{place} fails:\n{done.printed}"
    rest = done.printed
    for line in (block.prints or "").splitlines():
        if line.strip() in ("", "..."):
            continue
        wanted = r"\s+".join(
            ".*?".join(re.escape(part) for part in word.split("...")) for word in line.split()
        )
        found = re.search(wanted, rest)
        assert found, f"{place} does not print {line.strip()!r} (any more) in:\n{done.printed}"
        rest = rest[found.end() :]


class _Session:
    """A folder with a Python process for the whole page, and a shell that keeps its variables."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {key: value for key, value in os.environ.items() if not key.startswith("TENURE_")}
        self._environment = {**kept, "PATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "140"}
        self._groups: list[int] = []

    def __enter__(self) -> "_Session":
        self._python = subprocess.Popen(
            (sys.executable, str(_DRIVER)),
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        for group in self._groups:  # processes that the page started in the background and did not end
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self._python.stdin.close()
        self._python.wait(BLOCK_SECONDS)
        self._python.stdout.close()

    def python(self, text: str, page: str) -> Done:
        """Execute a block."""
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps({"text": text, "page": page}) + "\n")
        self._python.stdin.flush()
        answer = self._python.stdout.readline()
        return Done(**json.loads(answer)) if answer else Done(False, "Python has ended")

    def shell(self, text: str) -> Done:
        """Run a block with bash. Its variables are kept for the next block."""
        script = f"set -aeuo pipefail; [ ! -f .shell ] || . ./.shell; trap 'export -p > .shell' EXIT\n{text}"
        with (
            tempfile.TemporaryFile() as output
        ):  # not a pipe, because background processes would keep it open
            running = subprocess.Popen(
                ("bash", "-c", script),
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._groups.append(running.pid)
            late = ""
            try:
                running.wait(BLOCK_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()
                late = f"it took more than {BLOCK_SECONDS} s:\n"
            output.seek(0)
            printed = late + output.read().decode(errors="replace")
        return Done(running.returncode == 0, printed)


def pages() -> Iterator[Path]:
    """The pages for readers: the README and the pages of docs."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").glob("*.md"))
