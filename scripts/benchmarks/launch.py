"""A local job: from the start of its script until the last of its tasks runs, compared to as many bare Pythons.

Every task records the time in its first line; the script records it in its first set-up line.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from measure import interleaved, scratch, table

ROUNDS = 11
TASKS = 16
AIM = 2.0
MARK = "import time; now = time.time(); import os, sys; open(f'{sys.argv[1]}/{os.getpid()}', 'w').write(str(now))"


def main() -> None:
    with scratch() as folder:
        ways = {"bare": lambda: bare(folder), "gridtf": lambda: job(folder)}
        medians = interleaved(ways, ROUNDS)
    ratio = medians["gridtf"] / medians["bare"]
    print(f"From the start to the last of {TASKS} tasks running, median of {ROUNDS}, interleaved")
    table(
        [
            ["", "s", "ratio", "aim"],
            [f"{TASKS} bare Pythons", f"{medians['bare']:.3f}", "1.0", ""],
            ["local job", f"{medians['gridtf']:.3f}", f"{ratio:.1f}", f"{AIM} or less"],
        ]
    )


def bare(folder: Path) -> float:
    marks = fresh(folder)
    begin = time.time()
    running = [subprocess.Popen([sys.executable, "-c", MARK, marks]) for _ in range(TASKS)]
    for process in running:
        process.wait()
    return last(marks) - begin


def job(folder: Path) -> float:
    import gridtf

    marks = fresh(folder)
    started = folder / "started"
    submitted = gridtf.submit(
        gridtf.JobSpec(
            command=(sys.executable, "-c", MARK, str(marks)),
            name="bench",
            scheduler="local",
            tasks={"worker": gridtf.TaskSpec(count=TASKS)},
            tasks_per_node=TASKS,
            gpus_per_task=0,
            setup=(f"echo $EPOCHREALTIME >'{started}'",),
            run_root=str(folder / "runs"),
        )
    )
    view = submitted.wait(timeout=60, poll=0.1)
    if view.state != "COMPLETED":
        raise SystemExit(f"the job ended {view.state}: {submitted.run.log.read_text()}")
    return last(marks) - float(started.read_text())


def fresh(folder: Path) -> Path:
    marks = folder / f"marks-{len(list(folder.iterdir()))}"
    marks.mkdir()
    return marks


def last(marks: Path) -> float:
    times = [float(mark.read_text()) for mark in marks.iterdir()]
    assert len(times) == TASKS, f"{len(times)} of {TASKS} tasks ran"
    return max(times)
