"""python slurm_job.py launch|submit FOLDER: what scripts/bench slurm runs on its hosts, as a plain user.

launch is the script of a job on four hosts: it starts all ways in turn, and writes the seconds that they took into
FOLDER/launch.json. Then it starts some again, and waits until they have ended, because somebody kills one of their
tasks. submit runs on the login host and writes FOLDER/submit.json.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_ways import BARE, FLOOR, GRIDTF, HOSTS, KILLED, MPIRUN, PASTED, TASKS, TORCHRUN, Ways

LAUNCHED = (FLOOR, BARE, PASTED, MPIRUN, GRIDTF, TORCHRUN)
TO_KILL = (KILLED, MPIRUN, GRIDTF)
ROUNDS = 11
SELDOM = 3  # torchrun, which takes so much longer, is there in every third round
KILLS = 3
SUBMISSIONS = 11
MARK = "BENCH_ROUND"  # every process of a way has this variable, and in it a folder of its own
_LIMIT = 120.0


def launch(folder: Path) -> None:
    """One round to warm up, then all ways in turn, again and again."""
    ways = Ways(folder)
    times: dict[str, list[float]] = {way: [] for way in LAUNCHED}
    for number in range(ROUNDS + 1):
        for way in LAUNCHED:
            if way == TORCHRUN and number % SELDOM:
                continue
            marks = folder / f"marks-{number}-{way}"
            marks.mkdir()
            command = ways.command(way, marks)
            seconds = _run(command, marks, folder / f"{way}.log")
            if number:
                times[way].append(seconds if way == FLOOR else _last(marks, way) - _begin(marks))
            ways.tidy()
    _write(folder / "launch.json", times)


def to_be_killed(folder: Path) -> None:
    ways = Ways(folder)
    for number in range(KILLS):
        for way in TO_KILL:
            marks = kill_folder(folder, number, way)
            marks.mkdir()
            _run(ways.command(way, marks, stay=_LIMIT), marks, folder / f"{way}.log", fails=True)
            ways.tidy()


def kill_folder(folder: Path, number: int, way: str) -> Path:
    return folder / f"kill-{number}-{way}"


def submit(folder: Path) -> None:
    """Jobs that are held, and cancelled when the time has been taken: they must not disturb what is measured."""
    script = folder / "job.sh"
    what = ("--name=bench", f"--nodes={HOSTS}", f"--tasks-per-node={TASKS // HOSTS}", "--native=--hold")
    gridtf = [sys.executable, "-m", "gridtf"]
    options = ["--scheduler=slurm", *what, "--", "true"]
    script.write_text(_output([*gridtf, "render", *options]))
    ways = {
        "sbatch": ["sbatch", "--parsable", "--output=/dev/null", str(script)],
        "python": [sys.executable, "-c", "pass"],
        "test": ["sbatch", "--test-only", str(script)],
        "sinfo": ["sinfo", "--noheader"],
        "render": [*gridtf, "render", *options],
        GRIDTF: [*gridtf, "submit", *options],
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(SUBMISSIONS + 1):
        for way, command in ways.items():
            begin = time.perf_counter()
            _output(command)
            if number:
                times[way].append(time.perf_counter() - begin)
            _output(["scancel", f"--user={os.environ['USER']}", "--state=PENDING"])
    _write(folder / "submit.json", times)


def _run(command: Sequence[str], marks: Path, log: Path, *, fails: bool = False) -> float:
    """Run a command to its end; gives the seconds it took, and notes when it was started."""
    with log.open("ab") as output:
        environ = {**os.environ, MARK: str(marks)}
        begin = time.time()
        process = subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = process.wait(_LIMIT)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    end = time.time()
    (marks / ".begin").write_text(str(begin))
    if bool(code) != fails:
        raise SystemExit(f"{command[0]} ended with exit code {code}: {log.read_text(errors='replace')[-2000:]}")
    _settle()
    return end - begin


def _settle() -> None:
    """Until Slurm has cleaned up after the steps: the next one would wait for their CPUs."""
    steps = ["squeue", "--noheader", "--steps", f"--jobs={os.environ['SLURM_JOB_ID']}", "--format=%i"]
    end = time.monotonic() + _LIMIT
    while any(not step.endswith((".batch", ".extern")) for step in _output(steps).split()):
        if time.monotonic() > end:
            raise SystemExit("a step does not end")
        time.sleep(0.05)
    time.sleep(0.1)


def _begin(marks: Path) -> float:
    return float((marks / ".begin").read_text())


def marked(marks: Path) -> list[float]:
    """When each of the tasks was running."""
    return [float(mark.read_text()) for mark in marks.iterdir() if not mark.name.startswith(".")]


def _last(marks: Path, way: str) -> float:
    times = marked(marks)
    if len(times) != TASKS:
        raise SystemExit(f"{way}: {len(times)} of {TASKS} tasks ran")
    return max(times)


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {done.returncode}: {done.stderr}")
    return done.stdout


def _write(path: Path, times: dict[str, list[float]]) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(times))
    new.replace(path)


if __name__ == "__main__":
    verb, where = sys.argv[1:]
    if verb == "launch":
        launch(Path(where))
        to_be_killed(Path(where))
    else:
        submit(Path(where))
