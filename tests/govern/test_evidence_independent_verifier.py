"""The verifier program in docs/evidence.md works without Tenure."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure.govern.evidence.defects import DEFECT_CODES
from tenure.govern.evidence.verification import EvidenceFiles
from tenure.proof.ed25519 import public_pem
from tests.docs.pages import ROOT, blocks
from tests.govern.evidence_samples import Sealed

PAGE = ROOT / "docs" / "evidence.md"
Check = Callable[[EvidenceFiles], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Sealed:
    return Sealed(tmp_path_factory.mktemp("sealed"))


@pytest.fixture
def check(sealed: Sealed, tmp_path: Path) -> Check:
    """Run the program of the page on a part, in a Python process that cannot import Tenure."""
    (program,) = [block.text for block in blocks(PAGE) if block.file == "check.py"]
    assert "tenure" not in [
        line.split()[1].partition(".")[0] for line in program.splitlines() if "import " in line
    ]
    (tmp_path / "check.py").write_text(program)
    (tmp_path / "seal.pub").write_text(public_pem(sealed.signer.public))

    def run(part: EvidenceFiles) -> subprocess.CompletedProcess[str]:
        (tmp_path / part.name).write_bytes(part.zip)
        (tmp_path / f"{part.name}.dsse.json").write_bytes(part.envelope or b"")
        command = [sys.executable, "check.py", part.name, "seal.pub"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


def test_the_verifier_on_the_page_accepts_sealed_evidence(sealed: Sealed, check: Check) -> None:
    for part in (sealed.bundle, sealed.supplement):
        done = check(part)
        assert done.returncode == 0, done.stderr
        assert sealed.signer.id[:12] in done.stdout


def test_the_verifier_on_the_page_finds_the_same_defects(sealed: Sealed, check: Check) -> None:
    forged = sealed.with_events(lambda lines: lines[3].update(actor="mallory"))
    wrong = (
        EvidenceFiles(name=sealed.bundle.name, zip=forged, envelope=sealed.bundle.envelope),
        EvidenceFiles(name=sealed.bundle.name, zip=sealed.bundle.zip, envelope=sealed.foreign.envelope),
        EvidenceFiles(
            name=sealed.bundle.name, zip=sealed.bundle.zip, envelope=sealed.signed_by(sealed.other)
        ),
        EvidenceFiles(name=sealed.bundle.name, zip=sealed.bundle.zip[:-9], envelope=sealed.bundle.envelope),
    )
    for part in wrong:
        assert check(part).returncode != 0


def test_the_page_lists_every_code() -> None:
    text = PAGE.read_text()
    assert [code for code in DEFECT_CODES if f"`{code}`" not in text] == []
