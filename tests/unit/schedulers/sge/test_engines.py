"""What is read of Grid Engines other than Son of Grid Engine 8.1.9: see tests/recorded/grid-engine."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from gridtf.errors import SchedulerError, SpecError
from gridtf.schedulers.api import JobIdentity
from gridtf.schedulers.commands import Answer
from gridtf.schedulers.sge import accounting, advice, examine, gpu_grant, injob, offers, query, scheduler
from gridtf.schedulers.sge.commands import sge
from gridtf.schedulers.sge.injob import HostLine
from gridtf.schedulers.sge.offers import PE, Cell, Queue
from gridtf.schedulers.sge.query import NO, PER_HOST, PER_SLOT, ResourceRequest
from gridtf.schedulers.sge.requested import Requested
from gridtf.states import JobState
from tests.support.rendering import plan

RECORDED = Path(__file__).parents[3] / "recorded" / "grid-engine"
LIVE = ("ocs-9.1.4", "daimh-8.1.10")
OCS, DAIMH = LIVE
UNIVA = "univa-by-hand"
SIGKILL = "it was killed by SIGKILL: by qdel, for a limit of its queue, or by a user on its host"

on_both = pytest.mark.parametrize("engine", LIVE)


def recorded(engine: str, name: str) -> str:
    return (RECORDED / engine / name).read_text()


@pytest.mark.parametrize(
    ("engine", "name", "state", "reason"),
    [
        *((engine, "ok", JobState.COMPLETED, "") for engine in LIVE),
        *((engine, "exit3", JobState.FAILED, "its script ended with exit code 3") for engine in LIVE),
        *((engine, "h_rt", JobState.TIMEOUT, "the walltime is over (h_rt=8)") for engine in LIVE),
        *((engine, "h_rt-pe", JobState.TIMEOUT, "the walltime is over (h_rt=8)") for engine in LIVE),
        *((engine, "s_rt", JobState.TIMEOUT, "the walltime is over (s_rt=6)") for engine in LIVE),
        (OCS, "qdel", JobState.CANCELLED, "by alice@login"),
        (OCS, "exit3-pe", JobState.COMPLETED, ""),  # its CS-2632
        (DAIMH, "qdel", JobState.FAILED, SIGKILL),
        (DAIMH, "exit3-pe", JobState.FAILED, "its script ended with exit code 3"),
    ],
)
def test_final_status_by_qacct(engine: str, name: str, state: str, reason: str) -> None:
    (record,) = accounting.blocks(recorded(engine, f"qacct-{name}.txt"))
    status = accounting.accounted_status([record], JobIdentity(record["jobnumber"], user="alice"))
    assert status is not None
    assert (status.state, status.reason) == (state, reason)


# Open Cluster Scheduler: who deleted a job, how it failed, with which command it was submitted
@pytest.mark.parametrize(
    ("by", "failed", "command", "state"),
    [
        ("execd@n1", "0", "qsub job.sh", JobState.TIMEOUT),  # with its CS-2632
        ("qmaster@ctl", "100 : assumedly after job", "qsub -l gpu=1 job.sh", JobState.TIMEOUT),
        ("execd@n1", "100 : assumedly after job", "qsub -l h_vmem=1G job.sh", JobState.OUT_OF_MEMORY),
        ("qmaster@ctl", "25  : rescheduling", "qsub job.sh", None),
        ("qmaster@ctl", "21  : in recognizing job", "qsub -l h_rt=60 job.sh", JobState.NODE_FAIL),
        ("NONE", "100 : assumedly after job", "qsub -b y sh -c 'h_rt=1 sleep 9'", JobState.FAILED),
    ],
)
def test_jobs_that_a_daemon_has_deleted(by: str, failed: str, command: str, state: str | None) -> None:
    record = {"failed": failed, "deleted_by": by, "submit_cmd_line": command, "ru_wallclock": "9", "exit_status": "137"}
    status = accounting.ended(record)
    assert (status.state if status else None) == state


@pytest.mark.parametrize(
    ("number", "state"), [("31", JobState.TIMEOUT), ("32", JobState.CANCELLED), ("33", JobState.COMPLETED)]
)
def test_final_status_by_qacct_of_univa(number: str, state: str) -> None:
    status = accounting.accounted_status(accounting.blocks(recorded(UNIVA, "qacct.txt")), JobIdentity(number))
    assert status is not None
    assert status.state == state


@on_both
def test_jobs_in_qstat(engine: str) -> None:
    jobs = [JobIdentity(number, user="alice") for number in ("1", "2", "3", "3.2", "4")]
    listed = query.by_number(query.rows(recorded(engine, "qstat-xml.xml")))
    known = {
        number: detail
        for name in ("running", "held", "waiting")
        for number, detail in query.details(recorded(engine, f"qstat-xml-j-{name}.xml")).items()
    }
    found = [query.status(job.job_id, listed, known, 0.0) for job in jobs]
    assert [(one.state, one.reason) for one in found] == [
        (JobState.RUNNING, ""),
        (JobState.PENDING, "held: qrls 2 releases it"),
        (JobState.RUNNING, "elements of the array that have not ended: 3 RUNNING"),
        (JobState.RUNNING, ""),
        (JobState.PENDING, 'cannot run in PE "one" because it only offers 3 slots'),
    ]


@on_both
def test_details_in_qstat_j(engine: str) -> None:
    text = recorded(engine, "qstat-xml-j-running.xml")
    assert query.parse_requests(text) == {"gpu": ResourceRequest(1, PER_SLOT), "h_rt": ResourceRequest(60, NO)}
    assert query.parse_variables(text)["__SGE_PREFIX__O_HOST"] == "login"
    assert not query.parse_not_rerunnable(text)
    assert query.details(recorded(engine, "qstat-xml-j-unknown.xml")) == {}


def test_details_in_qstat_j_of_univa(monkeypatch: pytest.MonkeyPatch) -> None:
    text = recorded(UNIVA, "qstat-xml-j.xml")
    assert query.parse_requests(text) == {"h_rt": ResourceRequest(14400, NO), "gpu": ResourceRequest(2, PER_HOST)}
    assert query.parse_variables(text) == {"SGE_GPU": "1", "TERM": ""}
    assert query.parse_not_rerunnable(text)
    detail = query.details(text)["41"]
    assert detail.errors == {"1": "can't chdir to /nowhere: No such file"}
    assert detail.start == pytest.approx(1795273931.829)
    listed = "<job_info><job_list><JB_job_number>41</JB_job_number></job_list></job_info>"
    monkeypatch.setattr(sge, "run", lambda argv, *, limit: Answer(0, text if "-j" in argv else listed, ""))
    assert query.submitted(plan("sge", run_dir="/runs/held")) == JobIdentity("41")


@pytest.mark.parametrize(
    "written",
    [
        "1795273931",
        "1795273931829",
        "1795273931829000",
        "2026-11-21T14:12:11.829000",
        "2026-11-21T14:12:11.829",
        "none",
    ],
)
def test_times_in_all_units(written: str) -> None:
    text = "<djob_info><JB_job_number>1</JB_job_number><JB_execution_time>{}</JB_execution_time></djob_info>"
    iso = datetime.datetime(2026, 11, 21, 14, 12, 11, 829000).timestamp()
    expected = 0 if written == "none" else iso if "T" in written else 1795273931.829
    assert query.details(text.format(written))["1"].start == pytest.approx(expected, abs=1)


@on_both
def test_configuration_in_qconf(engine: str) -> None:
    pes = [offers.parse_pe(recorded(engine, f"qconf-sp-{name}.txt")) for name in ("rr", "two", "smp", "loose", "rrs")]
    assert pes == [
        PE("rr", 999, True, "$round_robin"),
        PE("two", 999, True, "2"),
        PE("smp", 999, True, "$pe_slots"),
        PE("loose", 999, False, "$round_robin"),
        PE("rrs", 999, True, "$round_robin", summary=True),
    ]
    offered = frozenset(("rr", "fill", "two", "one", "rrj", "fillj", "rrs", "loose", "smp"))
    assert offers.parse_queues(recorded(engine, "qconf-sq-all.q.txt")) == [Queue("all.q", offered, None)]
    counted = {found.name: found.consumable for found in offers.parse_resources(recorded(engine, "qconf-sc.txt"))}
    assert [counted[name] for name in ("gpu", "gpujob", "h_rt")] == ["YES", "JOB", "NO"]
    settings = dict(offers.pairs(recorded(engine, "qconf-sconf.txt")))
    assert (settings["reschedule_unknown"], settings["auto_user_default_project"]) == ("00:00:00", "none")
    assert offers.parse_usable(recorded(engine, "qstat-g-c.txt"))["all.q"]
    assert examine.parse_hosts(recorded(engine, "qhost.txt")) == dict.fromkeys(("n1", "n2", "n3", "n4"), True)


@on_both
def test_what_a_job_is_given(engine: str) -> None:
    hosts = injob.parse_hostfile(recorded(engine, "pe_hostfile.txt"))
    assert hosts == tuple(HostLine(f"n{number}", 1) for number in (1, 2, 3, 4))
    environ = dict(line.split("=", 1) for line in recorded(engine, "env-pe.txt").splitlines())
    assert injob.identity(environ) == JobIdentity("1", {"job_name": "rec1"}, restarts="0-0")
    # gpu is a number there: Open Cluster Scheduler has SGE_HGR_gpu=1.000000
    assert gpu_grant.granted_by(environ, "SGE_HGR_gpu") == ()


@on_both
@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("nosuch-pe", {"pe": "nosuch"}, "PE `nosuch` does not exist"),
        ("nosuch-resource", {"native": ["-l nosuch=1"]}, "the cell has no resource `nosuch`"),
        ("w-p", {"pe": "one", "gpus_per_task": 9}, "9 GPUs per slot requested, no host has more than 1"),
    ],
)
def test_refusal_by_qsub(engine: str, name: str, values: dict[str, Any], problem: str) -> None:
    made = plan("sge", name="x", **values)
    with pytest.raises(SpecError) as caught:
        advice.refuse(
            advice.without_verdict(Answer(1, "", recorded(engine, f"qsub-{name}.txt"))),
            Requested.of(made),
            Cell(),
        )
    assert caught.value.problem == problem


# --- a qstat that nobody knows

LISTED = "<job_info><queue_info/><job_info>{}</job_info></job_info>"
PURGED = "<unknown_jobs><ST_name>1</ST_name></unknown_jobs>"
PAGE = "<html><head><title>503</title></head><body>Service Unavailable</body></html>"
OTHER = "<job_info><jobs><job><id>1</id><state>r</state></job></jobs></job_info>"


@pytest.mark.parametrize(
    ("qstat", "qstat_j", "problem", "why"),
    [
        ("", PURGED, "is not XML", "it is empty"),
        ("\n\n", PURGED, "is not XML", "it is empty"),
        ("job-ID  prior  name\n1  0.5  x", PURGED, "is not XML", "it begins with 'job-ID  prior  name'"),
        (f"<!DOCTYPE html>\n{PAGE}", PURGED, "is not XML", "it begins with '<!DOCTYPE html>'"),
        (PAGE, PURGED, "does not list jobs in a known form", "its elements are html, body, head"),
        (OTHER, PURGED, "does not list jobs in a known form", "its elements are job_info, jobs"),
        (LISTED.format("<job><id>1</id></job>"), PURGED, "does not list jobs in a known form", "job_info, job"),
        (LISTED.format("<job_list><id>1</id></job_list>"), PURGED, "does not list jobs in a known form", "job_info"),
        (LISTED.format(""), "", "is not XML", "it is empty"),
        (LISTED.format(""), PAGE, "names no job", "its element is html"),
        (LISTED.format(""), "<detailed_job_info/>", "names no job", "its element is detailed_job_info"),
    ],
)
def test_output_that_is_not_understood_purges_no_job(
    qstat: str, qstat_j: str, problem: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sge, "run", lambda argv, *, limit: Answer(0, qstat_j if "-j" in argv else qstat, ""))
    with pytest.raises(SchedulerError, match=problem) as caught:
        scheduler.login.query([JobIdentity("1", user="alice")])
    assert why in caught.value.why
    assert "print in a shell?" in caught.value.hint


@pytest.mark.parametrize(
    "qstat",
    [
        LISTED.format(""),
        "<job_info/>",
        "Welcome to the grid!\n<?xml version='1.0'?>\n" + LISTED.format(""),
        LISTED.format("<job_list><JB_job_number>7</JB_job_number><state>r</state></job_list><quota/>"),
        # with options in ~/.sge_qstat
        "<job_info><queue_info><Queue-List><name>all.q@n1</name></Queue-List></queue_info><job_info/></job_info>",
        "<job_info><cluster_queue_summary><name>all.q</name></cluster_queue_summary></job_info>",
    ],
)
def test_job_that_is_not_listed_is_purged(qstat: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sge, "run", lambda argv, *, limit: Answer(0, PURGED if "-j" in argv else qstat, ""))
    status = scheduler.login.query([JobIdentity("1", user="alice")])["1"]
    assert (status.state, status.purged) == (JobState.UNKNOWN, True)


def test_job_in_an_unknown_state_is_neither_ended_nor_purged(monkeypatch: pytest.MonkeyPatch) -> None:
    qstat = LISTED.format("<job_list><JB_job_number>1</JB_job_number><state>rZ</state><new>1</new></job_list>")
    monkeypatch.setattr(sge, "run", lambda argv, *, limit: Answer(0, qstat, ""))
    status = scheduler.login.query([JobIdentity("1", user="alice")])["1"]
    assert (status.state, status.purged) == (JobState.UNKNOWN, False)
    assert status.reason == "Grid Engine reports an unknown state: rZ"
