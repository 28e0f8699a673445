"""Where the tasks of a job are, asked from the login host, while the job runs on several hosts."""

from __future__ import annotations

import shlex
import sys
import time

from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.clusterfaults import admin, ended, no_process_left, started

# Worker 2 is elsewhere than the others.
PROGRAM = """
cat > train.$GRIDTF_TASK_INDEX.py <<'END'
import os, threading, time
if os.environ["RANK"] == "2":
    while True:
        time.sleep(1000)
threading.Event().wait()
END
exec PYTHON train.$GRIDTF_TASK_INDEX.py
""".replace("PYTHON", shlex.quote(sys.executable))


@on_every_scheduler
def test_stacks_of_all_hosts_are_shown_on_the_login_host(bed: Bed) -> None:
    job = started(bed, "--stall-after", "off", nodes=3, command=PROGRAM, name="stacks")
    host = job.tasks()["worker:2"]["host"]
    odd = f"worker:2 on {host} is at train.2.py:4"

    def shown() -> str:
        return job.gridtf("stacks", check=False, timeout=240).stdout

    out = job.until(lambda: odd in (text := shown()) and "train.1.py:5" in text and text, "all tasks to wait", 120)
    assert "worker:0" in out
    assert "are in threading.wait" in out or "is in threading.wait" in out
    assert job.tasks()["worker:2"]["state"] == "RUNNING"
    job.gridtf("cancel")
    assert job.verdict()["state"] == "CANCELLED"
    no_process_left(bed)


@on_every_scheduler
def test_stalled_job_names_the_task_that_was_stopped(bed: Bed) -> None:
    job = started(bed, "--stall-after", "10s", "--on-stall", "end", nodes=3, command=PROGRAM, name="stalled")
    task = job.tasks()["worker:1"]
    bed.run(task["host"], "kill", "-STOP", str(task["pid"]), user="root")
    reason = job.verdict(150)["reason"]
    assert reason.startswith("stalled for ")
    assert f"worker:1 on {task['host']} is stopped by a signal (state T)" in reason
    no_process_left(bed)


def test_job_that_slurm_has_suspended_is_not_stalled(slurm: Bed) -> None:
    """It is silent, and busy as long as it may run."""
    busy = "until [ -e resumed ]; do :; done; end=$((SECONDS + 12)); while [ $SECONDS -lt $end ]; do :; done"
    job = started(slurm, "--stall-after", "8s", "--on-stall", "end", nodes=2, command=busy, name="suspended")
    admin(slurm, "scontrol", "suspend", job.id)
    time.sleep(25)  # three times as long
    (slurm.home() / "resumed").touch()
    admin(slurm, "scontrol", "resume", job.id)
    ended(job, "COMPLETED")
    assert "stalled" not in job.output
    (slurm.home() / "resumed").unlink()
    no_process_left(slurm)
