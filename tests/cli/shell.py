"""The command line, called in this process: quick enough for a test of each command."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tenure.cli.main import main


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """What it printed for programs."""
        assert self.code == 0, self.err
        return json.loads(self.out)


Tenure = Callable[..., Done]


def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    """`tenure(…)` as it works in this folder, with its default database there."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("TENURE_DB", raising=False)

    def tenure(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["tenure", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return tenure
