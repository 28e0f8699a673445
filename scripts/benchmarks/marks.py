"""The tasks that every way starts, 16 on four hosts: their program, and how it is read when each of them ran."""

from __future__ import annotations

from pathlib import Path

HOSTS, EACH = 4, 4
TASKS = HOSTS * EACH
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
    """Note when the command was started."""
    (marks / ".begin").write_text(str(now))


def marked(marks: Path) -> list[float]:
    """When each of the tasks was running."""
    return [float(mark.read_text()) for mark in marks.iterdir() if not mark.name.startswith(".")]


def until_last(marks: Path, way: str) -> float:
    """Seconds from the command to the last of the tasks running."""
    times = marked(marks)
    if len(times) != TASKS:
        raise SystemExit(f"{way}: {len(times)} of {TASKS} tasks ran")
    return max(times) - float((marks / ".begin").read_text())


def kill_folder(folder: Path, number: int, way: str) -> Path:
    """Where tasks note the time that stay until one of them is killed."""
    return folder / f"kill-{number}-{way}"


def gone_file(marks: Path) -> Path:
    """Is there when nobody is left of a way that was killed: what is started next is not to be taken for it."""
    return marks / ".gone"
