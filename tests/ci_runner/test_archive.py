"""Archives of artifacts and caches: the same files give the same bytes, and unpacking never leaves its folder."""

import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest

from tenure.ci_runner.archive import entries_below, entries_of_files, unpack_archive, write_archive
from tenure.ci_runner.job_storage import JobFile
from tenure.errors import TenureError


def packed(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    """An archive of anything."""
    into = io.BytesIO()
    with tarfile.open(mode="w:gz", fileobj=into) as archive:
        for info, body in members:
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    into.seek(0)
    return into


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", body: bytes = b""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info, body


def tree(folder: Path) -> dict[str, str]:
    """Every file, link and empty folder below a folder."""
    return {
        str(path.relative_to(folder)): f"-> {os.readlink(path)}" if path.is_symlink() else path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def test_files_folders_and_inner_links_are_restored(tmp_path: Path) -> None:
    root = tmp_path / "work"
    (root / "env" / "bin").mkdir(parents=True)
    (root / "env" / "bin" / "tool").write_text("run")
    (root / "env" / "bin" / "tool").chmod(0o755)
    (root / "env" / "lib").mkdir()
    (root / "env" / "link").symlink_to("bin/tool")
    (root / "env" / "lib" / "up").symlink_to("../bin")
    (root / "env" / "out").symlink_to("/etc/passwd")
    (root / "env" / "far").symlink_to("../../secret")
    os.mkfifo(root / "env" / "pipe")
    (root / "alone").write_text("1")
    entries = entries_below([root / "env", Path("alone"), Path("missing")], root)
    into = io.BytesIO()
    write_archive(entries, into)
    into.seek(0)
    unpack_archive(into, tmp_path / "restored")
    assert tree(tmp_path / "restored") == {
        "alone": "1",
        "env/bin/tool": "run",
        "env/lib/up": "-> ../bin",
        "env/link": "-> bin/tool",
    }
    assert (tmp_path / "restored" / "env" / "bin" / "tool").stat().st_mode & 0o777 == 0o755
    with pytest.raises(TenureError, match="outside of the workspace"):
        entries_below([tmp_path / "elsewhere"], root)


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    made: list[bytes] = []
    for folder, order in (("one", ("a", "b")), ("two", ("b", "a"))):
        root = tmp_path / folder
        root.mkdir()
        for name in order:
            (root / name).write_text(name)
        os.utime(root / "a", (1, len(made)))
        into = io.BytesIO()
        write_archive(entries_of_files([JobFile(name, root / name, 1, 0o644) for name in order]), into)
        made.append(into.getvalue())
    assert made[0] == made[1]


def test_a_link_in_the_place_of_a_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "file").symlink_to("secret")
    with pytest.raises(TenureError, match="cannot be read"):
        write_archive(entries_of_files([JobFile("file", tmp_path / "file", 6, 0o644)]), io.BytesIO())
    with pytest.raises(TenureError, match="is refused"):
        entries_of_files([JobFile("../file", tmp_path / "secret", 6, 0o644)])


ESCAPES = {
    "an absolute path": [member("/etc/evil", body=b"x")],
    "a path upwards": [member("../evil", body=b"x")],
    "a path upwards inside": [member("a/../../evil", body=b"x")],
    "a link out": [member("out", tarfile.SYMTYPE, "../evil")],
    "an absolute link": [member("out", tarfile.SYMTYPE, "/etc/passwd")],
    "a link out through a folder": [member("a/b/out", tarfile.SYMTYPE, "../../../evil")],
    "a hard link": [member("a", body=b"x"), member("hard", tarfile.LNKTYPE, "a")],
    "a device": [member("null", tarfile.CHRTYPE)],
    "a pipe": [member("pipe", tarfile.FIFOTYPE)],
    "a file through a link": [member("in", tarfile.SYMTYPE, "."), member("in/evil", body=b"x")],
    "a file through a chain of links": [
        member("a", tarfile.DIRTYPE),
        member("a/up", tarfile.SYMTYPE, ".."),
        member("a/up/evil", body=b"x"),
    ],
    "an empty name": [member("", body=b"x")],
    "a deep path": [member("/".join("d" * 200), body=b"x")],
}


@pytest.mark.parametrize("what", ESCAPES)
def test_an_archive_that_leaves_its_folder_is_refused(tmp_path: Path, what: str) -> None:
    with pytest.raises(TenureError, match="the archive is refused"):
        unpack_archive(packed(*ESCAPES[what]), tmp_path / "into")
    assert list(tmp_path.rglob("evil")) == []
    assert not Path("/etc/evil").exists()


def test_a_link_that_was_in_the_folder_before_is_not_written_through(tmp_path: Path) -> None:
    into, outside = tmp_path / "into", tmp_path / "outside"
    into.mkdir()
    outside.mkdir()
    (outside / "file").write_text("mine")
    (into / "folder").symlink_to(outside)
    (into / "file").symlink_to(outside / "file")
    with pytest.raises(TenureError, match="below a link"):
        unpack_archive(packed(member("folder/evil", body=b"x")), into)
    unpack_archive(packed(member("file", body=b"theirs")), into)
    assert tree(outside) == {"file": "mine"}
    assert (into / "file").read_text() == "theirs"


NO_ARCHIVES = {
    "nothing": b"",
    "a text": b"no archive",
    "a compressed text": gzip.compress(b"no tar", mtime=0),
    "a cut file": gzip.compress(b"x" * 2_000, mtime=0)[:15],
}


@pytest.mark.parametrize("what", NO_ARCHIVES)
def test_what_is_no_archive_is_refused(tmp_path: Path, what: str) -> None:
    with pytest.raises(TenureError, match="INVALID_INPUT"):
        unpack_archive(io.BytesIO(NO_ARCHIVES[what]), tmp_path / "into")


def test_the_size_of_an_archive_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.ci_runner.archive.UNPACKED_BYTES_MAX", 1_000)
    bomb = packed(*(member(f"f{i}", body=b"\0" * 300) for i in range(4)))
    with pytest.raises(TenureError, match="more than 1000 bytes"):
        unpack_archive(bomb, tmp_path / "into")
