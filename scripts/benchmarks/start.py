"""How long a command takes on a login node, and how many files it opens, against ``python -c pass``.

Files are counted by an audit hook that sitecustomize installs: what Python code opens from then on, shared libraries
that are imported included, failed look-ups and the interpreter's own start not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from measure import interleaved, scratch, table

ROUNDS = 25
JOBS = "jobs"  # in the working folder: an index of jobs
MAIN = "import sys; from gridtf.cli import main; sys.exit(main())"
RENDER = ["render", "--scheduler", "slurm", "--nodes", "2", "--gpus-per-node", "4", "--ps", "1", "--", "true"]
COUNTER = """
import atexit, os, sys
opened = 0
def count(event, arguments):
    global opened
    if event == "open" and isinstance(arguments[0], str) or event == "import" and arguments[1]:
        opened += 1
sys.addaudithook(count)
atexit.register(lambda: os.write(int(os.environ["COUNT_TO"]), b"%d" % opened))
"""


def main() -> None:
    bare = [sys.executable, "-c", "pass"]
    script = Path(sys.executable).with_name("gridtf")
    gridtf = [str(script)] if script.exists() else [sys.executable, "-c", MAIN]
    commands = {
        "python -c pass": (bare, ""),
        "gridtf --version": ([*gridtf, "--version"], "2 or less"),
        "gridtf --help": ([*gridtf, "--help"], "2 or less"),
        "gridtf list": ([*gridtf, "list"], "4 or less"),
        "gridtf list (3 jobs)": (["env", f"XDG_STATE_HOME={JOBS}", *gridtf, "list"], ""),
        "gridtf render (slurm)": ([*gridtf, *RENDER], "9 or less"),
    }
    with scratch() as folder:
        local = [*gridtf, "submit", "--scheduler", "local", "--workers", "1", "--wait", "--", "true"]
        for _ in range(3):
            timed(["env", f"XDG_STATE_HOME={JOBS}", *local], folder)()
        medians = interleaved({name: timed(command, folder) for name, (command, _) in commands.items()}, ROUNDS)
        files = {name: opened(command, folder) for name, (command, _) in commands.items()}
    print(f"Start of a command, median of {ROUNDS}, interleaved; files: beyond those of bare Python")
    rows: list[list[object]] = [["", "ms", "ratio", "aim", "files"]]
    floor = medians["python -c pass"]
    for name, (_, aim) in commands.items():
        more = files[name] - files["python -c pass"]
        rows.append([name, f"{medians[name] * 1000:.1f}", f"{medians[name] / floor:.1f}", aim, more])
    table(rows)


def timed(command: list[str], folder: Path) -> Callable[[], float]:
    def once() -> float:
        begin = time.perf_counter()
        subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        return time.perf_counter() - begin

    return once


def opened(command: list[str], folder: Path) -> int:
    """How many files the command opens after the interpreter has started."""
    hook = folder / "hook"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(COUNTER)
    reader, writer = os.pipe()
    path = ":".join([str(hook), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "COUNT_TO": str(writer)}
    quiet = subprocess.DEVNULL
    subprocess.run(command, cwd=folder, env=env, pass_fds=[writer], stdout=quiet, stderr=quiet, check=True)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        return int(pipe.read())
