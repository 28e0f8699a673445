"""What `gridtf doctor` finds out about Grid Engine. Output was recorded on Son of Grid Engine 8.1.9."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gridtf.errors import SchedulerError
from gridtf.findings import Examination, Finding, Level, Setting, collect
from gridtf.jobspec.config import Configured
from gridtf.jobspec.spec import JobSpec
from gridtf.schedulers.commands import Answer
from gridtf.schedulers.sge import examine, offers, scheduler
from gridtf.schedulers.sge.commands import sge
from gridtf.schedulers.sge.directives import Resource
from gridtf.schedulers.sge.offers import PE, Queue

QHOST = """\
HOSTNAME                ARCH         NCPU NSOC NCOR NTHR  LOAD  MEMTOT  MEMUSE  SWAPTO  SWAPUS
----------------------------------------------------------------------------------------------
global                  -               -    -    -    -     -       -       -       -       -
n1                      lx-amd64        2    1    2    2  2.22   23.5G  819.9M     0.0     0.0
n2                      lx-amd64        2    1    2    2     -   23.5G       -     0.0       -
"""
CLUSTER_QUEUES = """\
CLUSTER QUEUE                   CQLOAD   USED    RES  AVAIL  TOTAL aoACDS  cdsuE
--------------------------------------------------------------------------------
all.q                             1.11      0      0     16     16      0      0
csh.q                             1.11      0      0      0     16      0     16
left.q                            1.11      0      0      4      8      0      4
"""
PE_TEXT = """\
pe_name            rrs
slots              999
user_lists         NONE
allocation_rule    $round_robin
control_slaves     TRUE
job_is_first_task  FALSE
accounting_summary TRUE
"""
COMPLEX = """\
#name               shortcut    type      relop requestable consumable default  urgency
#---------------------------------------------------------------------------------------
gpu                 gpu         INT       <=    YES         YES        0        0
h_rt                h_rt        TIME      <=    FORCED      NO         0:0:0    0
h_vmem              h_vmem      MEMORY    <=    YES         NO         0        0
"""
CONFIG = {"enforce_project": "false", "auto_user_default_project": "none", "reschedule_unknown": "00:00:00"}
RULES = {"fill": "$fill_up", "rr": "$round_robin", "two": "2", "smp": "$pe_slots"}
PES = {name: PE(name, 999, True, rule) for name, rule in RULES.items()}
SITE = examine.Site(
    version="SGE 8.1.9",
    hosts={"n1": True, "n2": True},
    config=CONFIG,
    pes=[*PES.values()],
    queues=[Queue("all.q", frozenset(PES), None)],
    usable={"all.q", "short.q"},
    resources=[Resource("gpu", "gpu", "YES", "INT")],
    projects=["ml"],
)


def given(**values: Any) -> Configured:
    return Configured(JobSpec(command=("x",), **values), dict.fromkeys(values, "mine.toml:1"))


def judge(values: dict[str, Any] | None = None, **changed: Any) -> Examination:
    return collect(examine.judge(SITE.replace(**changed), given(**(values or {}))))


def finding(found: Examination, check: str) -> Finding:
    (one,) = (item for item in found.findings if item.check == check)
    return one


def lines(found: Examination) -> list[str]:
    return [setting.line for setting in found.settings]


def problems(found: Examination) -> list[tuple[str, str]]:
    return [(str(item.level), item.check) for item in found.findings if item.level != Level.OK]


def test_hosts_and_queues_are_parsed() -> None:
    assert examine.parse_hosts(QHOST) == {"n1": True, "n2": False}
    assert offers.parse_usable(CLUSTER_QUEUES) == {"all.q": True, "csh.q": False, "left.q": True}


def test_accounting_summary_and_forced_resources_are_parsed() -> None:
    assert offers.parse_pe(PE_TEXT) == PE("rrs", 999, True, "$round_robin", summary=True)
    assert [one.name for one in offers.parse_resources(COMPLEX) if one.forced] == ["h_rt"]


def test_cell_in_good_order_needs_a_pe_alone() -> None:
    found = judge()
    assert problems(found) == [("warning", "pe")]
    assert lines(found) == ['pe = "rr"']
    assert finding(found, "scheduler").message == "SGE 8.1.9 answers: 2 execution hosts"
    assert finding(found, "gpus").message == "GPUs are resource gpu (INT), counted per slot"
    set_in_file = judge({"pe": "rr"})
    assert (problems(set_in_file), lines(set_in_file)) == ([], [])
    assert (
        "PE rr (allocation_rule $round_robin, control_slaves TRUE, accounting_summary FALSE)"
        in finding(set_in_file, "pe").message
    )


def test_cell_whose_qconf_is_refused_is_a_warning() -> None:
    found = judge(config={})
    assert problems(found) == [("warning", "scheduler.qconf")]
    assert lines(found) == []


def test_hosts_that_report_no_load() -> None:
    some = judge({"pe": "rr"}, hosts={"n1": True, "n2": False})
    assert finding(some, "scheduler").message.endswith("2 execution hosts, of which n2 report no load")
    assert ("failure", "scheduler.hosts") in problems(judge(hosts={"n1": False}))


# --- parallel environments


def test_pes_that_were_not_asked_for_in_time_are_told() -> None:
    found = judge({"pe": "rr"}, unasked=3)
    assert finding(found, "pe.others").message == "qconf has not answered within 2.5 s for all PEs: 3 are left out"
    assert "pe.others" not in {one.check for one in judge({"pe": "rr"}).findings}


@pytest.mark.parametrize(
    ("pes", "chosen"),
    [
        (["fill", "rr"], "rr"),
        (["smp", "two", "rr"], "rr"),
        (["smp", "two"], "two"),
        (["smp"], "smp"),
    ],
)
def test_pe_for_any_number_of_tasks_is_chosen(pes: list[str], chosen: str) -> None:
    found = judge(pes=[PES[name] for name in pes])
    assert lines(found) == [f'pe = "{chosen}"']
    rule = [problem for problem in problems(found) if problem[1] != "pe"]
    assert rule == ([] if chosen in ("fill", "rr") else [("warning", "pe.allocation_rule")])


def test_pe_without_control_slaves_is_one_failure() -> None:
    loose = [pe.replace(control_slaves=False) for pe in (PES["fill"], PES["rr"])]
    found = judge(pes=loose)
    assert (problems(found), lines(found)) == ([("failure", "pe.control_slaves")], [])
    assert finding(found, "pe.control_slaves").hint == (
        "ask the administrators: qconf -mattr pe control_slaves TRUE rr"
    )
    named = judge({"pe": "fill"}, pes=[loose[0], PES["rr"]])
    assert problems(named) == [("failure", "pe.control_slaves")]
    assert finding(named, "pe.control_slaves").hint == "write pe = …; suitable: rr"


def test_pe_that_does_not_exist_is_replaced_by_those_that_suit_jobs_of_any_size() -> None:
    """Not by one that gives a job one host, or needs a multiple of slots."""
    assert finding(judge({"pe": "nosuch"}), "pe").hint == "write pe = …; suitable: rr"
    assert finding(judge({"pe": "nosuch"}, pes=[PES["smp"]]), "pe").hint == "write pe = …; suitable: smp"


def test_pe_that_no_queue_offers_is_one_failure() -> None:
    nowhere = judge(queues=[Queue("all.q", frozenset(), None)])
    assert problems(nowhere) == [("failure", "pe.queues")]
    assert finding(nowhere, "pe.queues").hint.endswith("qconf -aattr queue pe_list fill all.q")
    named = judge({"pe": "two"}, queues=[Queue("all.q", frozenset({"rr"}), None)])
    assert problems(named) == [("failure", "pe.queues")]
    assert problems(judge(pes=[])) == [("failure", "pe")]
    unknown = judge({"pe": "fil"})
    assert problems(unknown) == [("failure", "pe")]
    assert finding(unknown, "pe").hint == "did you mean fill?"


def test_pattern_of_pes_and_pe_for_some_users() -> None:
    assert problems(judge({"pe": "f*"})) == []
    assert lines(judge(pes=[PES["fill"].replace(users="ml"), PES["rr"]])) == ['pe = "rr"']


@pytest.mark.parametrize(("usable", "values"), [(set(), {}), ({"all.q"}, {"partition": "none.q"})])
def test_queues_that_cannot_start_jobs_are_a_failure(usable: set[str], values: dict[str, Any]) -> None:
    assert problems(judge({"pe": "rr", **values}, usable=usable)) == [("failure", "queues")]


# --- resources, time, projects


@pytest.mark.parametrize(
    ("resource", "values", "level", "piece", "line"),
    [
        (Resource("gpu", "gpu", "JOB", "INT"), {}, "warning", "a job with GPUs has one host", []),
        (Resource("gpu", "gpu", "HOST", "INT"), {}, "ok", "counted per host", []),
        (Resource("gpu", "gpu", "NO", "INT"), {}, "warning", "is not counted", []),
        (Resource("ngpus", "ng", "YES", "INT"), {}, "warning", "no resource gpu", ['gpu_resource = "ngpus"']),
        (Resource("ngpus", "ng", "YES", "INT"), {"gpu_resource": "ng"}, "ok", "counted per slot", []),
        (Resource("scratch", "s", "YES", "INT"), {}, "ok", "none that looks like GPUs", []),
    ],
)
def test_gpu_resource(resource: Resource, values: dict[str, Any], level: str, piece: str, line: list[str]) -> None:
    found = judge({"pe": "rr", **values}, resources=[resource])
    assert finding(found, "gpus").level == level
    assert piece in finding(found, "gpus").message
    assert lines(found) == line


def test_walltime() -> None:
    both = [Queue("all.q", frozenset(PES), None), Queue("short.q", frozenset(PES), 600)]
    short = judge({"pe": "rr"}, queues=both)
    assert (problems(short), lines(short)) == ([("warning", "time")], ['time = "01:00:00"', 'time = "00:10:00"'])
    assert [setting.table for setting in short.settings] == ["", "partitions.short.q"]
    assert "short.q (00:10:00)" in finding(short, "time").message
    assert problems(judge({"pe": "rr", "time": "2h"}, queues=both)) == []
    assert lines(judge({"pe": "rr"}, queues=[both[0], both[1].replace(pes=frozenset({"smp"}))])) == []
    forced = judge({"pe": "rr"}, resources=offers.parse_resources(COMPLEX), queues=[both[0].replace(limit=600)])
    assert (problems(forced), lines(forced)) == ([("warning", "time")], ['time = "00:10:00"'])


def test_resources_that_every_job_must_request() -> None:
    resources = [*SITE.resources, Resource("h_vmem", "h_vmem", "YES", "MEMORY", forced=True)]
    found = judge({"pe": "rr", "native": ["-l a=b"]}, resources=resources)
    assert (problems(found), lines(found)) == ([("warning", "resources")], ['native = ["-l a=b", "-l h_vmem=4G"]'])
    assert problems(judge({"pe": "rr", "native": ["-l h_vmem=8G"]}, resources=resources)) == []


@pytest.mark.parametrize(
    ("changed", "account", "level", "line"),
    [
        ({}, None, "ok", []),
        ({}, "ml", "ok", []),
        ({}, "nl", "failure", []),
        ({"config": {**CONFIG, "enforce_project": "true"}}, None, "warning", ['account = "ml"']),
        ({"config": {**CONFIG, "enforce_project": "true"}, "projects": ["ml", "bio"]}, None, "warning", []),
        ({"config": {**CONFIG, "enforce_project": "true"}, "default_project": "ml"}, None, "ok", []),
    ],
)
def test_project(changed: dict[str, Any], account: str | None, level: str, line: list[str]) -> None:
    found = judge({"pe": "rr", "account": account}, **changed)
    assert finding(found, "account").level == level
    assert lines(found) == line


@pytest.mark.parametrize(("after", "piece"), [("00:00:00", "is not started again"), ("0:5:0", "again after 0:5:0")])
def test_lost_hosts(after: str, piece: str) -> None:
    found = judge(config={**CONFIG, "reschedule_unknown": after})
    assert piece in finding(found, "requeue").message


NO_GPUX = """\
Unable to run job: unknown resource "gpux"
Exiting.
"""
NOT_HERE = """\
Unable to run job: denied: host "login" is no submit host
Exiting.
"""


@pytest.mark.parametrize(
    ("output", "values", "message", "hint"),
    [
        (NO_GPUX, {"gpu_resource": "gpux", "gpus_per_task": 1}, "mine.toml:1: gpu_resource: the cell has no", "likely"),
        (NOT_HERE, {}, "jobs cannot be submitted from this host: denied: host", "submit from one of: ctl, n1"),
    ],
)
def test_first_job_is_refused_in_the_words_of_a_submission(
    monkeypatch: pytest.MonkeyPatch, output: str, values: dict[str, Any], message: str, hint: str
) -> None:
    answers = {"qsub": Answer(1, "", output), "-ss": Answer(0, "ctl\nn1\n", ""), "-sc": Answer(0, COMPLEX, "")}

    def run(argv: list[str], *, limit: float, text: str = "") -> Answer:
        return answers.get(argv[0]) or answers.get(argv[1]) or Answer(1, "", "denied")

    monkeypatch.setattr(sge, "run", run)
    settings = [Setting("gpu_resource", "gpu", "")]
    (found,) = collect(examine.first_job(scheduler, SITE, given(**values), settings)).findings
    assert (found.level, found.check) == ("failure", "submission")
    assert found.message.startswith(message)
    assert hint in found.hint


def test_queues_of_a_pe_that_are_disabled_are_named() -> None:
    queues = [Queue("all.q", frozenset({"fill", "rr"}), None), Queue("short.q", frozenset({"rr"}), None)]
    found = finding(judge({"pe": "fill"}, queues=queues, usable={"short.q"}), "pe.queues")
    assert (found.level, found.hint) == ("failure", "write pe = …; suitable: rr")
    assert found.message == "all queues that offer PE fill are disabled or in error: all.q"


def test_gpus_that_count_per_slot_are_better_than_those_per_job() -> None:
    resources = [Resource("gpu", "gpu", "JOB", "INT"), Resource("gpushare", "gs", "YES", "DOUBLE")]
    assert finding(judge(resources=resources), "gpus").hint == 'write gpu_resource = "gpushare"'


def test_pe_is_one_of_the_queues_that_jobs_start_in() -> None:
    queues = [Queue("all.q", frozenset({"fill"}), None), Queue("gpu.q", frozenset({"rr"}), None)]
    assert lines(judge({"partition": "gpu.q@@new"}, queues=queues, usable={"all.q", "gpu.q"})) == ['pe = "rr"']
    assert lines(judge(queues=queues, usable={"gpu.q"})) == ['pe = "rr"']


# --- all of it, with stand-ins for the commands

STAND_IN = """\
#!/bin/bash
case "${0##*/} $*" in
"qhost ") cat qhost;;
"qstat -help") echo SGE 8.1.9;;
"qstat -g c") cat queues;;
"qconf -sconf") echo enforce_project false;;
"qconf -spl") echo rrs;;
"qconf -sp rrs") cat pe;;
"qconf -sql") echo all.q;;
"qconf -sq all.q") printf 'qname all.q\\npe_list rrs\\nh_rt INFINITY\\n';;
"qconf -sc") cat complex;;
"qconf -sprjl") echo ml;;
"qconf -suser "*) echo "alice is not known as a user"; exit 1;;
"qsub -w v") [ $(grep -xc '#$ -pe rrs 2\\|#$ -l h_rt=1:00:00') = 2 ] && echo found;;
*) echo "unexpected: $0 $*" >&2; exit 9;;
esac
"""


@pytest.mark.thorough
def test_examination_of_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"qhost": QHOST, "queues": CLUSTER_QUEUES, "pe": PE_TEXT, "complex": COMPLEX}
    (commands := tmp_path / "bin/lx-amd64").mkdir(parents=True)
    for name in ("qhost", "qstat", "qconf", "qsub"):
        (commands / name).write_text(STAND_IN)
        (commands / name).chmod(0o755)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SGE_ROOT", str(tmp_path))
    found = examine.examine(scheduler, given())
    assert problems(found) == [("warning", "pe"), ("warning", "time")]
    assert lines(found) == ['pe = "rrs"', 'time = "01:00:00"']
    assert finding(found, "submission").message == "qsub accepts a job with these settings (-w v)"
    (tmp_path / "qhost").rename(tmp_path / "moved")
    with pytest.raises(SchedulerError, match="qhost has failed: cat: qhost: No such file"):
        examine.examine(scheduler, given())
    (tmp_path / "moved").rename(tmp_path / "qhost")
    (commands / "qsub").write_text("#!/bin/sh\nsleep 60\n")
    monkeypatch.setattr(examine, "_EXAMINE_LIMIT", 3.0)
    assert ("warning", "submission") in problems(examine.examine(scheduler, given()))
    (commands / "qconf").write_text("#!/bin/sh\necho denied: host is no admin host >&2; exit 1\n")
    assert problems(examine.examine(scheduler, given())) == [("warning", "scheduler.qconf")]
