"""Commands cannot see their worker: its environment, memory, file descriptors and files; as root and as an ordinary user.

Linux provides the namespaces. Without them, a worker refuses to execute commands unless that is explicitly allowed.
"""

import asyncio
import ctypes
import os
import pwd
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from tenure import private_files
from tenure.commands import confinement
from tenure.commands.confinement import UNCONFINED, Confinement, choose_confinement
from tenure.commands.process import CommandResult, ResolvedCommand, run_command
from tenure.engine import Engine
from tenure.errors import TenureError
from tests.commands.test_process import Lines, is_alive, until

MARK = "marker-" + "5eCr3t" * 3
NOBODY = pwd.getpwnam("nobody")
NAPS = f"1{os.getpid():06d}"
"""A number of seconds that no other process sleeps."""
IS_ROOT = os.geteuid() == 0
EVERYTHING = {"environ", "mem", "ptrace", "fds", "files"}
USERS = ["root", "root-as-nobody", "ordinary"] if IS_ROOT else ["ordinary"]


def open_python() -> str:
    """An interpreter that every user may start."""
    for each in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3", shutil.which("python3")):
        if each is None or not Path(each).exists():
            continue
        how: dict[str, Any] = {"user": NOBODY.pw_uid, "group": NOBODY.pw_gid} if IS_ROOT else {}
        try:
            if subprocess.run([each, "-I", "-S", "-c", ""], check=False, env={}, **how).returncode == 0:
                return each
        except PermissionError:
            continue
    raise AssertionError("there is no interpreter that an ordinary user may start")


def apart(work: Callable[[], Any], *, uid: int | None, env: dict[str, str]) -> Any:
    """The result of a function in its own process, as another user, with these environment variables from the start."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            if uid is not None:
                os.setgroups([])
                os.setresgid(NOBODY.pw_gid, NOBODY.pw_gid, NOBODY.pw_gid)
                os.setresuid(uid, uid, uid)
                ctypes.CDLL(None).prctl(
                    4, 1, 0, 0, 0
                )  # PR_SET_DUMPABLE, as for a program that this user has started
            os.environ.update(env)
            os.write(writing, msgspec.json.encode(["ok", work()]))
        except BaseException as fault:
            os.write(writing, msgspec.json.encode(["failed", repr(fault)]))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        how, answer = msgspec.json.decode(told.read())
    os.waitpid(child, 0)
    assert how == "ok", answer
    return answer


class Scene:
    """A worker with secrets: in its environment, in its memory, in an open file descriptor and in files."""

    def __init__(self, folder: Path, user: str) -> None:
        self.user = user
        self.uid = NOBODY.pw_uid if user == "ordinary" and IS_ROOT else None
        self.python = open_python()
        self.attack = folder / "attack.py"
        shutil.copy(Path(__file__).with_name("attack.py"), self.attack)
        self.folder = folder / "secrets"
        self.folder.mkdir()
        self.file, self.database = folder / "key.pem", folder / "tenure.db"
        for path in (self.folder / "token", self.file, self.database, Path(f"{self.database}-wal")):
            path.write_text(MARK)
        for path in (folder, *folder.rglob("*")):
            if self.uid is not None:
                os.chown(path, self.uid, NOBODY.pw_gid)
            # Readable by everyone, as an operator may have created them. The launcher hides them anyway.
            path.chmod(0o755 if path.is_dir() else 0o644)

    def got(self, confined: Confinement | None) -> set[str]:
        """What the attack found. None means the default confinement."""

        def work() -> list[str]:
            sys.executable = self.python
            private_files.hide(self.folder, self.file)
            private_files.hide_database(self.database)
            kept = MARK.encode() * 1000  # in memory
            with self.file.open("rb"):
                found = asyncio.run(self._try(confined))
            assert kept
            return found

        # /proc shows the environment with which a process was executed. The attack reads that of its ancestors.
        return set(apart(work, uid=self.uid, env={"SECRET": MARK}))

    async def _try(self, confined: Confinement | None) -> list[str]:
        how = confined or choose_confinement("nobody" if self.user == "root-as-nobody" else None)
        paths = [str(path) for path in (self.folder, self.file, self.database, f"{self.database}-wal")]
        argv = (self.python, "-I", str(self.attack), str(os.getpid()), MARK[::-1], *paths)
        ended = await run_command(ResolvedCommand(argv=argv), confinement=how)
        assert ended.ok, ended
        found: list[str] = msgspec.json.decode(ended.stdout)
        return found


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user can reach, like a working folder. (Not below pytest's folder, which each start of pytest makes private.)"""
    with TemporaryDirectory(prefix="tenure-confinement-") as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path


@pytest.mark.parametrize("user", USERS)
def test_a_command_cannot_see_its_worker(place: Path, user: str) -> None:
    assert Scene(place, user).got(None) == set()


@pytest.mark.parametrize("user", [user for user in USERS if user != "root-as-nobody"])
def test_without_confinement_the_attack_succeeds(place: Path, user: str) -> None:
    """Shows that the test above can fail. (A fork keeps the environment with which its process was executed: see below.)"""
    assert EVERYTHING - Scene(place, user).got(UNCONFINED) <= {"environ"}


# ------------------------------------------------------------------- secrets that are created or replaced while a command runs


class LateScene:
    """A command that works in a folder while secrets around it are created and replaced."""

    def __init__(self, folder: Path, user: str) -> None:
        self.uid = NOBODY.pw_uid if user == "ordinary" and IS_ROOT else None
        self.command_user = "nobody" if user == "root-as-nobody" else None
        self.folder, self.work = folder, folder / "work"
        self.python = open_python()
        for each in (self.work, folder / "secrets", folder / "mounted", folder / "mounted" / "first"):
            each.mkdir()
        for name in ("secrets/token", "key.pem", "tenure.db", "mounted/first/token", "plain.txt"):
            (folder / name).write_text("before")
        (folder / "mounted" / "data").symlink_to("first")
        (folder / "mounted" / "token").symlink_to("data/token")
        shutil.copy(Path(__file__).with_name("late_attack.py"), folder / "attack.py")
        self.open_to_all()

    def open_to_all(self) -> None:
        """Make the secrets readable by everyone, as an operator may have done."""
        for path in (self.folder, *self.folder.rglob("*")):
            if self.uid is not None:
                os.chown(path, self.uid, NOBODY.pw_gid, follow_symlinks=False)
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() else 0o644)

    def paths(self) -> list[str]:
        names = (
            "secrets",
            "key.pem",
            "tenure.db",
            "tenure.db-wal",
            "tenure.db-journal",
            "later.pem",
            "mounted/token",
        )
        inside = (
            "secrets/token",
            "mounted/data/token",
            "mounted/first/token",
            "mounted/second/token",
            "new/deep/key",
        )
        return [str(self.folder / name) for name in (*names, *inside)]

    def change(self) -> None:
        """Change secrets as a worker, an operator and a cluster do."""
        for name in ("tenure.db-wal", "tenure.db-journal", "later.pem"):
            (self.folder / name).write_text(MARK)
        for name in ("key.pem", "tenure.db"):
            (self.folder / "made").write_text(MARK)
            (self.folder / "made").replace(self.folder / name)
        other = self.folder / "secrets-2"
        other.mkdir()
        (other / "token").write_text(MARK)
        (self.folder / "secrets").rename(self.folder / "secrets-1")
        other.rename(self.folder / "secrets")
        mounted = self.folder / "mounted"
        (mounted / "second").mkdir()
        (mounted / "second" / "token").write_text(MARK)
        (mounted / "made").symlink_to("second")
        (mounted / "made").replace(mounted / "data")
        (self.folder / "new" / "deep").mkdir(parents=True)
        (self.folder / "new" / "deep" / "key").write_text(MARK)

    def got(self, cwd: Path) -> tuple[list[str], str]:
        """The paths through which the command found a secret, and its stderr."""

        def work() -> list[Any]:
            sys.executable = self.python
            os.chdir(cwd)
            hide = ("secrets", "key.pem", "later.pem", "mounted/token", "new/deep/key")
            private_files.hide(*(self.folder / name for name in hide))
            private_files.hide_database(self.folder / "tenure.db")
            return asyncio.run(self._try(cwd))

        found, told = apart(work, uid=self.uid, env={})
        return found, told

    async def _try(self, cwd: Path) -> list[Any]:
        how = choose_confinement(self.command_user)
        argv = (self.python, "-I", str(self.folder / "attack.py"), MARK[::-1], *self.paths())
        lines = Lines()
        task = asyncio.create_task(run_command(ResolvedCommand(argv=argv), confinement=how, on_line=lines))
        await until(lambda: ("stdout", "ready") in lines.seen or task.done())
        self.change()
        (cwd / "go").touch()
        ended = await task
        assert ended.ok, ended
        return [msgspec.json.decode(ended.stdout.removeprefix("ready\n")), ended.stderr_tail]


@pytest.mark.parametrize("user", USERS)
def test_a_secret_created_or_replaced_while_a_command_runs_stays_hidden(place: Path, user: str) -> None:
    scene = LateScene(place, user)
    assert scene.got(scene.work) == ([], "")


@pytest.mark.parametrize("user", USERS)
def test_a_secret_replaced_in_a_working_folder_is_reported(place: Path, user: str) -> None:
    """A command sees files that are added to its working folder later, because it creates files there itself."""
    scene = LateScene(place, user)
    got, told = scene.got(place)
    for name in ("key.pem", "tenure.db", "tenure.db-journal", "secrets", "later.pem", "new"):
        assert f"{place / name} was created or replaced while this command ran" in told, name
    assert not [way for way in got if "mounted" in way], "a secret in another folder stays hidden"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(private_files, "_hidden", {})
        private_files.hide(place / "key.pem", place / "mounted" / "token")
        assert confinement.hidden_in_shared_folders() == [str(place / "key.pem")]


def confined(place: Path, user: str, text: str, cwd: Path, *hide: Path) -> dict[str, Any]:
    """The output of a shell whose worker hides some paths."""
    uid = NOBODY.pw_uid if user == "ordinary" and IS_ROOT else None
    for path in (place, *place.rglob("*")):
        if uid is not None:
            os.chown(path, uid, NOBODY.pw_gid)

    python = open_python()

    def work() -> dict[str, Any]:
        sys.executable = python
        private_files.hide(*hide)
        how = choose_confinement("nobody" if user == "root-as-nobody" else None)
        command = ResolvedCommand(argv=("sh", "-c", text), cwd=str(cwd))
        return asyncio.run(run_command(command, confinement=how)).output()

    found: dict[str, Any] = apart(work, uid=uid, env={})
    return found


@pytest.mark.parametrize("user", [user for user in USERS if user != "root-as-nobody"])
def test_files_next_to_a_secret_stay_usable(place: Path, user: str) -> None:
    for name in ("work", "beside", "a folder"):
        (place / name).mkdir()
    (place / "beside" / "file").write_text("old")
    (place / "plain.txt").write_text("old")
    (place / "link").symlink_to("plain.txt")
    (place / "key.pem").write_text(MARK)
    text = (
        "echo new > ../plain.txt; echo new > ../beside/made; mv ../beside/made ../beside/file; cat ../link ../beside/file; echo mine > mine;"
        " cat mine; touch ../here || echo refused; ls -a .."
    )
    found = confined(place, user, text, place / "work", place / "key.pem")
    assert found["stdout"].split("\n") == [
        "new",
        "new",
        "mine",
        "refused",
        ".",
        "..",
        "a folder",
        "beside",
        "link",
        "plain.txt",
        "work",
    ]
    assert "Read-only file system" in found["stderr_tail"]
    assert [(place / name).read_text() for name in ("plain.txt", "beside/file", "work/mine")] == [
        "new\n",
        "new\n",
        "mine\n",
    ]


@pytest.mark.parametrize("user", USERS)
def test_only_the_working_folder_of_a_hidden_folder_is_visible(place: Path, user: str) -> None:
    """For example, PostgreSQL's socket is in /tmp, and a command works below /tmp."""
    work = place / "hidden" / "deep" / "work"
    work.mkdir(parents=True)
    (place / "hidden" / "token").write_text(MARK)
    (place / "hidden" / "deep" / "token").write_text(MARK)
    (work / "mine").write_text("mine")
    for path in (place, *place.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    found = confined(
        place,
        user,
        f"cat mine; cat ../token ../../token {place}/hidden/token; ls {place}/hidden",
        work,
        place / "hidden",
    )
    assert found["stdout"].split("\n") == ["minedeep"]


@pytest.mark.skipif(not IS_ROOT, reason="only root can be another user")
def test_a_folder_that_the_user_cannot_read_stays_unreadable(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    for name in ("key.pem", "other"):
        (closed / name).write_text(MARK)
        (closed / name).chmod(0o644)
    found = confined(
        place, "root-as-nobody", f"cat {closed}/other {closed}/key.pem", place, closed / "key.pem"
    )
    assert MARK not in found["stdout"]
    assert "Permission denied" in found["stderr_tail"]


@pytest.mark.parametrize("kind", ["namespaces", "none"])
async def test_a_command_does_not_get_the_environment_of_its_worker(kind: str, tmp_path: Path) -> None:
    """The worker is executed with secrets in its environment, as workers are."""
    del tmp_path
    script = (
        "import asyncio, sys\n"
        "from tenure.commands.process import ResolvedCommand, run_command\n"
        "from tenure.commands.confinement import Confinement\n"
        "work = ResolvedCommand(argv=('sh', '-c', 'cat /proc/[0-9]*/environ; cat /proc/$PPID/environ'))\n"
        "print(asyncio.run(run_command(work, confinement=Confinement(kind=sys.argv[1]))).output())\n"
    )
    ended = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, kind, env={**os.environ, "SECRET": MARK}, stdout=subprocess.PIPE
    )
    out, _ = await ended.communicate()
    assert (MARK.encode() in out) == (kind == "none")


@pytest.mark.parametrize("user", USERS)
def test_file_names_that_are_not_utf_8_do_not_stop_a_command(place: Path, user: str) -> None:
    (place / "keys").mkdir()
    (place / "keys" / "key").write_text(MARK)
    (place / "keys" / os.fsdecode(b"beside-\xff")).write_text("beside")
    found = confined(
        place, user, f"cat {place}/keys/beside*; cat {place}/keys/key", place, place / "keys/key"
    )
    assert (found["stdout"], MARK in str(found)) == ("beside", False)


@pytest.mark.parametrize("user", USERS)
def test_a_link_above_a_secret_is_unchanged_while_a_command_runs(place: Path, user: str) -> None:
    for number in (1, 2):
        (place / "releases" / str(number)).mkdir(parents=True)
        (place / "releases" / str(number) / "secret").write_text(f"{MARK}-{number}" if number == 2 else "old")
    (place / "current").mkdir()
    (place / "current" / "release").symlink_to(place / "releases" / "1")
    secret = place / "current" / "release" / "secret"

    def replace() -> None:
        while not (place / "ready").exists():
            time.sleep(0.01)
        (place / "new").symlink_to(place / "releases" / "2")
        (place / "new").replace(place / "current" / "release")
        (place / "go").touch()

    flipping = threading.Thread(target=replace)
    flipping.start()
    text = f"touch ready; while [ ! -e go ]; do sleep 0.01; done; cat {secret}; ls {place}/current"
    place.chmod(0o777)
    found = confined(place, user, text, place, secret)
    flipping.join()
    assert (found["stdout"], MARK in str(found)) == ("release", False)


@pytest.mark.parametrize("user", USERS)
def test_an_untouched_link_is_not_reported(place: Path, user: str) -> None:
    for name in ("one", "two", "three", "four"):
        (place / f"{name}.secret").write_text(MARK)
        (place / name).symlink_to(f"{name}.secret")
    found = confined(
        place, user, "echo done", place, *(place / name for name in ("one", "two", "three", "four"))
    )
    assert (found["stdout"], found["stderr_tail"]) == ("done", "")


async def test_a_worker_with_thousands_of_secrets_can_start_commands(tmp_path: Path) -> None:
    """One argument of a process can have 128 KiB."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    private_files.hide(*(secrets / f"a-secret-with-a-long-name-{number}" for number in range(2_000)))
    (secrets / "a-secret-with-a-long-name-7").write_text(MARK)
    ended = await run_command(
        ResolvedCommand(argv=("sh", "-c", f"echo started; cat {secrets}/*")), confinement=choose_confinement()
    )
    assert ended.stdout == "started"


@pytest.mark.skipif(not IS_ROOT, reason="only root can be another user")
def test_without_namespaces_another_user_protects_private_files(place: Path) -> None:
    scene = Scene(place, "root-as-nobody")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private_files, "_hidden", {})
        private_files.hide(scene.file)
        alone = Confinement(kind="user", user=confinement.named_user("nobody"))
        open_to_all = confinement._problem(alone, ("1",))
        assert open_to_all is not None
        assert "make its mode 0600" in open_to_all
        scene.file.chmod(0o600)
        assert confinement._problem(alone, ("2",)) is None
    for path in (scene.folder, scene.database, Path(f"{scene.database}-wal")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    assert scene.got(alone) == set()


# ------------------------------------------------------------------------- the installation of the worker and its launcher

WORKER = """
import asyncio, ctypes, json, os, sys
from tenure import private_files
from tenure.commands import confinement
from tenure.commands.process import ResolvedCommand, run_command

uid, gid, command_user, python, base, prefix, work, place = json.loads(sys.argv[1])
hide, commands = json.loads(sys.argv[2]), json.loads(sys.argv[3])
if uid is not None:
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
os.environ["HOME"] = place
os.chdir(work)
sys.executable, sys.prefix, sys.base_prefix = python, prefix, base
private_files.hide(*hide)
try:
    how = confinement.choose_confinement(command_user)
except Exception as refused:
    sys.exit(str(refused))
ended = [asyncio.run(run_command(ResolvedCommand(argv=tuple(one["argv"]), env=one.get("env", {})), confinement=how)) for one in commands]
print(json.dumps([confinement.__file__, how.kind, [[one.exit_code, one.stdout, one.stderr_tail, one.message] for one in ended]]))
"""


class Installed:
    """A worker's own copy of Tenure and its own venv in a project's folder, home/app, with other files of a project."""

    def __init__(self, place: Path, owner: int) -> None:
        self.place, self.app = place, place / "home" / "app"
        self.package, self.venv = self.app / "inst" / "tenure", self.app / "venv"
        real = open_python()
        ask = "import os, sys; print(sys.base_prefix); print(os.path.basename(os.path.dirname(os.__file__)))"
        self.base, version = subprocess.run(
            [real, "-I", "-S", "-c", ask], capture_output=True, text=True, check=True, env={}
        ).stdout.split()
        self.packages = self.venv / "lib" / version / "site-packages"
        for each in (self.packages, self.venv / "bin", self.app / "keys", place / "free"):
            each.mkdir(parents=True)
        shutil.copytree(
            Path(confinement.__file__).parents[1], self.package, ignore=shutil.ignore_patterns("__pycache__")
        )
        (self.venv / "bin" / "python").symlink_to(real)
        (self.venv / "pyvenv.cfg").write_text(f"home = {os.path.dirname(os.path.realpath(real))}\n")
        for name in ("home/token", "home/app/keys/key", "home/app/venv/secret"):
            (place / name).write_text(MARK)
        shutil.copy(Path(__file__).with_name("damage.py"), place / "damage.py")
        for path in (place, *place.rglob("*")):
            if IS_ROOT:
                os.chown(path, owner, owner if owner == 0 else NOBODY.pw_gid, follow_symlinks=False)
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() else 0o644)
        (place / "free").chmod(0o777)

    def run(
        self, user: str, hide: list[Path], *commands: dict[str, Any], begin: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """What a worker reports about its commands. It is started from the copy, by the program `begin`."""
        uid = NOBODY.pw_uid if user == "ordinary" and IS_ROOT else None
        named = "nobody" if user == "root-as-nobody" else None
        python = str(self.venv / "bin" / "python")
        who = [uid, NOBODY.pw_gid, named, python, self.base, str(self.venv), str(self.app), str(self.place)]
        told = [msgspec.json.encode(each).decode() for each in (who, [str(path) for path in hide], commands)]
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self.package.parent),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return subprocess.run(
            [*begin, sys.executable, "-c", WORKER, *told],
            env=env,
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )

    def attack(self) -> dict[str, Any]:
        """The command that tries to change the installation."""
        launcher = self.package / "commands" / "launcher.py"
        folders = (self.package, self.package / "commands", self.venv, self.venv / "bin", self.packages)
        argv = (
            str(self.venv / "bin" / "python"),
            "-I",
            self.place / "damage.py",
            self.place,
            launcher,
            *folders,
        )
        return {"argv": [str(each) for each in argv]}


OWNERS = (
    [(user, owner) for user in USERS for owner in ("root", "nobody")] if IS_ROOT else [("ordinary", "self")]
)


@pytest.mark.parametrize(("user", "owner"), OWNERS)
@pytest.mark.parametrize("hidden", ["files", "home"])
def test_a_command_cannot_change_the_next_launcher(place: Path, user: str, owner: str, hidden: str) -> None:
    """The user may own the installation. There are secrets next to it and in it, and the working folder may be in a hidden folder."""
    there = Installed(place, NOBODY.pw_uid if owner == "nobody" else os.getuid())
    beside = [place / "home" / "token", there.app / "keys" / "key", there.venv / "secret"]
    look = {
        "argv": [
            "sh",
            "-c",
            f"echo second; cat {' '.join(map(str, beside))}; touch {there.app}/mine && echo made",
        ]
    }
    ended = there.run(user, [*beside, *([place / "home"] if hidden == "home" else [])], there.attack(), look)
    assert ended.returncode == 0, ended.stderr
    used, kind, (attack, second) = msgspec.json.decode(ended.stdout)
    assert (Path(used).parents[1], kind) == (there.package, "namespaces")
    assert attack[:2] == [0, "[]"], attack
    assert not (place / "free" / "escaped").exists()
    owns = owner == {"root": "root"}.get(
        user, "nobody" if IS_ROOT else "self"
    )  # root has no capabilities there
    assert second[1].split("\n") == (["second", "made"] if owns else ["second"])
    assert (there.app / "mine").exists() == owns


@pytest.mark.skipif(not IS_ROOT, reason="only root can mount something beforehand")
@pytest.mark.parametrize("user", USERS)
def test_mounts_inside_the_installation_are_read_only_too(place: Path, user: str) -> None:
    """The mounts have flags that cannot be removed in a user namespace."""
    there = Installed(place, NOBODY.pw_uid)
    mounted = there.venv / "mounted here"
    mounted.mkdir()
    mount = 'mount -t tmpfs -o nosuid,nodev,noexec,mode=0777 none "$0" && exec "$@"'
    look = {
        "argv": [
            "sh",
            "-c",
            f"ls -d '{mounted}'; touch '{mounted}/new' || touch {place}/free/new && echo done",
        ]
    }
    ended = there.run(user, [], look, begin=("unshare", "-m", "sh", "-c", mount, str(mounted)))
    assert ended.returncode == 0, ended.stderr
    ((code, out, told, _),) = msgspec.json.decode(ended.stdout)[2]
    assert (code, out) == (0, f"{mounted}\ndone"), told
    assert "Read-only file system" in told
    assert (place / "free" / "new").exists()


@pytest.mark.parametrize("user", USERS)
def test_a_command_cannot_move_a_secret_to_a_visible_place(place: Path, user: str) -> None:
    (place / "deploy" / "new" / "keys").mkdir(parents=True)
    (place / "work").mkdir()
    secret = place / "deploy" / "new" / "keys" / "key"
    secret.write_text(MARK)
    for path in (place, *place.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o644)
    moves = f"mv {place}/deploy/new/keys {place}/keys; mv {place}/deploy/new {place}/new; mv {place}/deploy {place}/moved"
    confined(place, user, moves, place / "work", secret)
    found = confined(place, user, f"cat $(find {place} -name key); echo done", place / "work", secret)
    assert found["stdout"] == "done"


@pytest.mark.parametrize("user", USERS)
def test_the_variables_of_a_command_do_not_reach_its_launcher(place: Path, user: str) -> None:
    """Otherwise the loader would obey them before the confinement begins."""
    there = Installed(place, os.getuid())
    env = {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": f"{place}/free/loaded", "PLAIN": "given"}
    ended = there.run(user, [], {"argv": ["sh", "-c", "echo $PLAIN $LD_DEBUG; env"], "env": env})
    assert ended.returncode == 0, ended.stderr
    ((code, out, _, _),) = msgspec.json.decode(ended.stdout)[2]
    assert (code, out.split("\n")[0], "COMMAND_" in out) == (0, "given files", False)
    loaded = "".join(path.read_text() for path in (place / "free").glob("loaded.*"))
    assert "python" not in loaded


@pytest.mark.skipif(not IS_ROOT, reason="only root can be another user")
@pytest.mark.parametrize("owned", ["package", "venv", "app", "launcher"])
def test_without_namespaces_a_user_who_can_change_the_installation_is_refused(
    place: Path, owned: str
) -> None:
    there = Installed(place, 0)
    launcher = there.package / "commands" / "launcher.py"
    paths = {"package": there.package, "venv": there.venv, "app": there.app, "launcher": launcher}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private_files, "_hidden", {})
        patch.setattr(confinement, "_PACKAGE", there.package)
        patch.setattr(sys, "prefix", str(there.venv))
        patch.setattr(sys, "base_prefix", there.base)
        patch.setattr(sys, "executable", str(there.venv / "bin" / "python"))
        confinement._installation.cache_clear()
        alone = Confinement(kind="user", user=confinement.named_user("nobody"))
        assert confinement._problem(alone, (owned, "1")) is None
        os.chown(paths[owned], NOBODY.pw_uid, NOBODY.pw_gid)
        refused = confinement._problem(alone, (owned, "2"))
        assert refused is not None
        assert f"user {NOBODY.pw_uid} can change {paths[owned]}" in refused
        assert "--command-user" in refused
    confinement._installation.cache_clear()


# -------------------------------------------------------------------------------- the processes of a command


async def run(text: str, **how: Any) -> CommandResult:
    """Run a shell in the default confinement."""
    return await run_command(
        ResolvedCommand(argv=("sh", "-c", text)), confinement=choose_confinement(), **how
    )


async def test_the_processes_of_a_command_end_with_it() -> None:
    assert (await run("exit 7")).exit_code == 7
    assert (await run("kill -9 $$")).exit_code == -9
    assert (await run("echo out; echo err >&2")).output() == {
        "exit_code": 0,
        "stdout": "out",
        "stderr_tail": "err",
    }
    nothing = await run_command(ResolvedCommand(argv=("no-such-program",)), confinement=choose_confinement())
    assert (nothing.exit_code, "cannot be started: No such file" in nothing.message) == (127, True)
    nowhere = ResolvedCommand(argv=("true",), cwd="/no/such/folder")
    assert (
        "cannot be started in /no/such/folder"
        in (await run_command(nowhere, confinement=choose_confinement())).message
    )


async def test_a_command_gets_a_grace_period() -> None:
    lines, cancel = Lines(), asyncio.Event()
    text = "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.01; done"
    task = asyncio.create_task(run(text, cancel=cancel, on_line=lines))
    await until(lambda: ("stdout", "ready") in lines.seen)
    cancel.set()
    ended = await task
    assert (ended.canceled, ended.stdout) == (True, "ready\nbye")


async def test_a_canceled_task_leaves_no_process() -> None:
    lines = Lines()
    task = asyncio.create_task(run(f"setsid sleep {NAPS} & echo ready; wait", on_line=lines))
    await until(lambda: ("stdout", "ready") in lines.seen)
    await until(lambda: bool(_sleeping()))
    left = _sleeping()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not any(is_alive(pid) for pid in left))


def _sleeping() -> list[int]:
    """The processes of the test above, by their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "cmdline").read_bytes() == b"sleep\0" + NAPS.encode() + b"\0":
                found.append(int(folder.name))
    return found


# -------------------------------------------------------------------------------------- without confinement


@pytest.fixture
def no_confinement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without namespaces and without root."""
    monkeypatch.setattr(confinement, "_problem", lambda *_: "not here")
    monkeypatch.setattr(confinement, "_be_undumpable", lambda: None)


@pytest.mark.usefixtures("no_confinement")
async def test_a_worker_refuses_commands_that_it_cannot_confine_by_default(
    tmp_path: Path,
) -> None:
    async with Engine(str(tmp_path / "tenure.db")) as engine:
        with pytest.raises(TenureError, match="COMMANDS_UNCONFINED") as refused:
            await engine.worker(commands=True).start()
        assert "--allow-unconfined-commands" in refused.value.spec.remedy
        async with engine.worker(commands=True, allow_unconfined_commands=True) as worker:
            assert worker.confinement == UNCONFINED


def test_an_unconfined_worker_is_not_dumpable() -> None:
    def work() -> int:
        confinement._be_undumpable()
        return int(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))

    assert apart(work, uid=None, env={}) == 0


def test_an_unknown_user_is_refused() -> None:
    with pytest.raises(TenureError, match="INVALID_INPUT"):
        choose_confinement("no-such-user")


# ------------------------------------------------------------------------------------------- from the shell


def test_a_worker_from_the_shell_confines_commands_and_reports_it(place: Path) -> None:
    """The worker has a database, a secret in its environment and a folder of secrets, as on a server."""
    (place / "secrets").mkdir()
    (place / "secrets" / "token").write_text(MARK)
    look = (
        "cat /proc/[0-9]*/environ secrets/token tenure.db tenure.db-wal 2>/dev/null | head -c 100000; id -un"
    )
    flow = {"name": "curious", "steps": [{"id": "look", "run": ["sh", "-c", look]}]}
    (place / "curious.yaml").write_text(msgspec.json.encode(flow).decode())
    env = {
        **os.environ,
        "SECRET": MARK,
        "TENURE_SECRETS": str(place / "secrets"),
        "TENURE_DB": "sqlite:tenure.db",
    }
    tenure = [sys.executable, "-m", "tenure.cli"]

    def call(*words: str) -> str:
        done = subprocess.run(
            [*tenure, *words], cwd=place, env=env, capture_output=True, text=True, check=True
        )
        return done.stdout

    run_id = call("run", "curious.yaml", "--detach").strip()
    with subprocess.Popen(
        [*tenure, "worker", "--commands"], cwd=place, env=env, stderr=subprocess.PIPE, text=True
    ) as worker:
        call("runs", "watch", run_id)
        worker.terminate()
        _, told = worker.communicate()
    (step,) = msgspec.json.decode(call("runs", "show", run_id, "--json"))["steps"]
    seen = step["output"]["stdout"]
    assert MARK not in seen
    assert "SQLite format" not in seen
    assert seen.endswith("nobody" if IS_ROOT else pwd.getpwuid(os.geteuid()).pw_name)
    assert "in namespaces of their own" in told
