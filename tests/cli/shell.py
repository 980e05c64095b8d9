"""Run commands inside this process, which is fast."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tenure.cli.main import main


class Done(NamedTuple):
    """The exit code and output of a command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Return the printed JSON. The command must have succeeded."""
        assert self.code == 0, self.err
        return json.loads(self.out)


Tenure = Callable[..., Done]


def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    """Return `tenure(…)`, which runs a command in this folder with the default database in it."""
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
