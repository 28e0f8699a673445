"""Jobs are submitted to a real Grid Engine, by DRMAA and by qsub, and cancelled."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest

from gridtf.schedulers.sge.submit import WAY
from tests.support.cluster import Bed
from tests.support.clusterfaults import GRIDTF_ENVIRON, admin
from tests.support.clusterjobs import PATIENCE
from tests.support.clusterscripts import HOME
from tests.support.sgebed import BINARIES

pytestmark = pytest.mark.skipif(find_spec("drmaa") is None, reason="needs the package drmaa")

WAYS = ("drmaa", "qsub")
LIBRARY = "/mnt/sge/lib/lx-amd64/libdrmaa.so"
ONE_HOST = {"nodes": 1, "tasks": {"worker": {"count": 1}}}
# Submits one script once in each of the given ways, without the checks of gridtf submit.
SUBMIT = """
import json, os, sys
from gridtf.login import submission
from gridtf.errors import GridtfError
from gridtf.schedulers.sge import scheduler, submit
from gridtf.jobspec.spec import JobSpec
ways, spec, blocked = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
sys.modules.update(dict.fromkeys(blocked))
plan = submission.prepare(JobSpec.from_dict({"command": ["true"], "scheduler": "sge", **spec}))
plan.run_dir.mkdir(parents=True)
plan = plan.replace(script=submission.script(plan))
for way in ways.split():
    os.environ[submit.WAY] = way
    try:
        result = scheduler.login.submit(plan)
        print(json.dumps({**result.job.to_record(), "notes": result.notes}))
    except GridtfError as error:
        print(json.dumps({"error": str(error)}))
"""
CANCEL = """
import sys
from gridtf.errors import GridtfError
from gridtf.schedulers.api import JobIdentity
from gridtf.schedulers.sge import scheduler
try:
    scheduler.login.cancel(JobIdentity(sys.argv[1]), force=sys.argv[2:] == ["force"])
except GridtfError as error:
    print(error)
"""
NUMBER = iter(range(1000))


def submitted(
    bed: Bed, *ways: str, blocked: str = "", env: Mapping[str, str] | None = None, **spec: Any
) -> Iterator[dict[str, Any]]:
    """The record of the job, or the ``error``, that each of these ways returns for the same script."""
    spec = {**ONE_HOST, "run_dir": f"runs/{next(NUMBER)}", **spec}
    words = ["python", "-c", SUBMIT, " ".join(ways), json.dumps(spec), *([blocked] if blocked else [])]
    out = bed.run("login", *words, env={**GRIDTF_ENVIRON, **(env or {})}, timeout=240).stdout
    return map(json.loads, out.splitlines())


def job(bed: Bed, **spec: Any) -> str:
    """Submit a job by qsub; returns its id."""
    (record,) = submitted(bed, "qsub", **spec)
    return str(record["job_id"])


def cancel(bed: Bed, job_id: str, *words: str, user: str = "alice", host: str = "login") -> str:
    """Cancel a job; returns the error message."""
    return bed.run(host, "python", "-c", CANCEL, job_id, *words, user=user, env=GRIDTF_ENVIRON).stdout


def queue(bed: Bed) -> dict[str, str]:
    """Job -> state; of a job array, the state of its last row."""
    rows = [line.split() for line in bed.run("login", "qstat", "-u", "*").stdout.splitlines()[2:]]
    return {row[0]: row[4] for row in rows}


def until(bed: Bed, job_id: str, state: str = "", seconds: float = PATIENCE) -> None:
    """Wait until a job is in this state; without a state, until qstat no longer lists it."""
    deadline = time.monotonic() + seconds
    while (now := queue(bed)).get(job_id, "") != state:
        assert time.monotonic() < deadline, now
        time.sleep(0.2)


def details(bed: Bed, job_id: str) -> dict[str, str]:
    """The output of qstat -j, without the fields that differ between any two jobs."""
    lines = bed.run("login", "qstat", "-j", job_id).stdout.splitlines()
    found = {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}
    for name in ("job_number", "exec_file", "submission_time", "scheduling info", "script_file"):
        found.pop(name, None)
    return found


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"native": ["-t 1-5:2", "-tc 2"]},
        {"native": ["-t 7"]},
        {"native": ["-cwd"]},
        {"native": ["-notify", "-m ea", "-M a@b", "-v FOO='a b',BAR", "-p -5", "-hold_jid 1", "-soft", "-q short.q"]},
        {"nodes": "2-3", "tasks": {}, "tasks_per_node": 2, "pe": "rr", "gpus_per_node": 2, "time": "0:10:00"},
        {"pe": "rr", "tasks": {"worker": {"count": 2}}, "mem_per_task": "8M"},
        {"native": ["-P ml", "-S /bin/sh", "-r n", "-N other", "-w n"], "name": "x"},
        {"run_dir": "two  spaces it's ü"},
        {"run_dir": 'say "x" \\ #&;'},
    ],
    ids=["plain", "array", "element", "cwd", "options", "parallel", "memory", "overridden", "spaces", "quotes"],
)
def test_drmaa_and_qsub_submit_equal_jobs(sge: Bed, spec: dict[str, Any]) -> None:
    spec = {**spec, "native": ["-h", *spec.get("native", [])]}
    records = list(submitted(sge, *WAYS, **spec))
    assert [record.get("by") for record in records] == list(WAYS), records
    assert all(str(record["job_id"]).isdigit() for record in records)
    by_drmaa, by_qsub = (details(sge, record["job_id"]) for record in records)
    assert by_drmaa == by_qsub
    assert by_qsub["job_name"]


def test_drmaa_and_qsub_submit_equal_environments(sge: Bed) -> None:
    env = {"LC_ALL": "C.UTF-8", "GLIBC_TUNABLES": "glibc.malloc.check=0", "MINE": "yes"}
    records = submitted(sge, *WAYS, native=["-h", "-V"], env=env)
    lists = [set(details(sge, record["job_id"])["env_list"].split(",")) for record in records]
    assert {"LC_ALL=C.UTF-8", "GLIBC_TUNABLES=glibc.malloc.check=0", "MINE=yes"} <= lists[0]
    changed = {entry.partition("=")[0] for entry in lists[0] ^ lists[1]}
    assert changed <= {"SGE_DRMAA_ENABLE_CWD", WAY}


@pytest.mark.parametrize("way", WAYS)
def test_log_is_in_the_run_directory(sge: Bed, way: str) -> None:
    (record,) = submitted(sge, way, run_dir=f"it's by {way}")
    until(sge, record["job_id"])
    assert (sge.home() / f"it's by {way}/job.log").exists()


@pytest.mark.parametrize(
    ("spec", "piece"),
    [
        ({"pe": "nosuch", "slots": 2}, 'the requested parallel environment "nosuch" does not exist'),
        ({"account": "nosuch"}, 'the requested project "nosuch" does not exist'),
        ({"native": ["-l nosuch=1"]}, 'unknown resource "nosuch"'),
        ({"native": ["-bogus"]}, 'invalid option argument "-bogus"'),
    ],
    ids=["pe", "project", "resource", "option"],
)
def test_drmaa_and_qsub_report_equal_refusals(sge: Bed, spec: dict[str, Any], piece: str) -> None:
    for record in submitted(sge, *WAYS, **spec):
        assert re.fullmatch(f"Grid Engine has refused the job: .*{re.escape(piece)}", record["error"])
    assert not queue(sge)


# --- the choice of DRMAA or qsub


def test_drmaa_is_the_default(sge: Bed) -> None:
    (record,) = submitted(sge, "auto", native=["-h"])
    assert record["by"] == "drmaa"


def test_library_that_the_user_names_is_used(sge: Bed) -> None:
    (record,) = submitted(sge, "drmaa", native=["-h"], env={"DRMAA_LIBRARY_PATH": LIBRARY})
    assert record["by"] == "drmaa"


@pytest.mark.parametrize(
    ("library", "why"),
    [
        ("/nowhere/libdrmaa.so", "No such file or directory"),
        ("/etc/passwd", "invalid ELF header"),
        ("libc.so.6", "drmaa_get_DRM_system"),
    ],
    ids=["missing", "no-library", "another"],
)
def test_qsub_submits_when_the_library_is_invalid(sge: Bed, library: str, why: str) -> None:
    auto, forced = submitted(sge, "auto", "drmaa", native=["-h"], env={"DRMAA_LIBRARY_PATH": library})
    assert auto["by"] == "qsub"
    assert why in auto["notes"][0]
    assert why in forced["error"]
    assert "GRIDTF_SGE_SUBMIT=qsub" in forced["error"]


def test_qsub_submits_when_the_library_hangs(sge: Bed) -> None:
    """A pipe without a writer, as on a file server that hangs."""
    sge.run("login", "mkfifo", "hangs.so")
    (record,) = submitted(sge, "auto", native=["-h"], env={"DRMAA_LIBRARY_PATH": f"{HOME}/hangs.so"})
    assert record["by"] == "qsub"
    assert "libdrmaa has not been loaded within 20 s" in record["notes"][0]
    assert record["job_id"] in queue(sge)


# Takes connections, and answers none.
DEAF = "import socket, time; s = socket.create_server(('', 6440), backlog=99); print('on', flush=True); time.sleep(600)"


def test_qsub_submits_where_the_library_does_not_reach_the_qmaster(sge: Bed) -> None:
    """As that of another Grid Engine, for which the qmaster has no answer; qsub, a wrapper, has the right settings."""
    folder = sge.home() / "reaches"
    folder.mkdir()
    (folder / "qsub").write_text(f'#!/bin/sh\nSGE_QMASTER_PORT=6444 exec {BINARIES}/qsub "$@"\n')
    (folder / "qsub").chmod(0o755)
    env = {"SGE_BINARY_PATH": f"{HOME}/reaches", "SGE_QMASTER_PORT": "6440", "XDG_STATE_HOME": f"{HOME}/state"}
    with sge.running("ctl", f'exec python3 -c "{DEAF}"'):
        first, second = submitted(sge, "auto", "auto", native=["-h"], env=env)
        assert (first["by"], second["by"]) == ("qsub", "qsub")
        assert "DRMAA cannot be used: the qmaster has not answered libdrmaa within 20 s" in first["notes"][0]
        assert second["notes"] == []
        assert {first["job_id"], second["job_id"]} <= set(queue(sge))


@pytest.mark.parametrize(
    "prints",
    ["echo 'Welcome to the grid'; real; echo 'Have a nice day'", "real | sed 's/.*/accepted/'"],
    ids=["banners", "no-id"],
)
def test_qsub_wrapper_of_the_site(sge: Bed, prints: str) -> None:
    """It prints banners around the job's number, or no number: then the job is found by its script."""
    folder = sge.home() / "wrapped"
    folder.mkdir(exist_ok=True)
    wrapper = folder / "qsub"
    wrapper.write_text(f'#!/bin/bash\nreal() {{ {BINARIES}/qsub "${{words[@]}}"; }}; words=("$@"); {prints}\n')
    wrapper.chmod(0o755)
    other, record = submitted(sge, "qsub", "qsub", native=["-h"], env={"SGE_BINARY_PATH": f"{HOME}/wrapped"})
    assert {other["job_id"], record["job_id"]} <= set(queue(sge))
    assert int(record["job_id"]) > int(other["job_id"])


def test_qsub_submits_without_the_drmaa_package(sge: Bed) -> None:
    auto, forced = submitted(sge, "auto", "drmaa", native=["-h"], blocked="drmaa")
    assert (auto["by"], auto["notes"]) == ("qsub", [])
    assert "pip install drmaa" in forced["error"]


def test_unreachable_qmaster_is_reported_both_ways(sge: Bed) -> None:
    admin(sge, "pkill", "-KILL", "-x", "sge_qmaster")
    try:
        with ThreadPoolExecutor() as pool:  # each takes 10 or 20 s
            cancelled = pool.submit(cancel, sge, "1")
            errors = [next(answer)["error"] for answer in pool.map(partial(submitted, sge), ("auto", *WAYS))]
        for text in (*errors, cancelled.result()):
            assert "Grid Engine's qmaster on ctl does not answer: " in text
    finally:
        sge.mend("ctl")


# --- cancelling


@pytest.mark.parametrize("way", WAYS)
def test_cancel(sge: Bed, way: str) -> None:
    (record,) = submitted(sge, way, native=["-h"])
    assert cancel(sge, record["job_id"]) == ""
    assert record["job_id"] not in queue(sge)
    assert cancel(sge, record["job_id"]) == ""  # it has ended


def test_cancel_of_an_array(sge: Bed) -> None:
    job_id = job(sge, native=["-h", "-t 1-3"])
    assert cancel(sge, f"{job_id}.2") == ""
    assert cancel(sge, f"{job_id}.2") == ""
    held = sge.run("login", "qstat", "-u", "alice").stdout.split()[-1]
    assert held in ("1,3", "1-3:2")
    assert cancel(sge, job_id) == ""
    assert not queue(sge)


def test_cancel_of_another_users_job_is_refused(sge: Bed) -> None:
    job_id = job(sge, native=["-h"])
    message = cancel(sge, job_id, user="bob")
    assert re.match(
        f"Grid Engine does not cancel job {job_id}: bob - you do not have the necessary privileges", message
    )
    assert job_id in queue(sge)


def test_cancel_by_force(sge: Bed) -> None:
    job_id = job(sge, native=["-q all.q@n3"], setup=["sleep 300"])
    until(sge, job_id, "r")
    sge.cut("n3")
    assert cancel(sge, job_id) == ""
    began = time.monotonic()
    message = cancel(sge, job_id, "force")
    assert time.monotonic() - began < 30  # qdel -f takes a minute to do nothing
    assert f"job {job_id} is marked as deleted, but its hosts do not report that it has ended" in message
    assert f"`qdel -f {job_id}`" in message
    assert queue(sge)[job_id] == "dr"
    assert cancel(sge, job_id, "force", user="root", host="ctl") == ""
    assert job_id not in queue(sge)
