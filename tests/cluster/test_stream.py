"""The processes between launcher and agents, srun and qrsh, stopped by SIGSTOP while jobs run."""

from __future__ import annotations

import time

from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.clusterfaults import UNTIL_GO, admin, ended, no_process_left, started

TEN = 10.0  # seconds


@on_every_scheduler
def test_stopped_srun_or_qrsh_costs_nothing_for_ten_seconds_and_for_good(bed: Bed) -> None:
    """News go over the stream: a short stop is not noticed, and after the last one the tasks still end with the job."""
    starter = {"slurm": "srun", "sge": "qrsh"}[bed.kind]
    short = started(bed, "--exclude", "n3,n4", nodes=2, command=UNTIL_GO.replace("go", "short"), name="short")
    good = started(bed, "--exclude", "n1,n2", nodes=2, command=UNTIL_GO.replace("go", "good"), name="good")
    for host in ("n1", "n3"):
        admin(bed, "pkill", "-STOP", "-x", starter, host=host)
    time.sleep(TEN)
    assert [job.status()["state"] for job in (short, good)] == ["RUNNING", "RUNNING"]
    admin(bed, "pkill", "-CONT", "-x", starter, host="n1")
    for name in ("short", "good"):
        (bed.home() / name).touch()
    ended(short, "COMPLETED")
    ended(good, "COMPLETED")
    for name in ("short", "good"):
        (bed.home() / name).unlink()
    no_process_left(bed)
    assert [task["state"] for task in good.status()["tasks"]] == ["COMPLETED", "COMPLETED"]
