"""The tasks that every way starts, 16 on four hosts: their program, and the times at which each of them ran."""

from __future__ import annotations

from pathlib import Path

HOSTS, EACH = 4, 4
TASKS = HOSTS * EACH
MANY = 64  # tasks a host, where many are measured
MARK = "BENCH_ROUND"  # every process of a way on the job script's host has this variable, and in it the way's folder

# A task notes the time in its first line, in a file of its own below the folder it is given.
TASK = """\
import time; now = time.time()
import os, sys
with open(f"{sys.argv[1]}/.{os.uname().nodename}-{os.getpid()}", "w") as mark:
    mark.write(str(now))
os.rename(mark.name, mark.name.replace("/.", "/"))
time.sleep(float(sys.argv[2]))
"""
TASK_FILE = "task.py"


def set_begin(marks: Path, now: float) -> None:
    """Record the time at which the command was started."""
    (marks / ".begin").write_text(str(now))


def marked(marks: Path) -> list[float]:
    """The times at which tasks were running, in seconds since the epoch."""
    return [float(mark.read_text()) for mark in marks.iterdir() if not mark.name.startswith(".")]


def until_last(marks: Path, tasks: int) -> float:
    """Seconds from the command to the last of the tasks running. ValueError when not all of them ran."""
    times = marked(marks)
    if len(times) != tasks:
        raise ValueError(f"{len(times)} of {tasks} tasks ran")
    return max(times) - float((marks / ".begin").read_text())


def kill_folder(folder: Path, number: int, way: str) -> Path:
    """The folder of the marks of tasks that stay until one of them is killed."""
    return folder / f"kill-{number}-{way}"


def gone_file(marks: Path) -> Path:
    """A file that exists once no process of a killed way is left, so that the next way is not mistaken for it."""
    return marks / ".gone"
