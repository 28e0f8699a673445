"""Advice from a real job whose use of memory and CPUs is known, and a job that takes it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gridtf.jobspec.units import parse_memory
from gridtf.run.rundir import RunDir
from tests.support.commands import as_json, call, submit
from tests.support.jobs import until

MIB = 900
PROGRAM = f"""
import os, sys, time
held = bytearray(os.urandom(1 << 20)) * {MIB}
while os.path.exists("hold"):
    pass
"""


def test_lines_of_a_real_job_are_a_job_file(here: Path) -> None:
    Path("work.py").write_text(PROGRAM)
    Path("hold").touch()
    words = ("--name", "works", "--workers", "1", "--", sys.executable, "work.py")
    first = submit("--sample-interval", "1", "--cpus-per-task", "1", "--mem-per-task", "60G", "--time", "90", *words)
    samples = RunDir(first["run_dir"]).attempt(1).samples
    until(lambda: samples.exists() and samples.read_text().count("\n") > 8, "samples")
    Path("hold").unlink()
    call("wait", first["job_id"])
    lines = call("advise", first["job_id"]).stdout
    found = {one["key"]: one["value"] for one in as_json("advise", "works")[0]["advice"]}
    assert found["cpus_per_task"] == 1  # the loop of one thread; this machine may be busy, which makes it less
    assert MIB * 1.25 <= parse_memory(found["mem_per_task"]) <= MIB * 1.25 + 512
    assert found["time"] < "00:30:00"
    assert "# about right: cpus_per_task (1)\n" in lines
    assert "; 60G requested\n" in lines
    Path("advice.toml").write_text(lines)
    second = submit("advice.toml", *words)
    call("wait", second["job_id"])
    job = json.loads(RunDir(second["run_dir"]).job.read_text())
    assert [job["spec"][key] for key in ("mem_per_task", "time")] == [found["mem_per_task"], found["time"]]
    assert job["sources"]["mem_per_task"].startswith("advice.toml:")
    like = " ".join(call("render", "--like", first["job_id"], *words).stderr.split())
    assert f'mem_per_task = "{found["mem_per_task"]}" measured in works' in like
