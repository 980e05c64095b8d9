"""The bench works and prints what it promises. These tests do not check speed."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import load_of
from bench.checking import Broken, check
from bench.figures import Figure, all_series, guarded, orchestrating
from bench.finished import TABLES, fill
from bench.many import KINDS
from bench.places import SqlitePlace, open_places
from bench.plan import QUICK, Plan
from bench.report import result_of
from bench.stopwatch import stopwatch
from bench.workloads import Expected, code_first, code_first_run, leased
from tenure.ids import run_text

ROOT = Path(__file__).resolve().parent.parent.parent
KEYS = ["figure", "value", "unit", "against", "ratio", "bar", "met"]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)


def test_a_quick_bench_prints_a_line_per_figure_and_a_table(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    finished = bench("--quick", "--only", "*_sqlite", "--finished", "30", "--json", str(report))
    assert finished.returncode == 0, finished.stderr
    lines = [json.loads(line) for line in finished.stdout.splitlines() if line.startswith("{")]
    assert [line["figure"] for line in lines] == [
        "code_first_steps_sqlite",
        "leased_steps_sqlite",
        "lone_run_latency_sqlite",
        "flat_long_run_checkpoints_start_sqlite",
        "flat_long_run_checkpoints_end_sqlite",
        "flat_long_run_chain_start_sqlite",
        "flat_long_run_chain_end_sqlite",
        "flat_long_run_fan_start_sqlite",
        "flat_long_run_fan_end_sqlite",
        "suspended_memory_sqlite",
        "suspended_load_sqlite",
        *(f"many_{kind}_{count}_sqlite" for kind in KINDS for count in (8, 16)),
        "children_20_sqlite",
        "replay_100_sqlite",
        "flat_finished_runs_code_first_sqlite",
        "flat_finished_runs_leased_sqlite",
    ]
    for line in lines:
        assert list(line) == KEYS
        assert line["value"] > 0 < line["against"]
        assert isinstance(line["met"], bool)
    for word in ("synchronous=full", "gc.freeze", "cpus", "commit", "msgspec", "lanes", "in flight"):
        assert word in finished.stdout
    assert "1/1" in finished.stderr
    written = json.loads(report.read_text())
    assert [figure["line"] for figure in written["figures"]] == lines
    assert all(len(figure["samples"]) == 1 for figure in written["figures"])


def test_a_quick_bench_works_on_postgresql_too() -> None:
    finished = bench("--quick", "--only", "*_steps_postgres")
    assert finished.returncode == 0, finished.stderr
    lines = [json.loads(line) for line in finished.stdout.splitlines() if line.startswith("{")]
    assert [line["figure"] for line in lines] == ["code_first_steps_postgres", "leased_steps_postgres"]
    assert "fsync=on" in finished.stdout


def test_a_profile_shows_the_stages_of_a_command() -> None:
    finished = bench("--quick", "--profile", "--only", "sqlite")
    assert finished.returncode == 0, finished.stderr
    for stage in ("decide", "event: hash", "rows: to tuples", "database: statements", "waiting"):
        assert stage in finished.stdout
    assert "Not timed" not in finished.stdout, "the stopwatch looks for names that no longer exist"
    assert "tottime" in finished.stdout


def test_a_pattern_that_matches_no_figure_is_reported() -> None:
    finished = bench("--only", "warp")
    assert finished.returncode == 2
    assert "no figure matches 'warp'" in finished.stderr


def test_only_the_bad_side_of_a_target_is_a_miss() -> None:
    series = {figure.name: figure for one in all_series(Plan()) for figure in one.figures}
    speed, latency = series["code_first_steps_postgres"], series["lone_run_latency_sqlite"]
    result = result_of(speed, [(600.0, 90.0), (600.0, 101.0), (60.0, 5000.0)])
    assert (result.line.value, result.line.against, result.line.met) == (101, 600, True)
    assert not result_of(speed, [(600.0, 99.0)]).line.met
    assert result_of(latency, [(1.0, 2.4)]).line.met
    assert not result_of(latency, [(1.0, 2.5)]).line.met


def test_every_target_of_the_specification_is_measured() -> None:
    def bars(figures: list[Figure]) -> dict[str, str]:
        return {figure.name: str(figure.bar) for figure in figures}

    found = bars([figure for one in all_series(Plan(finished=1)) for figure in one.figures])
    assert found["code_first_steps_postgres"] == "1/6"
    assert found["code_first_steps_sqlite"] == "1/12"
    assert found["leased_steps_postgres"] == "1/16"
    assert found["leased_steps_sqlite"] == "1/30"
    assert found["lone_run_latency_postgres"] == found["lone_run_latency_sqlite"] == "12/5"
    assert {bar for name, bar in found.items() if name.startswith("flat_long")} == {"3/4"}
    assert {bar for name, bar in found.items() if name.startswith("flat_finished")} == {"4/5"}
    million = bars([figure for one in all_series(Plan(finished=1_000_000)) for figure in one.figures])
    assert {bar for name, bar in million.items() if name.startswith("flat_finished")} == {"3/4"}
    assert {bar for name, bar in found.items() if name.startswith("suspended_")} == {"1"}
    assert {bar for name, bar in found.items() if name.startswith(("many_", "replay_50000_"))} == {"3/2"}
    assert {bar for name, bar in found.items() if name.startswith("children_5000_")} == {"1"}


async def test_an_unexpected_result_stops_the_bench(tmp_path: Path) -> None:
    async with SqlitePlace(tmp_path).database() as database:
        async with orchestrating(database) as orchestrator:
            good = await code_first_run(orchestrator)
        await check(database.store, [good], checked=1)
        wrong = Expected(good.run_id, good.events, good.steps_done + 1)
        with pytest.raises(Broken, match=run_text(good.run_id)):
            await check(database.store, [wrong], checked=1)
        with pytest.raises(Broken, match="does not exist"):
            await check(database.store, [Expected(good.run_id + 1, 7, 5)], checked=1)
        with pytest.raises(Broken, match="same id"):
            await check(database.store, [good, good], checked=1)


def test_a_busy_machine_is_reported() -> None:
    assert "THE MACHINE WAS BUSY" not in load_of(0.0, 9.0)
    assert "THE MACHINE WAS BUSY" in load_of(99.0, 0.0)


async def test_a_sample_that_does_not_end_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.figures.SAMPLE_SECONDS_MAX", 0.01)
    with pytest.raises(Broken, match="still running"):
        await guarded(asyncio.sleep(60))


async def test_a_worker_that_fails_ends_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SqlitePlace(tmp_path).database() as database, orchestrating(database) as orchestrator:

        async def refused(*_: object, **__: object) -> None:
            raise RuntimeError("no claims today")

        monkeypatch.setattr(orchestrator, "claim", refused)
        with pytest.raises(RuntimeError, match="no claims today"):
            await leased(orchestrator, 3, 3, 1, 3)


async def test_finished_runs_are_copied_into_every_table(tmp_path: Path) -> None:
    async with SqlitePlace(tmp_path).database() as database:
        async with orchestrating(database) as orchestrator:
            original = await code_first_run(orchestrator)
        before = {size.table: size.rows for size in await database.store.read("sizes")}
        told: list[int] = []
        await fill(database, original.run_id, 9, told.append)
        after = {size.table: size.rows for size in await database.store.read("sizes")}
        assert {table: after[table] for table in TABLES} == {table: before[table] * 10 for table in TABLES}
        newest = await database.store.read("runs_page", "tenant-1", 1 << 62, 0, 20)
        assert [run.id for run in newest] == sorted((run.id for run in newest), reverse=True)
        assert newest[0].id == original.run_id
        assert told == [9]


async def test_the_stopwatch_restores_everything(tmp_path: Path) -> None:
    from tenure.kernel import history

    before = history.event_hash
    with stopwatch() as (watch, missing):
        assert missing == []
        async with SqlitePlace(tmp_path).database() as database, orchestrating(database) as orchestrator:
            await code_first(orchestrator, 3, 3)
        taken = watch.taken()
    assert history.event_hash is before
    assert taken["decide"][1] == 3 * 6
    assert taken["event: hash"][1] == 3 * 6


def test_the_databases_are_on_a_disk_and_removed_afterwards() -> None:
    with open_places({"sqlite"}) as places:
        place = places["sqlite"]
        assert isinstance(place, SqlitePlace)
        folder = place._folder
        assert folder.is_dir()
        said = asyncio.run(place.settings())["sqlite disk"]
        assert "unknown" not in said or not Path("/proc/self/mounts").exists()
    assert not folder.exists()
    assert QUICK.repeat == 1
