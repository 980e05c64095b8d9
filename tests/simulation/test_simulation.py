"""Simulated worlds: no seed breaks an invariant, a seed always gives the same world, and a failure can be reproduced."""

import asyncio
import os
import subprocess
import sys
from random import Random

import pytest
from typer.testing import CliRunner

from tenure.cli.main import app
from tenure.simulate import World, simulate
from tenure.simulate.campaign import reproduction_command, run_seeds
from tenure.simulate.faults import CALM, Faults
from tenure.simulate.loop import Host, SimLoop, Stalled
from tests.simulation.planted_bugs import BUGS, planted

SEEDS = 1_000


def test_a_thousand_seeds_break_no_invariant_and_heal() -> None:
    """The faults are crashes around commits, lost and repeated messages, pauses and wrong clocks. `make hunt` runs more seeds."""
    tally = run_seeds(range(SEEDS), jobs=os.cpu_count() or 1)
    assert [f"{reproduction_command(report.seed)}  # {report.violation}" for report in tally.failed] == []
    assert tally.seeds == SEEDS
    assert tally.commits > 20 * SEEDS


def only(**faults: float) -> Faults:
    return Faults(**faults)


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(CALM, id="no faults"),
        # Failure 10: hosts' clocks up to ten minutes off, ahead and stepped back.
        pytest.param(only(skew=3.0), id="every clock is wrong"),
        # Failures 3, 4 and 7: workers pause past their leases or vanish. Their slots are freed.
        pytest.param(only(pause=0.4, vanish=0.3), id="workers pause or vanish"),
        # Failure 17: the answer to a commit is lost, before or after it happened.
        pytest.param(only(ambiguous_before=0.3, ambiguous_after=0.3), id="commits with unknown outcome"),
        # Failures 6 and 8.
        pytest.param(
            only(crash_before=0.1, crash_after=0.1, outage=2.0), id="processes and the database crash"
        ),
        # Failure 28: messages permuted and duplicated.
        pytest.param(only(lose=0.3, duplicate=0.6, delay=0.3), id="a bad network"),
        # Failure 9, in part: wake-ups are lost, and the sweeper is off for a while.
        pytest.param(only(deaf=1.0, unswept=3.0), id="lost wake-ups"),
    ],
)
def test_each_kind_of_fault_at_its_maximum_breaks_no_invariant(faults: Faults) -> None:
    for seed in range(20):
        report = World(seed, faults=faults).run()
        assert report.violation is None, f"seed {seed}: {report.violation}"


# ------------------------------------------------------------------------------------------ determinism


def test_the_same_seed_gives_the_same_trace_twice() -> None:
    first, second = simulate(7, trace=True), simulate(7, trace=True)
    assert first.trace == second.trace
    assert len(first.trace) > 20
    assert first.digest == second.digest
    assert simulate(8).digest != first.digest


def test_a_trace_depends_neither_on_the_process_nor_on_its_hash_seed() -> None:
    program = "from tenure.simulate import simulate; print(*[simulate(seed).digest for seed in range(6)])"
    printed = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "4711")
    ]
    assert printed[0] == printed[1]
    assert printed[0].split() == [simulate(seed).digest for seed in range(6)]


# ------------------------------------------------------------------------------------ the command line


def test_a_failing_seed_prints_the_line_that_reproduces_it() -> None:
    bug = BUGS["uncharged-claim"]
    with planted(bug):
        done = CliRunner().invoke(app, ["simulate", "--start", str(bug.seed), "--seeds", "2", "--jobs", "1"])
        assert done.exit_code == 1
        line = next(line for line in done.output.splitlines() if reproduction_command(bug.seed) in line)
        command, violation = line.split("  # ")
        again = CliRunner().invoke(app, command.split()[2:])
        assert again.exit_code == 1
        assert violation in again.output
    assert CliRunner().invoke(app, command.split()[2:]).exit_code == 0


def test_a_trace_shows_commits_faults_and_virtual_time() -> None:
    done = CliRunner().invoke(app, ["simulate", "--seed", "7", "--trace"])
    assert done.exit_code == 0
    assert " serving" in done.output
    assert " create " in done.output
    assert "the faults stop" in done.output
    assert f"trace digest: {simulate(7).digest}" in done.output
    assert "simulated hours" in done.output


def test_many_seeds_are_counted() -> None:
    done = CliRunner().invoke(app, ["simulate", "--seeds", "12", "--jobs", "2"])
    assert done.exit_code == 0
    assert "seeds 12 " in done.output
    for word in ("steps", "commits", "simulated hours", "wall"):
        assert word in done.output


def test_a_trace_of_many_seeds_is_refused() -> None:
    done = CliRunner().invoke(app, ["simulate", "--trace"])
    assert done.exit_code == 2
    assert "--seed" in done.output


# --------------------------------------------------------------------------------------------- the loop


def sim_loop(seed: int = 1) -> SimLoop:
    return SimLoop(Random(seed))  # type: ignore[abstract]  # sockets and signals are left out on purpose


def test_time_jumps_to_the_next_timer() -> None:
    async def sleeper() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    loop = sim_loop()
    assert loop.run_until_complete(sleeper()) == 86_400
    loop.close()


def test_a_dead_host_never_runs_again_and_a_paused_one_continues() -> None:
    seen: list[str] = []

    async def beat(name: str) -> None:
        try:
            for n in range(3):
                await asyncio.sleep(1)
                seen.append(f"{name}{n}@{asyncio.get_running_loop().time():g}")
        finally:
            seen.append(f"{name} ends")

    async def world(loop: SimLoop) -> None:
        dying, pausing = Host("dying"), Host("pausing")
        loop.create_task(beat("d"), context=dying.context())
        task = loop.create_task(beat("p"), context=pausing.context())
        await asyncio.sleep(1.5)
        dying.alive = False
        pausing.paused_until = 100
        await task

    loop = sim_loop()
    loop.run_until_complete(world(loop))
    assert sorted(seen) == ["d0@1", "p ends", "p0@1", "p1@100", "p2@101"]
    loop.close()


def test_waiting_forever_is_detected() -> None:
    async def wait_forever(loop: SimLoop) -> None:
        await loop.create_future()

    loop = sim_loop()
    with pytest.raises(Stalled):
        loop.run_until_complete(wait_forever(loop))
    loop.close()
