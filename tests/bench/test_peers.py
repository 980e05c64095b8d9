"""The comparison with other systems: its arithmetic, its plot and its errors. Nothing here needs a network."""

import json
import os
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from bench.__main__ import peers_asked
from bench.checking import Broken
from bench.peers import comparing, environments, session
from bench.peers.bars import COMPARISONS, Value, compare
from bench.peers.comparing import Figures, Report, asked_for, compare_all, lines, settings_of
from bench.peers.environments import NotMeasured, python_for, tool_for
from bench.peers.known import PEERS, TENURE, System, UnknownPeer, chosen
from bench.peers.measuring import Taken, lone_turn, sampled
from bench.peers.plot import Panel, Shown, drawn, scale
from bench.peers.plot import main as plot
from bench.peers.session import running
from bench.peers.usage import usage_of
from bench.plan import QUICK
from bench.report import write_json

ROOT = Path(__file__).resolve().parent.parent.parent
KEYS = ["figure", "value", "unit", "against", "ratio", "bar", "met"]
SVG = "{http://www.w3.org/2000/svg}"


def steps(*values: float) -> list[Value]:
    return [Value(value, "steps/s") for value in values]


# ---------------------------------------------------------------------------------------- lines and bars


def test_our_figure_and_a_peers_share_a_line() -> None:
    result = compare("peer_steps_postgres_dbos", steps(10_000, 9_000, 20_000), steps(400, 300, 500), "DBOS")
    line = json.loads(msgspec.json.encode(result.line))
    assert list(line) == KEYS
    assert (line["value"], line["against"], line["ratio"]) == (10_000, 400, 25.0)
    assert line["met"] is True
    assert result.against_is == "DBOS"
    assert not compare("peer_steps_postgres_dbos", steps(9_999), steps(400), "DBOS").line.met


def test_a_latency_is_met_from_below() -> None:
    def met(ours: float, theirs: float) -> bool:
        values = [Value(ours, "ms p50")], [Value(theirs, "ms p50")]
        return compare("peer_lone_run_postgres", *values, "Restate").line.met

    assert met(4.0, 8.0)
    assert not met(4.1, 8.0)


def test_a_figure_in_another_unit_or_without_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match=r"is in steps/s, not in jobs/s"):
        compare("peer_steps_postgres_dbos", [Value(1.0, "jobs/s")], steps(1), "DBOS")
    with pytest.raises(ValueError, match="was not measured"):
        compare("peer_steps_postgres_dbos", steps(1), steps(0), "DBOS")


def test_every_target_of_the_specification_is_compared() -> None:
    bars = {one.name: (str(one.bar), one.at_most) for one in COMPARISONS}
    assert bars == {
        "peer_steps_postgres_dbos": ("25", False),
        "peer_steps_postgres_restate": ("5/2", False),
        "peer_steps_sqlite_dbos": ("25", False),
        "peer_lone_run_postgres": ("1/2", True),
        "peer_lone_run_sqlite": ("1/2", True),
        "peer_single_enqueues_pgqueuer": ("7/10", False),
        "peer_batch_enqueues_pgqueuer": ("1/4", False),
        "peer_jobs_pgqueuer": ("1/2", False),
    }
    systems = {system.name for system in (*PEERS, *TENURE)}
    assert {name for one in COMPARISONS for name in (one.ours, *one.peers)} <= systems


def test_the_best_of_the_measured_peers_is_the_one_to_beat() -> None:
    one = next(one for one in COMPARISONS if one.name == "peer_lone_run_sqlite")

    def turns(*values: float) -> dict[str, list[Taken]]:
        sample = session.Sample(done=1, seconds=1.0, cpu_seconds=None, log_bytes=None)
        return {"lone": [Taken(value, "ms p50", sample) for value in values]}

    taken = {"tenure-sqlite": turns(3, 3), "restate": turns(8, 9), "dbos-sqlite": turns(12, 2)}
    result = comparing._result(one, taken, {"restate": "Restate", "dbos-sqlite": "DBOS"})
    assert result is not None
    assert (result.against_is, result.line.against) == ("DBOS", 7.0)
    assert comparing._result(one, {"tenure-sqlite": turns(3)}, {}) is None


# ------------------------------------------------------------------------------------- choosing peers


def test_peers_are_chosen_by_name() -> None:
    assert {system.name for system in chosen("dbos, restate")} == {"dbos-postgres", "dbos-sqlite", "restate"}
    assert chosen("standard") == chosen("dbos,restate")
    assert chosen("all") == list(PEERS)
    assert chosen("none") == []


def test_an_unknown_peer_is_refused_with_the_known_names() -> None:
    with pytest.raises(UnknownPeer, match=r"'warp': choose from dbos, .*restate.*; or standard, all, none"):
        chosen("dbos,warp")
    command = [sys.executable, "-m", "bench", "--peers", "warp"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert finished.returncode == 2
    assert "no peer is named 'warp'" in finished.stderr


def test_the_whole_bench_has_the_standard_peers_and_a_part_of_it_none() -> None:
    assert {one.peer for one in peers_asked("", "", small=False).peers} == {"dbos", "restate"}
    assert peers_asked("", "leased", small=False).peers == []
    assert peers_asked("", "", small=True).peers == []
    assert peers_asked("none", "", small=False).peers == []


def test_only_narrows_the_comparison_and_what_is_started_for_it() -> None:
    asked = asked_for("all", "peer_jobs")
    assert [one.name for one in asked.comparisons] == ["peer_jobs_pgqueuer"]
    assert [one.name for one in (*asked.peers, *asked.ours)] == ["pgqueuer", "tenure-postgres"]
    assert asked.stores == {"postgres"}
    assert asked_for("restate").stores == {"postgres"}
    assert asked_for("dbos", "sqlite_dbos").stores == {"sqlite"}


# ---------------------------------------------------------------------------------------- environments


def test_a_missing_environment_is_reported_and_not_created(tmp_path: Path) -> None:
    dbos, restate = chosen("dbos")[0], chosen("restate")[0]
    with pytest.raises(NotMeasured, match="no environment for dbos"):
        python_for(dbos, home=tmp_path, install=False)
    with pytest.raises(NotMeasured, match=r"restate-server.* is not in"):
        tool_for(restate, home=tmp_path, install=False)
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_cannot_be_installed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "REQUIREMENTS", tmp_path)
    (tmp_path / "dbos.txt").write_text("no such requirement\n")
    with pytest.raises(NotMeasured, match="dbos cannot be installed: "):
        python_for(chosen("dbos")[0], home=tmp_path / "home")
    assert (tmp_path / "home" / ".gitignore").read_text() == "*\n"
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(NotMeasured, match="npm is not installed"):
        tool_for(chosen("restate")[0], home=tmp_path / "home")


def test_every_peer_is_pinned() -> None:
    for system in PEERS:
        listed = (environments.REQUIREMENTS / f"{system.peer}.txt").read_text().splitlines()
        assert listed
        assert all("==" in line and "://" not in line for line in listed)
        assert (ROOT / "bench" / "peers" / f"{system.peer}.py").is_file()
        assert not system.npm or system.npm.rpartition("@")[2][0].isdigit()


# ------------------------------------------------------------------------------------------- sessions

FAKE = """
    import subprocess, sys, time
    from bench.peers.protocol import serve

    class Fake:
        def __init__(self, site):
            self.site = site
        def prepare(self):
            self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            (self.site.folder.parent.parent / "child").write_text(str(self.child.pid))
            print("noise of a library")
        def throughput(self, runs):
            with self.site.clock():
                if self.site.text("broken", ""):
                    raise RuntimeError("a step was lost")
                sum(range(3_000_000))
            return runs * 5
        def lone(self, runs):
            with self.site.clock():
                return [0.002] * runs
        def figures(self):
            return {}
        def settings(self):
            return {"fake": "1"}
        def close(self):
            pass  # leaves its child behind

    serve(Fake)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    """A peer that runs on this interpreter. Its module is next to a link to the bench."""
    package = tmp_path / "root" / "bench"
    (package / "peers").mkdir(parents=True)
    for folder in (package, package / "peers"):
        (folder / "__init__.py").touch()
    for name in ("protocol.py", "usage.py"):
        (package / "peers" / name).write_text((ROOT / "bench" / "peers" / name).read_text())
    (package / "peers" / "fake.py").write_text(textwrap.dedent(FAKE))
    monkeypatch.setattr(session, "ROOT", tmp_path / "root")
    monkeypatch.setattr(session, "python_for", lambda _: Path(sys.executable))
    return System(name="fake", title="Fake", peer="fake", store="own", warm=2)


def gone(pid: int) -> bool:
    give_up_at = time.monotonic() + 5
    while time.monotonic() < give_up_at:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile, or there is no /proc
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][1] == "Z":
                return True  # a zombie, which its new parent has not reaped yet
    return False


def left_in(folder: Path) -> list[Path]:
    return list(folder.glob("peer-*"))


async def test_a_system_is_measured_by_its_own_clock_and_leaves_nothing(fake: System, tmp_path: Path) -> None:
    async with running(fake, None, tmp_path) as one:
        assert one.settings == {"fake": "1"}
        taken = (await sampled(fake, one, 0.05))["throughput"]
        alone = await lone_turn(one, 3)
    assert taken.value > 0
    assert taken.unit == "steps/s"
    assert taken.sample.cpu_seconds is None or taken.sample.cpu_seconds >= 0
    assert alone is not None
    assert alone.value == 2.0
    assert gone(int((tmp_path / "child").read_text()))
    assert left_in(tmp_path) == []


async def test_a_system_ends_with_its_bench(fake: System, tmp_path: Path) -> None:
    async with running(fake, None, tmp_path) as one:
        assert one._process.stdin is not None
        one._process.stdin.close()  # as when the bench is killed
        assert await one._process.wait() == 0
        assert gone(int((tmp_path / "child").read_text()))


async def test_a_system_that_fails_is_reported_and_not_measured(fake: System, tmp_path: Path) -> None:
    with pytest.raises(NotMeasured, match="RuntimeError: a step was lost"):
        async with running(fake, None, tmp_path, {"broken": "yes"}) as one:
            await sampled(fake, one, 0.05)
    assert gone(int((tmp_path / "child").read_text()))


async def test_a_system_that_does_not_answer_times_out(
    fake: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(fake, None, tmp_path) as one:
        monkeypatch.setattr(session, "ASK_SECONDS_MAX", 0.001)
        with pytest.raises(NotMeasured, match="no answer to 'throughput'"):
            await one.sample("throughput", 1)
        monkeypatch.setattr(session, "STOP_SECONDS_MAX", 0.1)
    assert gone(int((tmp_path / "child").read_text()))


async def test_a_peer_that_fails_is_reported_and_the_others_are_measured(
    fake: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    broken = msgspec.structs.replace(fake, name="restate", options={"broken": "yes"})
    ours = msgspec.structs.replace(fake, name="tenure-postgres", ours=True)
    well = msgspec.structs.replace(fake, name="dbos-postgres")
    asked = msgspec.structs.replace(asked_for("standard"), peers=[broken, well], ours=[ours])
    told: list[str] = []
    outcome = await compare_all(asked, {}, QUICK, told.append, quick=True)
    assert [result.line.figure for result in outcome.results] == [
        "peer_steps_postgres_dbos",
        "peer_lone_run_postgres",
    ]
    assert {report.system: report.not_measured for report in outcome.systems} == {
        "tenure-postgres": "", "restate": "RuntimeError: a step was lost", "dbos-postgres": "",
    }  # fmt: skip
    assert {"system": "restate", "not measured": "RuntimeError: a step was lost"} in lines(outcome.systems)
    asked = msgspec.structs.replace(asked, ours=[msgspec.structs.replace(ours, options={"broken": "yes"})])
    with pytest.raises(Broken, match="a step was lost"):
        await compare_all(asked, {}, QUICK, told.append, quick=True)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="CPU time is read from /proc")
def test_cpu_time_includes_children_that_have_ended() -> None:
    before = usage_of([os.getpid()])
    subprocess.run([sys.executable, "-c", "sum(range(8_000_000))"], check=True)
    after = usage_of([os.getpid()])
    assert before is not None
    assert after is not None
    assert after.since(before).cpu_seconds > 0.02


async def test_tenure_itself_is_measured_the_same_way(tmp_path: Path) -> None:
    ours = msgspec.structs.replace(TENURE[1], warm=5)
    async with running(ours, None, tmp_path) as one:
        taken = await sampled(ours, one, 0.05)
        alone = await lone_turn(one, 2)
    assert set(taken) == {"throughput", "jobs", "single_enqueues", "batch_enqueues"}
    assert alone is not None
    assert alone.sample.done == 10


# ----------------------------------------------------------------------------------------------- plot


def reported(name: str, title: str, **values: float) -> Report:
    figures = {figure: Figures(value, "", None, None, [value]) for figure, value in values.items()}
    return Report(name, title, {"settings": "as usual"}, figures, "" if values else "no network")


def test_the_picture_is_well_formed_and_shows_every_system(tmp_path: Path) -> None:
    written = tmp_path / "report.json"
    systems = [
        reported("tenure-postgres", "Tenure on PostgreSQL", throughput=10_000, lone=4.0, jobs=8000),
        reported("dbos-postgres", "DBOS <&> PostgreSQL", throughput=400, lone=15.0),
        reported("restate", "Restate"),
        reported("pgqueuer", "PgQueuer", throughput=15_000),
    ]
    write_json(written, settings={"cpus": "2"}, figures=[], systems=systems)
    target = tmp_path / "picture.svg"
    plot(written, target)
    picture = ET.fromstring(target.read_text())
    said = [text.text for text in picture.iter(f"{SVG}text")]
    assert said.count("Tenure on PostgreSQL") == 3
    assert said.count("DBOS <&> PostgreSQL") == 2
    assert said.count("PgQueuer") == 1
    assert said.count("not measured") == 2
    assert {"10,000", "400", "15,000", "cpus: 2"} <= set(said)
    assert settings_of(systems)["Restate"] == "not measured: no network"


def test_bars_grow_with_the_logarithm() -> None:
    assert scale([72.0, 10_000.0]) == (1, 4)
    assert scale([10.0]) == (1, 2)
    picture = drawn(
        [Panel("Steps", "steps/s", [Shown("a", 100.0, True), Shown("b", 1000.0), Shown("c", 10.0)])]
    )
    widths = [float(bar.attrib["width"]) for bar in ET.fromstring(picture).iter(f"{SVG}rect")][1:]
    assert widths[1] == pytest.approx(2 * widths[0], abs=0.2)
    assert widths[2] == 0
