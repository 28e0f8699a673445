"""Runs of one program with other parameters, compared: report, diff and table, each of real jobs."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import gridtf
from tests.support.commands import as_json, call, running, submit

PROGRAM = """
import json, os, time
import gridtf

lr = float(os.environ["LR"])
for step in range(1, 21):
    gridtf.progress(step, loss=lr / step)
if lr > 5:
    raise SystemExit(3)
if lr < 0.5:
    print("up", flush=True)
    time.sleep(600)
"""


def test_three_jobs_are_compared(here: Path) -> None:
    (here / "train.py").write_text(PROGRAM)
    jobs = {}
    for lr in (1, 10, 0.1):
        words = ("--name", f"lr-{lr}", "--env", f"LR={lr}", "--kill-grace", "1", "--workers", "1")
        jobs[lr] = submit(*words, "--", sys.executable, "train.py")
    call("wait", "lr-1")
    call("wait", "lr-10", code=1)
    running("lr-0.1")
    assert call("report", "lr-1", "lr-10", "lr-0.1", "-o", "three.html").stdout == "three.html\n"
    page = (here / "three.html").read_text()
    for part in ("<h1>3 runs</h1>", "1 of them has not ended", "<code>env.LR</code>", "worker:0 on ", ">loss<"):
        assert part in page
    rows = [*csv.DictReader(call("report", "lr-1", "lr-10", "lr-0.1", "--csv").stdout.splitlines())]
    assert [row["state"] for row in rows] == ["COMPLETED", "FAILED", "RUNNING"]
    assert [float(row["last.loss"]) for row in rows[:2]] == [1 / 20, 10 / 20]
    assert (rows[1]["cause"], rows[0]["step"], rows[2]["ended"]) == ("worker:0", "20", "")
    assert all(float(row["cpu_seconds"]) == float(row["seconds"]) > 0 for row in rows)
    assert [float(row["most.loss"]) for row in rows[:2]] == [1, 10]
    assert as_json("report", "lr-10", "lr-1", "--by", "loss")[0]["name"] == "lr-1"
    text = call("diff", "lr-1", "lr-10").stdout
    assert text.startswith(f"- lr-1   lr-1 ({jobs[1]['job_id']})  COMPLETED, ran for ")
    for part in (
        "  env.LR  1 (--env) -> 10 (--env)\n",
        "  state  COMPLETED -> FAILED\n",
        "VALUES\n  loss  0.05 at step 20 (0.05 to 1) -> 0.5 at step 20 (0.5 to 10)\n",
    ):
        assert part in text
    found = as_json("diff", "lr-1", "lr-0.1")
    assert [change["name"] for change in found["changes"]["specification"]] == ["name", "env.LR"]
    table = gridtf.jobs(name="lr-*").table()
    assert json.loads(json.dumps(table)) == table
    assert [(row["name"], row["state"]) for row in table] == [
        *(("lr-0.1", "RUNNING"), ("lr-10", "FAILED"), ("lr-1", "COMPLETED")),
    ]
    assert [job.name for job in gridtf.jobs(states=["RUNNING"])] == ["lr-0.1"]
