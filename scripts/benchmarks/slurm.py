"""A job on Slurm: what gridtf costs there beside srun, mpirun, torchrun and a pasted shell, on a test bed of its own.

All ways run in one job on four hosts, in turn. The hosts share this machine's cores and its clock: ratios carry over
to other clusters, seconds do not.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import slurm_job
from measure import table
from slurm_job import KILLS, MARK, ROUNDS, SELDOM, TO_KILL, kill_folder
from slurm_ways import BARE, FLOOR, GRIDTF, HOSTS, KILLED, MPIRUN, PASTED, TASKS, TORCHRUN

ROOT = Path(__file__).resolve().parents[2]
OF_MPIRUN, OF_TORCHRUN, OF_SBATCH = 1.5, 8.0, 3.0
_LIMIT = 900.0
_VICTIM = "n3"  # not the host that the job script runs on
_FOLDER = "/mnt/shared/home/alice/bench"
_NAMES = {
    FLOOR: f"srun -N{HOSTS} -n{TASKS} true, in all",
    BARE: "srun, bare Python",
    PASTED: "srun, pasted shell",
    MPIRUN: "mpirun",
    TORCHRUN: "torchrun, c10d",
    GRIDTF: "gridtf",
    KILLED: "srun --kill-on-bad-exit=1",
}
Medians = Mapping[str, float]


def main() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    with _test_bed() as shared:
        folder = shared / "home/alice/bench"
        folder.mkdir()
        os.chown(folder, folder.parent.stat().st_uid, folder.parent.stat().st_gid)
        _on_login(sys.executable, slurm_job.__file__, "submit", _FOLDER)
        submitted = _medians(folder / "submit.json")
        run = shlex.join([sys.executable, slurm_job.__file__, "launch", _FOLDER])
        script = f"#!/bin/bash\n{run} || touch {_FOLDER}/failed\n"
        job = _on_login(
            *("sbatch", "--parsable", f"--nodes={HOSTS}", f"--ntasks-per-node={TASKS // HOSTS}"),
            *(f"--output={_FOLDER}/job.log", "--job-name=bench"),
            text=script,
        )
        _await(job.strip(), folder, folder / "launch.json")
        launched = _medians(folder / "launch.json")
        gone: dict[str, list[float]] = {way: [] for way in TO_KILL}
        for number in range(KILLS):
            for way in TO_KILL:
                marks = kill_folder(folder, number, way)
                _await(job.strip(), folder, marks)
                gone[way].append(_kill_one(job.strip(), folder, marks, f"{_FOLDER}/{marks.name}"))
    _print_launched(launched)
    _print_gone({way: statistics.median(times) for way, times in gone.items()})
    _print_submitted(submitted)


def _print_launched(medians: Medians) -> None:
    print(f"From the command to the last of {TASKS} tasks running on {HOSTS} hosts")
    print(f"Medians of {ROUNDS} (torchrun: {ROUNDS // SELDOM}), interleaved")
    aims = {
        MPIRUN: f"{OF_MPIRUN} or less",
        TORCHRUN: f"1/{OF_TORCHRUN:g} = {1 / OF_TORCHRUN:.3f} or less",
    }
    rows = [["", "s", "of the floor", "gridtf is of it", "aim"]]
    for way, seconds in medians.items():
        mine = "" if way in (GRIDTF, FLOOR) else f"{medians[GRIDTF] / seconds:.2f}"
        rows.append([_NAMES[way], f"{seconds:.3f}", f"{seconds / medians[FLOOR]:.2f}", mine, aims.get(way, "")])
    table(rows)


def _print_gone(medians: Medians) -> None:
    print(f"\nFrom kill -9 of one of {TASKS} tasks until no process of the job is left, median of {KILLS}")
    table([["", "s"], *([_NAMES[way], f"{seconds:.2f}"] for way, seconds in medians.items())])


def _print_submitted(medians: Medians) -> None:
    print(f"\nSubmission on the login host, median of {slurm_job.SUBMISSIONS}, interleaved")
    both = medians["sbatch"] + medians["python"]
    table(
        [
            ["", "s", "ratio", "aim"],
            ["sbatch", f"{medians['sbatch']:.4f}", "", ""],
            ["python -c pass", f"{medians['python']:.4f}", "", ""],
            ["both", f"{both:.4f}", "1.00", ""],
            ["sbatch --test-only", f"{medians['test']:.4f}", "", ""],
            ["sinfo", f"{medians['sinfo']:.4f}", "", ""],
            ["gridtf render", f"{medians['render']:.4f}", f"{medians['render'] / both:.2f}", ""],
            ["gridtf submit", f"{medians[GRIDTF]:.4f}", f"{medians[GRIDTF] / both:.2f}", f"{OF_SBATCH:g} or less"],
        ]
    )


# --- the kill


def _kill_one(job: str, folder: Path, marks: Path, mark: str) -> float:
    """Seconds until no process has the mark in its environment any more, after one task of a host was killed."""
    from testbeds import bed as beds

    end = time.monotonic() + _LIMIT
    while len(slurm_job.marked(marks)) < TASKS:
        _check(job, folder, end)
        time.sleep(0.02)
    time.sleep(1.0)  # all that a start still does is done
    host = Path(f"/proc/{beds.require('slurm').hosts[_VICTIM].pid}/ns/uts").readlink()
    family = _with(mark)
    tasks = [pid for pid in family if _is_task(pid) and Path(f"/proc/{pid}/ns/uts").readlink() == host]
    os.kill(tasks[0], signal.SIGKILL)
    begin = time.monotonic()
    while family := [pid for pid in family if _has(pid, mark)] or _with(mark):
        _check(job, folder, end)
        time.sleep(0.005)
    return time.monotonic() - begin


def _with(mark: str) -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _has(int(name), mark)]


def _has(pid: int, mark: str) -> bool:
    try:
        return f"{MARK}={mark}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it is gone
        return False


def _is_task(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2] == [f"{_FOLDER}/task.py".encode()]


# --- the test bed


@contextlib.contextmanager
def _test_bed() -> Iterator[Path]:
    """A test bed that is taken down whatever happens; gives its shared folder, as seen from here."""
    from testbeds import packages
    from testbeds.errors import TestbedError

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        packages.need({"mpirun": "openmpi-bin"}, print)
    except TestbedError as error:
        raise SystemExit(str(error)) from None
    state = Path(f"/run/gridtf-bench-{os.getpid()}")
    os.environ["GRIDTF_TESTBED_STATE"] = str(state)
    try:
        _tool("up", "--quiet")
        yield state / "slurm/shared"
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _tool("down")


def _on_login(*command: str, text: str = "") -> str:
    return _tool("exec", "--cwd", "/mnt/shared/home/alice", "login", *command, text=text)


def _tool(*arguments: str, text: str = "") -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/testbed"), "slurm", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=_LIMIT,
    )
    if done.returncode:
        raise SystemExit(f"scripts/testbed slurm {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def _await(job: str, folder: Path, path: Path) -> None:
    """Wait for something that the job makes."""
    end = time.monotonic() + _LIMIT
    while not path.exists():
        _check(job, folder, end)
        time.sleep(0.1)


def _check(job: str, folder: Path, end: float) -> None:
    """SystemExit when the job has ended, or the time is over."""
    if time.monotonic() < end and not (folder / "failed").exists():
        return
    log = folder / "job.log"
    raise SystemExit(f"job {job} does not go on: {log.read_text() if log.exists() else 'it has not begun'}")


def _medians(path: Path) -> dict[str, float]:
    return {way: statistics.median(times) for way, times in json.loads(path.read_text()).items()}
