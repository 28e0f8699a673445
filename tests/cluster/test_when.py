"""When a job would start, on real schedulers: a filled cluster, closed partitions, reservations, waiting jobs."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.cluster import Bed
from tests.support.clusterfaults import admin
from tests.support.clusterjobs import ClusterJob, gridtf
from tests.support.jobs import until

LATE = 120.0  # seconds between the end of a job at its walltime and the start of the next one, at most


def asked(bed: Bed, *words: str) -> dict[tuple[str, str, int], dict[str, Any]]:
    """(partition, nodes, walltime) -> the row of `gridtf when`, asked anew."""
    bed.run("login", "bash", "-c", "rm -f /tmp/gridtf-$(id -u)/estimates-*")
    rows = json.loads(gridtf(bed, "when", "--json", *words).stdout)
    return {(row["partition"], row["nodes"], row["walltime"]): row for row in rows}


def starts_now(row: dict[str, Any]) -> bool:
    return row["start"] is not None and abs(row["start"] - time.time()) < 30


@contextmanager
def undone(bed: Bed, do: str, undo: str) -> Iterator[None]:
    """Do something as root, and undo it at the end."""
    admin(bed, *do.split())
    try:
        yield
    finally:
        admin(bed, *undo.split())


def test_estimates_of_a_filled_slurm_come_true(slurm: Bed) -> None:
    bed = slurm
    words = ("--nodes", "4", "--gpus-per-node", "1", "--time", "5")
    assert starts_now(asked(bed, *words)["gpu", "4", 300])
    fill = "sbatch --parsable --nodes=4 --exclusive --time=2 --output=/dev/null --wrap='exec sleep 600'"
    filler = bed.run("login", "bash", "-c", f"{fill}; until squeue -h -t R -o %i | grep -q .; do sleep 0.2; done")
    rows = asked(bed, *words)
    estimate = rows["gpu", "4", 300]
    assert 0 < estimate["start"] - time.time() <= 135
    assert estimate["latest"] == estimate["start"] + 300
    assert estimate["hours"][1] == "GPU"
    assert rows["short", "4", 300]["start"] is not None
    never = rows["cpu", "4", 300]
    assert (never["start"], never["never"]) == (None, True)
    assert never["why"] == "no node of partition cpu has GPUs" or "cpu has 1" in never["why"]

    with undone(
        bed,
        "scontrol update partitionname=short state=down",
        "scontrol update partitionname=short state=up",
    ):
        closed = asked(bed, *words)["short", "4", 300]
        assert (closed["start"], closed["never"]) == (None, False)
        assert closed["why"] == "the job waits until its partition is up: short (down)"

    hide, show = (f"scontrol update partitionname=short hidden={answer}" for answer in ("yes", "no"))
    with undone(bed, hide, show):
        assert {name for name, _, _ in asked(bed, *words)} == {"gpu", "cpu", "scavenge"}
        (row,) = asked(bed, "--partition", "short", "--nodes", "1", "--time", "1h").values()
        assert row["why"].startswith("01:00:00 is more than partition short allows")
    shut, open_ = (f"scontrol update partitionname=short allowgroups={who}" for who in ("root", "all"))
    with undone(bed, shut, open_):
        assert {name for name, _, _ in asked(bed, *words)} == {"gpu", "cpu", "scavenge"}

    waits = ClusterJob(bed, "--scheduler", "slurm", *words, "--name", "waits", "--", "true")

    def expected() -> float | None:
        found = json.loads(gridtf(bed, "when", "waits", "--json").stdout)
        return float(found["expected"]) if found["expected"] is not None else None

    told = waits.until(expected, "Slurm to expect the start of a job")
    assert abs(told - estimate["start"]) < 60
    assert re.search(r"it is expected to start in (\d+ min )?\d+ s|start now", gridtf(bed, "when", "waits").stdout)
    assert "COMPLETED" in waits.gridtf("wait", timeout=300).stdout
    started = bed.run("login", "scontrol", "-o", "show", "job", waits.id, env={"SLURM_TIME_FORMAT": "%s"}).stdout
    real = float(re.findall(r"StartTime=(\d+)", started)[0])
    assert -10 < real - estimate["start"] < LATE, f"{real - estimate['start']} s after the estimate"
    assert "it is COMPLETED, and does not wait" in gridtf(bed, "when", "waits").stdout
    bed.run("login", "scancel", filler.stdout.split()[0])


@contextmanager
def configured(bed: Bed, line: str) -> Iterator[None]:
    """A line of slurm.conf more."""
    conf = bed.state / bed.kind / "etc/slurm/slurm.conf"
    before = conf.read_text()
    try:
        conf.write_text(f"{before}{line}\n")
        admin(bed, "scontrol", "reconfigure")
        yield
    finally:
        conf.write_text(before)
        admin(bed, "scontrol", "reconfigure")


def test_a_hole_before_a_large_job_is_seen_unless_jobs_are_hidden(slurm: Bed) -> None:
    """sbatch --test-only tells hours, though Slurm starts the short job at once."""
    bed = slurm
    for words in ("-N 3 --exclusive -t 10", "-N 4 --exclusive -t 120"):
        bed.run("login", "bash", "-c", f"sbatch {words} -o /dev/null --wrap 'exec sleep 900'")
    shown = ("squeue", "-h", "-t", "PD", "-o", "%Y")
    until(lambda: "n[1-4]" in bed.run("login", *shown).stdout, "backfill to plan the large job")
    one = ("--nodes", "1", "--partition", "gpu")
    rows = asked(bed, *one, "--time", "5,20")
    assert starts_now(rows["gpu", "1", 300])
    (late,) = asked(bed, *one, "--time", "5", "--native=--begin=now+1hour").values()
    assert late["start"] - time.time() > 3000
    behind = rows["gpu", "1", 1200]
    assert not behind["at_most"]
    assert abs(behind["start"] - time.time() - 130 * 60) < LATE
    site = bed.home() / "site.toml"
    site.write_text("[limits]\nwhen = false\n")
    site.chmod(0o644)
    done = gridtf(bed, "when", *one, env={"GRIDTF_SITE_CONFIG": bed.seen(site)}, check=False)
    assert "site.toml:2: when = false" in done.stderr
    with configured(bed, "PrivateData=jobs"):
        hidden = asked(bed, *one, "--time", "5")["gpu", "1", 300]
        assert hidden["at_most"]
        assert hidden["start"] - time.time() > 3600
        assert "  at most in " in gridtf(bed, "when", *one, "--time", "5").stdout
    job = ClusterJob(bed, "--scheduler", "slurm", "--nodes", "1", "--workers", "1", "--time", "5", "--", "true")
    assert "COMPLETED" in job.gridtf("wait").stdout


def test_partitions_are_listed_once_for_all_combinations(slurm: Bed) -> None:
    """Also where each of them leaves out a host that was bad."""
    bed, counted, memory = slurm, slurm.home() / "counted", slurm.home() / ".local/state/gridtf/hosts.jsonl"
    lost = {"host": "n3", "time": time.time(), "kind": "lost", "reason": "gone", "cluster": "slurm:testbed"}
    lines = "".join(json.dumps({**lost, "job": job}) + "\n" for job in "12")
    sinfo = '#!/bin/sh\necho "$@" >> ~/asked\nexec /usr/bin/sinfo "$@"\n'
    for path, text in ((memory, lines), (counted / "sinfo", sinfo)):
        name = bed.seen(path)
        put = f"mkdir -p {name.rpartition('/')[0]}; printf '%s' {shlex.quote(text)} > {name}; chmod 700 {name}"
        bed.run("login", "bash", "-c", put)
    search = f"{bed.seen(counted)}:{bed.run('login', 'printenv', 'PATH').stdout.strip()}"
    try:
        words = ("--nodes", "1,2", "--time", "5,10", "--partition", "gpu", "--avoid-bad-hosts")
        assert len(json.loads(gridtf(bed, "when", *words, "--json", env={"PATH": search}).stdout)) == 4
        asked = (bed.home() / "asked").read_text().splitlines()
        assert len(asked) == 2, f"all partitions, and those that the user sees: {asked}"
        assert "avoid_bad_hosts leaves out n3" in gridtf(bed, "render", *words[4:], "--", "true").stderr
    finally:
        memory.unlink()


def test_a_shorter_walltime_starts_before_a_reservation(slurm: Bed) -> None:
    bed = slurm
    reserve = (
        "scontrol create reservation reservationname=maint starttime=now+20minutes duration=60 users=root nodes=c1"
    )
    words = ("--nodes", "1", "--workers", "1", "--partition", "cpu")
    with undone(bed, reserve, "scontrol delete reservationname=maint"):
        rows = asked(bed, *words, "--time", "5,1h")
        assert starts_now(rows["cpu", "1", 300])
        told = "the job waits for nodes that are reserved"
        assert rows["cpu", "1", 3600]["why"].startswith(told)  # without an estimate, unless it is for maintenance
        job = ClusterJob(bed, "--scheduler", "slurm", *words, "--time", "1h", "--", "true")
        assert told in job.submitted.stderr
        gridtf(bed, "cancel", job.id)
        job = ClusterJob(bed, "--scheduler", "slurm", *words, "--time", "1h", "--time-min", "5", "--", "true")
        assert "COMPLETED" in job.gridtf("wait").stdout, "Slurm has shortened its walltime"
        for native in ("--reservation=maint", "--constraint=nosuch"):
            (row,) = asked(bed, *words, "--time", "5", f"--native={native}").values()
            assert row["start"] is None
            assert row["why"].startswith("refused: ")
    with undone(bed, f"{reserve} flags=maint", "scontrol delete reservationname=maint"):
        rows = asked(bed, *words, "--time", "5,1h")
        assert starts_now(rows["cpu", "1", 300])
        assert rows["cpu", "1", 3600]["start"] - time.time() > 1800
    limit = gridtf(bed, "when", "--partition", "short", "--time", "2h", "--nodes", "1", check=False)
    assert "never: 02:00:00 is more than partition short allows (00:30:00)" in limit.stdout


def test_grid_engine_tells_what_starts_now_and_how_many_slots_are_free(sge: Bed) -> None:
    bed = sge
    words = ("--scheduler", "sge", "--pe", "rr", "--workers", "4", "--time", "5")
    both = ("--partition", "left.q,right.q")
    rows = asked(bed, *words, *both)
    assert all(starts_now(row) for row in rows.values())
    assert len(rows) == 2
    assert rows["left.q", "", 300]["hours"] == [pytest.approx(1 / 3), "core"]
    assert asked(bed, *words, "--partition", "nope.q")["nope.q", "", 300]["why"] == "queue `nope.q` does not exist"
    long = asked(bed, *words[:-1], "10h", "--partition", "short.q,all.q")
    assert long["short.q", "", 36000]["never"]
    assert starts_now(long["all.q", "", 36000])
    (many,) = asked(bed, *words[:3], "rr", "--workers", "40", "--partition", "left.q").values()
    assert (many["never"], many["why"]) == (True, "40 slots requested, PE `rr` offers 8")
    done = gridtf(bed, "when", *words[:2], "--pe", "nosuch", "--workers", "4", check=False)
    assert done.stderr.startswith("gridtf: --pe: PE `nosuch` does not exist")
    assert "suitable PEs: " in done.stderr
    (much,) = asked(bed, *words, "--mem-per-task=9000G", "--partition", "left.q").values()
    assert (much["start"], much["never"]) == (None, True)
    assert "of resource mem_free per slot requested, no host has more than" in much["why"]
    fill = "qsub -terse -q left.q -pe rr 8 -o /dev/null -j y -b y sleep 600"
    bed.run("login", "bash", "-c", f"{fill}; until qstat -s r | grep -q .; do sleep 0.2; done")
    rows = asked(bed, *words, *both)
    full = rows["left.q", "", 300]
    assert (full["start"], full["never"]) == (None, False)
    assert full["why"].startswith("not now (")
    assert full["why"].endswith("free slots: 0 of 8 in left.q")
    assert starts_now(rows["right.q", "", 300])
    with undone(bed, "qmod -d right.q", "qmod -e right.q"):
        rows = asked(bed, *words, *both)
        assert "disabled or in error" in rows["right.q", "", 300]["why"]
    waits = ClusterJob(bed, *words, "--partition", "left.q", "--name", "waits", "--", "true")
    assert f"waits ({waits.id}): its scheduler does not tell when it starts" in gridtf(bed, "when", "waits").stdout


@pytest.mark.parametrize(
    "words",
    [
        ["--pe", "smp", "--nodes", "2"],
        ["--pe", "smp", "--workers", "5"],
        ["--pe", "rr", "--workers", "9", "--gpus-per-task", "1"],
        ["--pe", "rr", "--workers", "9", "--gpus-per-task", "1", "--mem-per-task", "1M"],
        ["--pe", "rr", "--nodes", "2", "--gpus-per-node", "3"],
        ["--pe", "rr", "--workers", "2", "--exclude", "nosuch"],
    ],
)
def test_what_submit_refuses_grid_engine_never_starts(sge: Bed, words: list[str]) -> None:
    options = ["--scheduler", "sge", *words]
    refused = gridtf(sge, "submit", *options, "--", "true", check=False)
    assert refused.returncode == 2
    (row,) = asked(sge, *options, "--partition", "all.q").values()
    assert (row["start"], row["never"]) == (None, True)
    assert row["why"] in refused.stderr
