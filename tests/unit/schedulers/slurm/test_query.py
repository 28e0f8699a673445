"""The status of jobs. Output of commands was recorded on Slurm 22.05.8, unless a line says otherwise."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from gridtf.errors import SchedulerError
from gridtf.schedulers.api import JobIdentity, JobStatus, Parent
from gridtf.schedulers.slurm import query, scheduler
from gridtf.schedulers.slurm.commands import slurm
from gridtf.schedulers.slurm.ending import parse_termination
from gridtf.schedulers.slurm.query import (
    Row,
    parse_moment,
    parse_node_gpus,
    parse_sacct,
    parse_squeue,
    statuses,
)
from gridtf.states import JobState
from tests.support.plans import job, resolved

SQUEUE = """\
47+1|48|CANCELLED|2026-11-21T11:07:50|Resources
50+1|51|COMPLETED|2026-11-21T11:07:52|None
50+0|50|COMPLETED|2026-11-21T11:07:52|None
45+1|46|FAILED|2026-11-21T11:04:03|NonZeroExitCode
45+0|45|RUNNING|2026-11-21T11:04:03|None
52|52|FAILED|2026-11-21T11:07:52|NonZeroExitCode
60|60|COMPLETED|2026-11-21T11:08:18|None
77|77|TIMEOUT|2026-11-21T11:09:13|TimeLimit
4|4|PREEMPTED|2026-11-21T11:14:35|None
53_[3-5%2]|53|PENDING|N/A|JobArrayTaskLimit
53_1|61|RUNNING|2026-11-21T11:08:18|None
53_2|62|RUNNING|2026-11-21T11:08:18|None
54|54|PENDING|N/A|JobHeldUser
55|55|PENDING|N/A|Dependency
56|56|PENDING|2026-11-21T12:08:18|BeginTime
57|57|PENDING|2027-11-21T11:08:18|Resources
59|59|PENDING|N/A|PartitionNodeLimit
81|81|PENDING|N/A|job requeued in held state
10|10|COMPLETING|2026-11-21T11:15:40|NodeDown
11|11|COMPLETING|2026-11-21T11:15:40|None
"""


@pytest.mark.parametrize(
    ("job_id", "state", "reason"),
    [
        ("50", JobState.COMPLETED, ""),
        ("51", JobState.COMPLETED, ""),  # a component by its own id
        ("45", JobState.RUNNING, ""),  # the first component has the script
        ("47", JobState.CANCELLED, "while it was pending (Resources)"),  # Slurm has purged the other rows
        ("52", JobState.FAILED, "its script ended with an exit code other than 0"),
        ("60", JobState.COMPLETED, ""),
        ("77", JobState.TIMEOUT, "the walltime is over"),
        ("4", JobState.PREEMPTED, "ended to make room for a job of higher priority"),
        ("54", JobState.PENDING, "held: scontrol release (JobHeldUser)"),
        ("55", JobState.PENDING, "it waits for another job (Dependency)"),
        ("56", JobState.PENDING, "its begin time has not come (BeginTime)"),
        ("57", JobState.PENDING, "the nodes are busy (Resources)"),
        (
            "59",
            JobState.PENDING,
            "it requests more or fewer nodes than the partition has or allows (PartitionNodeLimit)",
        ),
        (
            "81",
            JobState.PENDING,
            "it was requeued and is held: scontrol release (job requeued in held state)",
        ),
        ("10", JobState.RUNNING, "ending: one of its nodes is down"),
        ("11", JobState.RUNNING, "ending"),
        ("53_1", JobState.RUNNING, ""),
        ("62", JobState.RUNNING, ""),
        ("53_4", JobState.PENDING, "the array already runs as many tasks as its limit allows (JobArrayTaskLimit)"),
    ],
)
def test_statuses_of_squeue_rows(job_id: str, state: JobState, reason: str) -> None:
    found = statuses([job_id], parse_squeue(SQUEUE))
    waits = "(Dependency)" in reason
    assert found == {job_id: JobStatus(state, reason, expected=found[job_id].expected, waits=waits)}


@pytest.mark.parametrize(("job_id", "start"), [("57", "2027-11-21T11:08:18"), ("59", None), ("60", None)])
def test_pending_jobs_have_an_expected_start(job_id: str, start: str | None) -> None:
    expected = statuses([job_id], parse_squeue(SQUEUE))[job_id].expected
    assert expected == (start and time.mktime(time.strptime(start, "%Y-%m-%dT%H:%M:%S")))


def test_array_is_expected_to_start_with_its_first_element() -> None:
    rows = "9_[2-3]|9|PENDING|2027-11-21T12:00:00|Resources\n9_1|8|PENDING|2027-11-21T11:00:00|Resources\n"
    expected = statuses(["9"], parse_squeue(rows))["9"].expected
    assert expected == time.mktime((2027, 11, 21, 11, 0, 0, 0, 0, -1))


@pytest.mark.parametrize(
    "job_id",
    ["x", "53_x", "53_²", "²", "53_99999999999999999999", "", "_", "1", "5", "530", "53_6", "53_9", "61_1", "47_1"],
)
def test_unlisted_job_has_no_status(job_id: str) -> None:
    assert statuses([job_id], parse_squeue(SQUEUE)) == {}


def test_array_has_one_status() -> None:
    found = statuses(["53"], parse_squeue(SQUEUE))["53"]
    assert found == JobStatus(JobState.RUNNING, "elements of the array: 2 RUNNING, 3 PENDING")


@pytest.mark.parametrize(
    ("rows", "state", "words"),
    [
        (
            ["7_1 PENDING", "7_[3-9:2,20%4] PENDING"],
            JobState.PENDING,
            "elements of the array: 6 PENDING (Slurm has not considered it yet)",
        ),
        (["7_1 COMPLETED", "7_2 FAILED", "7_3 PENDING"], JobState.PENDING, "1 PENDING, 1 FAILED, 1 COMPLETED"),
        (
            ["7_1 COMPLETED", "7_2 FAILED", "7_3 TIMEOUT"],
            JobState.FAILED,
            "that Slurm still knows: 1 FAILED, 1 TIMEOUT, 1 COM",
        ),
        (["7_1 COMPLETED", "7_2 NODE_FAIL", "7_3 FAILED"], JobState.NODE_FAIL, "(one of its nodes has failed)"),
        (
            ["7_1 COMPLETED", "7_2 COMPLETED"],
            JobState.COMPLETED,
            "elements of the array that Slurm still knows: 2 COMPLETED",
        ),
        (["7_[3-99999999999999999999] PENDING", "7_0 RUNNING"], JobState.RUNNING, "1 RUNNING, "),
        (["7_[1,3,5,...] PENDING", "7_0 RUNNING"], JobState.RUNNING, "1 RUNNING, "),  # abbreviated by Slurm
    ],
)
def test_array_status_counts_elements_by_state(rows: list[str], state: str, words: str) -> None:
    made = [Row(job_id, "7", letter, reason="None") for job_id, letter in map(str.split, rows)]
    found = statuses(["7"], made)["7"]
    assert found.state == state
    assert words in found.reason


def test_reason_may_contain_any_character() -> None:
    # Slurm 23.11, from its documentation: free text
    text = "12|12|PENDING|N/A|Nodes required for job are DOWN, DRAINED or reserved | see (ops), 'now'\n"
    assert "reserved | see (ops), 'now'" in statuses(["12"], parse_squeue(text))["12"].reason


def test_parse_squeue_skips_other_lines() -> None:
    # squeue --clusters prints a line a cluster even without a header
    text = "CLUSTER: alpha\n60|60|RUNNING|2026-11-21T11:08:18|None\n\nCLUSTER: beta\nsqueue: warning|a|b|c|d\n"
    assert parse_squeue(text) == [Row("60", "60", "RUNNING", "2026-11-21T11:08:18", "None")]


# squeue(1) of 22.05, JOB STATE CODES; the last ones from 23.11 to 25.05
ALL_STATES = """BOOT_FAIL CANCELLED COMPLETED CONFIGURING COMPLETING DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PENDING
PREEMPTED RUNNING RESV_DEL_HOLD REQUEUE_FED REQUEUE_HOLD REQUEUED RESIZING REVOKED SIGNALING SPECIAL_EXIT STAGE_OUT
STOPPED SUSPENDED TIMEOUT LAUNCH_FAILED POWER_UP_NODE RECONFIG_FAIL EXPEDITING"""


@pytest.mark.parametrize("state", ALL_STATES.split())
def test_parse_state_knows_every_state(state: str) -> None:
    ours, words = query.parse_state(state)
    assert "Slurm reports" not in words
    assert ours != JobState.COMPLETED or state == "COMPLETED"
    assert ours != JobState.UNKNOWN or state == "REVOKED"


def test_unknown_state_is_named() -> None:
    assert query.parse_state("BRAND_NEW") == (JobState.UNKNOWN, "Slurm reports the state BRAND_NEW")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "the nodes are busy (Resources)"),
        ("None", "Slurm has not considered it yet"),
        ("QOSMaxCpuPerUserLimit", "already use all that is allowed (QOSMaxCpuPerUserLimit)"),
        ("AssocGrpGRES", "already use all that is allowed (AssocGrpGRES)"),
        ("AssocMaxJobsLimit", "already use all that is allowed"),
        ("AssocGrpCPUMinutesLimit", "has used up its budget (AssocGrpCPUMinutesLimit)"),
        ("AssocGrpBilling", "already use all that is allowed"),
        ("QOSGrpEnergy", "already use all that is allowed"),
        ("AssocGrpBillingMinutes", "has used up its budget"),
        ("QOSGrpEnergyMinutes", "has used up its budget"),
        ("AssocGrpWallLimit", "has used up its budget"),
        ("QOSGrpWallLimit", "has used up its budget"),
        ("AssocGrpCPURunMinutesLimit", "running jobs already use all that is allowed"),
        ("QOSMinCpuNotSatisfied", "it requests less than its QOS requires of a job"),
        ("QOSMinGRES", "it requests less than its QOS requires"),
        ("QOSUsageThreshold", "you have used more of your share of the cluster than its QOS allows"),
        ("MaxPoweredUpNodes", "the limit of powered-up nodes is reached"),
        ("AssocMaxCpuMinutesPerJobLimit", "more than one job may have"),
        ("QOSMaxGRESPerJob", "more than one job may have (QOSMaxGRESPerJob)"),
        ("QOSMaxWallDurationPerJobLimit", "more than one job may have"),
        ("ReqNodeNotAvail, UnavailableNodes:n[3-4]", "down, drained or reserved (ReqNodeNotAvail, UnavailableNodes:n"),
        ("launch_failed_requeued_held", "it could not be started and is held"),
        ("(DependencyNeverSatisfied)", "it will never start (DependencyNeverSatisfied)"),
        ("Something new", "Something new"),
    ],
)
def test_why_pending(reason: str, words: str) -> None:
    assert words in query.why_pending(reason)


def test_why_ended() -> None:
    killed = "its script was killed by SIGKILL: by a user, or by the kernel because memory ran out"
    assert query.why_ended("RaisedSignal:9(Killed)") == query.why_ended("JobLaunchFailure", "0:9") == killed
    assert query.why_ended("RaisedSignal:11(Segmentation_fault)") == "its script was killed by SIGSEGV"
    for not_launched in ("0:53", "1:0", "0:²", "0:900", ""):
        assert query.why_ended("JobLaunchFailure", not_launched).startswith("Slurm could not start its script")
    assert query.why_ended("Whatever") == "Whatever"
    assert query.why_ended("None") == ""


# sacct(1), --parsable2: from its documentation
SACCT = """\
12|12|COMPLETED
13|13|CANCELLED by 1000
14_1|15|FAILED
14_2|16|COMPLETED
17+0|17|NODE_FAIL
17+1|18|CANCELLED by 0
19|19|OUT_OF_MEMORY
"""


def test_statuses_of_sacct_rows() -> None:
    found = statuses(["12", "13", "14_2", "17", "19", "99"], parse_sacct(SACCT))
    assert {job_id: status.state for job_id, status in found.items()} == {
        "12": JobState.COMPLETED,
        "13": JobState.CANCELLED,
        "14_2": JobState.COMPLETED,
        "17": JobState.NODE_FAIL,
        "19": JobState.OUT_OF_MEMORY,
    }
    assert found["13"].reason == "by 1000"


STEPD = Parent(71, "slurmstepd")

# Output of scontrol -o show job in a batch script's trap for SIGTERM, shortened
SEEN = (
    "JobId=76 JobName={name} UserId=slu1(1001) JobState={state} Reason={reason} Dependency=(null) Restarts={restarts} "
)


@pytest.mark.parametrize(
    ("state", "reason", "more", "restarts", "expected"),
    [
        ("COMPLETING", "None", "EndTime=2026-11-21T11:09:15", (0, 0), (JobState.CANCELLED, "cancelled with scancel")),
        ("COMPLETING", "None", "EndTime=2026-11-21T11:09:15", (2, 2), (JobState.CANCELLED, "cancelled with scancel")),
        ("COMPLETING", "TimeLimit", "EndTime=2026-11-21T11:10:14", (0, 0), (JobState.TIMEOUT, "the walltime is over")),
        (
            "COMPLETING",
            "None",
            "PreemptEligibleTime=2026-11-21T11:14:35 PreemptTime=2026-11-21T11:14:37",
            (0, 0),
            (JobState.PREEMPTED, "ended to make room for a job of higher priority"),
        ),
        (
            "COMPLETING",
            "NodeDown",
            "EndTime=2026-11-21T11:15:59",
            (0, 0),
            (JobState.NODE_FAIL, "one of its nodes has failed"),
        ),
        ("COMPLETING", "None", "EndTime=Unknown", (1, 0), (JobState.CANCELLED, "Slurm has requeued it")),
        (
            "COMPLETING",
            "job_requeued_in_held_state",
            "EndTime=Unknown",
            (1, 0),
            (JobState.CANCELLED, "Slurm has requeued it"),
        ),
        ("RUNNING", "None", "EndTime=2026-11-21T11:10:13 PreemptTime=None", (0, 0), None),
        ("RUNNING", "None", "PreemptTime=2026-11-21T11:14:37", (1, 1), (JobState.PREEMPTED, "higher priority")),
        ("OUT_OF_MEMORY", "OutOfMemory", "", (0, 0), (JobState.OUT_OF_MEMORY, "more memory")),
    ],
)
def test_parse_termination(
    state: str, reason: str, more: str, restarts: tuple[int, int], expected: tuple[str, str] | None
) -> None:
    now, before = restarts
    text = SEEN.format(name="x", state=state, reason=reason, restarts=now) + more + " Power= \n"
    found = parse_termination("JobId=75 JobState=TIMEOUT Reason=TimeLimit\n" + text, "76", before)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert found.state == expected[0]
        assert expected[1] in found.reason


def test_texts_of_the_user_are_not_parsed_as_fields() -> None:
    name = "x JobState=RUNNING Reason=None JobId=9 UserId=y"
    text = SEEN.format(name=name, state="COMPLETING", reason="TimeLimit", restarts=0)
    text += "Nodes=n1 CPU_IDs=0 Mem=5 GRES=gpu:1(IDX:0) Command=/a JobState=RUNNING Reason=None WorkDir=/b Nodes=n2 "
    text += "CPU_IDs=0 Mem=5 GRES=gpu:9(IDX:0-8) Comment=JobState=RUNNING\n"
    assert parse_termination(text, "76", 0) == JobStatus(JobState.TIMEOUT, "the walltime is over")
    assert parse_node_gpus(text, "76") == {"n1": (1, "")}


@pytest.mark.parametrize(
    ("shown", "places"),
    [
        (
            "JobId=7 JobName=my job UserId=a(1) Command=(null) WorkDir=/home/a b StdErr=/runs/a b/job.log "
            "StdIn=/dev/null StdOut=/runs/a b/job.log Power=",
            ["/runs/a b", "/home/a b/gridtf-runs/my job-7"],
        ),
        ("JobId=8 ArrayJobId=7 ArrayTaskId=3 JobName=x UserId=a(1) WorkDir=/h StdOut=/r/array/3/job.log", []),
        ("JobId=9 JobName=x UserId=a(1) WorkDir=/h StdOut=/r/job.log Power=", []),
        ("Welcome", []),
    ],
)
def test_parse_run_dirs(shown: str, places: list[str]) -> None:
    assert [str(place) for place in query.parse_run_dirs(shown, "7")] == places
    element = ["/r", "/r/array/3", "/h/gridtf-runs/x-7_3"] if "ArrayJobId" in shown else []
    assert [str(place) for place in query.parse_run_dirs(shown, "7_3")] == element


# Of Slurm 26.05, shortened; older versions have no SubmitLine.
TEXTS_OF_THE_USER = """\
JobId=7 JobName=two
lines JobState=FAILED UserId=a(1) JobState=COMPLETING Reason=TimeLimit Restarts=0 Nodes=n1 CPU_IDs=0 Mem=5 \
GRES=gpu:1(IDX:0) Command=./j.sh SubmitLine=sbatch --comment=two
lines WorkDir=/no JobName=no ./j.sh StdOut=/no/job.log WorkDir=/h Comment=two
lines WorkDir=/no JobName=no StdErr= StdIn=/dev/null StdOut=/r/job.log
"""


def test_texts_of_the_user_with_several_lines() -> None:
    assert [str(place) for place in query.parse_run_dirs(TEXTS_OF_THE_USER.replace("two\nlines J", "x J"), "7")] == [
        *("/no", "/r", "/no/gridtf-runs/x-7", "/h/gridtf-runs/x-7")
    ]
    assert parse_termination(TEXTS_OF_THE_USER, "7", 0) == JobStatus(JobState.TIMEOUT, "the walltime is over")
    assert parse_node_gpus(TEXTS_OF_THE_USER, "7") == {"n1": (1, "")}


@pytest.mark.parametrize(
    ("text", "moment"),
    [("1795435070", 1795435070.0), ("Unknown", None), ("", None), ("11:57:50", None), ("NONE", None)],
)
def test_parse_moment(text: str, moment: float | None) -> None:
    assert parse_moment(text) == moment


def test_parse_moment_by_the_clock_of_this_host() -> None:
    assert parse_moment(time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(1795435070))) == 1795435070


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ("Requeue=1 Restarts=0 BatchFlag=1", ""),
        ("Requeue=0 Restarts=0 BatchFlag=1", "Slurm must not requeue it (--no-requeue"),
        ("Requeue=1 Restarts=0 BatchFlag=0", "Slurm requeues batch jobs only"),
        ("Requeue=1 Restarts=0 BatchFlag=1 JobState=COMPLETING Reason=None", "Slurm is ending it, as after scancel"),
        ("Requeue=1 Restarts=0 BatchFlag=1 JobState=COMPLETING Reason=TimeLimit", ""),
        (None, "scontrol, which could requeue it, does not work on "),
    ],
)
def test_why_slurm_does_not_start_a_job_again(shown: str | None, why: str, tools: Path) -> None:
    text = "" if shown is None else f"JobId=76 JobName=a JobState=RUNNING {shown} EndTime=$END Command=/a"
    command(tools, "scontrol", f'[ "$SLURM_TIME_FORMAT" = %s ] && END=1795435070; echo "{text}"')
    found = scheduler.injob.why_not_again({"SLURM_JOB_ID": "76"})
    assert found.startswith(why)
    assert bool(found) == bool(why)


def test_end_of_job_is_what_scontrol_says(tools: Path) -> None:
    request = resolved(job(time="1h"), "slurm")
    environ = {"SLURM_JOB_ID": "76"}
    assert scheduler.injob.end_of_job(environ, request, 100.0) == 3700  # no scontrol
    assert scheduler.injob.end_of_job({**environ, "SLURM_JOB_END_TIME": "1795430000"}, request, 100.0) == 1795430000
    shown = "JobId=75 EndTime=17\nJobId=76 JobName=a JobState=RUNNING EndTime=1795435070 Command=/a EndTime=1"
    command(tools, "scontrol", f"printf '{shown}\\n'")
    assert scheduler.injob.end_of_job(environ, request, 100.0) == 1795435070


@pytest.mark.parametrize(("job_id", "named"), [("76", "76"), ("80_3", "80_3")])
def test_start_again_requeues_the_job_or_the_element(job_id: str, named: str, tools: Path) -> None:
    environ = {"SLURM_JOB_ID": "76"}
    if "_" in job_id:
        environ |= {"SLURM_ARRAY_JOB_ID": "80", "SLURM_ARRAY_TASK_ID": "3"}
    command(tools, "scontrol", f'echo "$*" > {tools}/said')
    assert scheduler.injob.start_again(environ) is None
    assert (tools / "said").read_text() == f"requeue {named}\n"
    command(tools, "scontrol", "echo Requested operation is presently disabled for job 76 >&2; exit 1")
    with pytest.raises(SchedulerError, match="does not requeue it: Requested operation is presently disabled"):
        scheduler.injob.start_again(environ)


def test_termination_reason_is_unknown_without_output() -> None:
    assert parse_termination("", "76", 0) is None


SHOWN = "JobId=88 JobName=sl.sh NodeList=sl[1-3] NumNodes=3 CoreSpec=* JOB_GRES=gpu:5   {nodes} MinCPUsNode=1 Power= \n"
HET = """\
JobId=91 HetJobId=91 HetJobOffset=0 JobName=sl.sh JOB_GRES=gpu:1   Nodes=sl2 CPU_IDs=3 Mem=500 GRES=gpu:1(IDX:3) M=1
JobId=92 HetJobId=91 HetJobOffset=1 JobName=sl.sh JOB_GRES=gpu:2   Nodes=sl4 CPU_IDs=0 Mem=500 GRES=gpu:2(IDX:0-1) M=1
"""


@pytest.mark.parametrize(
    ("nodes", "gpus"),
    [
        (
            "Nodes=sl1 CPU_IDs=0 Mem=500 GRES=gpu:3(IDX:0-2)   Nodes=sl[2-3] CPU_IDs=0 Mem=500 GRES=gpu:1(IDX:0)",
            {"sl1": (3, ""), "sl2": (1, ""), "sl3": (1, "")},
        ),
        ("Nodes=sl2 CPU_IDs=2 Mem=500 GRES=", {"sl2": (0, "")}),
        # types, and several kinds of GRES: from Slurm's documentation
        ("Nodes=n[1-2] CPU_IDs=0-3,8 Mem=0 GRES=gpu:a100:2(IDX:0,3)", {"n1": (2, "a100"), "n2": (2, "a100")}),
        ("Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:a100:2(IDX:0-1),gpu:v100:1(IDX:2)", {"n1": (3, "a100,v100")}),
        # where gres.conf names no files
        ("Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=gpu(CNT:4)", {"n1": (4, ""), "n2": (4, "")}),
        ("Nodes=n1 CPU_IDs=0 Mem=0 GRES=nvme:1,gpu:a100(CNT:4),gpu:v100:1(IDX:2)", {"n1": (5, "a100,v100")}),
        # names that begin with a digit, MIG instances
        ("Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:2080ti:2(IDX:0-1),gpu:1g.10gb:1(IDX:2)", {"n1": (3, "1g.10gb,2080ti")}),
        ("Nodes=n1 CPU_IDs=0 Mem=0 GRES=nvme:7,gpu:2(IDX:0-1),xgpu:4(IDX:0-3)", {"n1": (2, "")}),
    ],
)
def test_parse_node_gpus(nodes: str, gpus: dict[str, tuple[int, str]]) -> None:
    assert parse_node_gpus(SHOWN.format(nodes=nodes), "88") == gpus


def test_parse_node_gpus_of_one_component() -> None:
    assert parse_node_gpus(HET, "91") == {"sl2": (1, "")}
    assert parse_node_gpus(HET, "92") == {"sl4": (2, "")}


# --- with stand-ins for Slurm's commands -------------------------------------------------------------------------


def command(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f'#!/bin/bash\nprintf "%s " "$0" "$@" >> "{folder}/calls"; echo >> "{folder}/calls"\n{script}\n')
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    command(tmp_path, "scontrol", 'echo "Slurmctld(primary) at ctl is DOWN"')
    return tmp_path


def calls(tools: Path) -> list[str]:
    return (tools / "calls").read_text().splitlines()


def test_query_distinguishes_a_killed_script_from_one_never_started(tools: Path) -> None:
    rows = ("9|9|FAILED|N/A|JobLaunchFailure", "8|8|COMPLETING|N/A|JobLaunchFailure", "7|7|COMPLETED|N/A|None")
    command(tools, "squeue", "".join(f"echo '{row}'\n" for row in rows))
    command(tools, "scontrol", "echo 'JobId=9 JobName=a ExitCode=0:1 UserId=a(1) JobState=FAILED ExitCode=0:9 Power='")
    found = scheduler.login.query([JobIdentity(job_id) for job_id in "987"])
    assert found["9"].reason == f"its script was {found['9'].killed}"
    assert found["9"].killed.startswith("killed by SIGKILL")
    assert found["8"] == JobStatus(JobState.RUNNING, "ending")
    assert [line.split("/")[-1] for line in calls(tools)][1:] == ["scontrol -o show job 9 "]


@pytest.mark.parametrize(
    ("nodes", "named"), [("n[1-2]", " (n1, n2)"), ("n7", " (n7)"), ("(null)", ""), ("", "")], ids=str
)
def test_query_names_the_nodes_of_a_job_that_has_lost_one(tools: Path, nodes: str, named: str) -> None:
    command(tools, "squeue", "echo '9|9|NODE_FAIL|N/A|NodeDown'; echo '8|8|COMPLETED|N/A|None'")
    command(tools, "scontrol", f"echo 'JobId=9 JobName=a UserId=a(1) JobState=NODE_FAIL NodeList={nodes} BatchHost=n1'")
    found = scheduler.login.query([JobIdentity("9"), JobIdentity("8")])["9"]
    assert found == JobStatus(JobState.NODE_FAIL, f"one of its nodes is down{named}")
    assert [line.split("/")[-1] for line in calls(tools)][1:] == ["scontrol -o show job 9 "]


def test_query_runs_one_squeue_for_several_jobs(tools: Path) -> None:
    command(tools, "squeue", f"cat <<'END'\n{SQUEUE}END")
    found = scheduler.login.query([JobIdentity(job_id) for job_id in ("60", "52", "53", "99", "60")])
    assert {job_id: status.state for job_id, status in found.items()} == {
        "60": JobState.COMPLETED,
        "52": JobState.FAILED,
        "53": JobState.RUNNING,
        "99": JobState.UNKNOWN,
    }
    assert len(calls(tools)) == 1
    assert "--jobs=60,52,53,99 " in calls(tools)[0]


def test_query_of_several_own_jobs_names_the_user(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command(tools, "squeue", "true")
    monkeypatch.setattr("os.getuid", lambda: 7001)  # a user without a name here
    mine, theirs = (JobIdentity(number, user=user) for number, user in (("1", "7001"), ("2", "bob")))
    asked = [[mine, mine.replace(job_id="3")], [mine, theirs], [mine]]
    for jobs in asked:
        scheduler.login.query(jobs)
    assert ["--user=7001 " in line for line in calls(tools)] == [True, False, False]
    monkeypatch.setattr("os.getuid", lambda: 0)  # in a container that maps no users
    scheduler.login.query([mine.replace(user="root"), mine.replace(job_id="3", user="root")])
    assert "--user" not in calls(tools)[-1]


@pytest.mark.thorough
def test_query_of_more_jobs_than_a_command_line_holds(tools: Path) -> None:
    command(tools, "squeue", f"cat <<'END'\n{SQUEUE}END")
    found = scheduler.login.query([JobIdentity(str(number)) for number in range(100_000)])
    assert found["60"].state == JobState.COMPLETED
    assert len(calls(tools)) == 1
    assert "--jobs" not in calls(tools)[0]


def test_query_runs_one_squeue_per_cluster(tools: Path) -> None:
    command(tools, "squeue", "true")
    east = {"cluster": "a"}
    scheduler.login.query([JobIdentity("1", east), JobIdentity("2"), JobIdentity("3", east)])
    assert ["--clusters=a" in line and "--jobs=1,3 " in line for line in calls(tools)] == [True, False]


@pytest.mark.parametrize(
    ("details", "conf", "variable", "option"),
    [
        ({}, "ClusterName=here", "", []),
        ({"cluster": "a"}, "ClusterName=here", "", ["--clusters=a"]),
        ({"local_cluster": "here"}, "# ClusterName=x\n clustername = Here # ours", "", []),
        ({"local_cluster": "here"}, 'ClusterName="Here"', "", []),
        ({"local_cluster": "here"}, "ClusterName=there", "", ["--clusters=here"]),
        ({"local_cluster": "here"}, "ClusterName=here", "there", ["--clusters=here"]),
        ({"local_cluster": "here"}, None, "", []),
        ({"local_cluster": "here", "cluster": "a"}, "ClusterName=here", "", ["--clusters=a"]),
    ],
)
def test_job_of_another_cluster_is_not_taken_for_the_local_one_with_its_id(
    details: dict[str, str],
    conf: str | None,
    variable: str,
    option: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    if conf is not None:
        (tmp_path / "slurm.conf").write_text(conf)
    if variable:
        monkeypatch.setenv("SLURM_CLUSTERS", variable)
    assert query.cluster_option(JobIdentity("7", details)) == option


def test_commands_in_a_job_ask_its_own_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", "a,b")
    assert slurm.environment()["SLURM_CLUSTERS"] == "a,b"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert "SLURM_CLUSTERS" not in slurm.environment()
    assert scheduler.injob.identity({"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "a"}).details == {"local_cluster": "a"}


@pytest.mark.thorough
@pytest.mark.parametrize("problem", ["cannot stat", "unable to status"])  # the latter: 20.11
@pytest.mark.parametrize(("path", "shown"), [("/nope", "/nope"), ("", "a file without a name")])
def test_missing_configuration_that_squeue_waits_for_is_not_a_silent_controller(
    path: str, shown: str, problem: str, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = f"s_p_parse_file: {problem} file {path}: No such file or directory, retrying in 1sec up to 60sec"
    command(tools, "squeue", f"echo 'squeue: error: {waiting}' >&2; exec sleep 60")
    monkeypatch.setenv("SLURM_CONF", path)
    monkeypatch.setattr(type(slurm), "query_limit", 3.0)
    with pytest.raises(SchedulerError, match=re.escape(f"cannot read {shown} (SLURM_CONF): No such file")):
        scheduler.login.query([JobIdentity("7")])


def test_query_of_an_unknown_job_is_no_error(tools: Path) -> None:
    command(tools, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert scheduler.login.query([JobIdentity("99999")])["99999"].purged


def test_query_without_a_controller_is_an_error(tools: Path) -> None:
    error = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    command(tools, "squeue", f"echo '{error}' >&2; exit 1")
    with pytest.raises(SchedulerError, match=r"controller on ctl does not answer: .*connect failure") as caught:
        scheduler.login.query([JobIdentity("1")])
    assert caught.value.hint
    command(tools, "squeue", "echo 'squeue: error: something else' >&2; exit 1")
    with pytest.raises(SchedulerError, match="squeue has failed: something else"):
        scheduler.login.query([JobIdentity("1")])


def test_query_ignores_filters_in_the_environment(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_USERS", "bob")
    command(tools, "squeue", '[ -z "$SQUEUE_USERS" ] && echo "60|60|RUNNING|N/A|None"')
    assert scheduler.login.query([JobIdentity("60")])["60"].state == JobState.RUNNING


@pytest.mark.parametrize("form", ["relative", "%d %b %H:%M"])
def test_expected_start_is_known_whatever_format_of_times_the_user_likes(
    form: str, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_TIME_FORMAT", form)
    command(tools, "squeue", '[ "$SLURM_TIME_FORMAT" = %s ] && START=1795435070; echo "60|60|PENDING|$START|Resources"')
    assert scheduler.login.query([JobIdentity("60")])["60"].expected == 1795435070


def test_accounting_that_is_disabled_or_unreachable_is_empty(tools: Path) -> None:
    command(tools, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert scheduler.login.accounting([JobIdentity("1")]) == {}
    command(tools, "sacct", "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1")
    assert scheduler.login.accounting([JobIdentity("1")]) == {}


def test_accounting_without_sacct_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert scheduler.login.accounting([JobIdentity("1")]) == {}


def test_accounting_names_the_user_who_cancelled_a_job(tools: Path) -> None:
    command(tools, "sacct", "echo '1|1|CANCELLED by 0'; echo '2|2|COMPLETED'; echo '4|4|CANCELLED by 123454321'")
    assert scheduler.login.accounting([JobIdentity(job_id) for job_id in "1234"]) == {
        "1": JobStatus(JobState.CANCELLED, "by root", by="root"),
        "2": JobStatus(JobState.COMPLETED),
        "4": JobStatus(JobState.CANCELLED, "by 123454321", by="123454321"),
    }


def test_termination_reason_without_and_with_scontrol(tools: Path) -> None:
    command(tools, "scontrol", "exit 1")
    assert scheduler.injob.termination_reason({"SLURM_JOB_ID": "76"}, STEPD) is None
    shown = SEEN.format(name="x", state="COMPLETING", reason="None", restarts=1)
    command(tools, "scontrol", f"echo '{shown}'")
    ended = scheduler.injob.termination_reason({"SLURM_JOB_ID": "76", "SLURM_RESTART_COUNT": "1"}, STEPD)
    assert ended is not None
    assert ended.reason == "cancelled with scancel"


@pytest.mark.parametrize(
    ("state", "reason", "restarts", "expected"),
    [
        ("COMPLETING", "NodeDown", 0, JobStatus(JobState.NODE_FAIL, "n3 has failed")),
        ("RUNNING", "None", 0, JobStatus(JobState.NODE_FAIL, "n3 has failed")),
        (
            "COMPLETING",
            "None",
            1,
            JobStatus(JobState.NODE_FAIL, "n3 has failed; Slurm has requeued the job", requeued=True),
        ),
    ],
)
def test_termination_reason_names_nodes_that_are_down(
    state: str, reason: str, restarts: int, expected: JobStatus, tools: Path
) -> None:
    shown = SEEN.format(name="x", state=state, reason=reason, restarts=restarts)
    command(tools, "scontrol", f"echo '{shown}'")
    command(tools, "sinfo", "case $* in *n[[]1-4]*) echo n3; echo n3;; esac")  # a line a partition
    assert scheduler.injob.termination_reason({"SLURM_JOB_ID": "76", "SLURM_JOB_NODELIST": "n[1-4]"}, STEPD) == expected
    assert scheduler.injob.termination_reason({"SLURM_JOB_ID": "76", "SLURM_JOB_NODELIST": "n1"}, STEPD) != expected


BATCH_HOST = "JobId=76 JobName=x UserId=a(1) JobState={state} Requeue={requeue} BatchHost=n1 Power="


@pytest.mark.parametrize(
    ("state", "requeue", "down", "acts", "done"),
    [
        ("RUNNING", 1, "n1", "scontrol requeue 76", True),
        ("RUNNING", 0, "n1", "scancel --state=RUNNING -- 76", True),
        ("RUNNING", 1, "n2", "", False),  # the launcher may live, and only this host be cut off
        ("RUNNING", 1, "", "", False),
        ("COMPLETING", 1, "n1", "", True),
        ("PENDING", 1, "n1", "", True),  # requeued already
    ],
)
def test_job_whose_launcher_s_host_is_down_is_given_back(
    state: str, requeue: int, down: str, acts: str, done: bool, tools: Path
) -> None:
    command(tools, "scontrol", f"echo '{BATCH_HOST.format(state=state, requeue=requeue)}'")
    command(tools, "sinfo", f"echo {down}")
    command(tools, "scancel", "true")
    assert scheduler.injob.give_back({"SLURM_JOB_ID": "76"}) is done
    last = calls(tools)[-1].split("/")[-1].strip()
    assert (last == acts) if acts else last.startswith(("scontrol -o show job", "sinfo"))


@pytest.mark.parametrize(
    ("afterwards", "acts"),
    [
        ("JobState=PENDING", "scontrol -o show job 76"),
        ("JobState=COMPLETING Restarts=1", "scontrol -o show job 76"),
        ("JobState=RUNNING Restarts=1", "scontrol -o show job 76"),
        ("JobState=RUNNING Restarts=0", "scancel --state=RUNNING -- 76"),
    ],
)
def test_job_that_another_host_has_requeued_a_moment_before_is_not_cancelled(
    afterwards: str, acts: str, tools: Path
) -> None:
    """Slurm refuses the second order to requeue it."""
    other = BATCH_HOST.format(state="", requeue=1).replace("JobState=", "")
    first, later = f"{other} JobState=RUNNING Restarts=0", f"{other} {afterwards}"
    seen = tools / "refused"
    show = f"if [ -e '{seen}' ]; then echo '{later}'; else echo '{first}'; fi"
    command(tools, "scontrol", f"case $* in *requeue*) touch '{seen}'; exit 1;; esac; {show}")
    command(tools, "sinfo", "echo n1")
    command(tools, "scancel", "true")
    assert scheduler.injob.give_back({"SLURM_JOB_ID": "76"}) is True
    assert calls(tools)[-1].split("/")[-1].strip() == acts


def test_job_whose_requeue_ends_the_processes_that_ask_for_it_is_not_cancelled(tools: Path) -> None:
    """Slurm requeues it, and at once sends TERM to the step, of which scontrol is a process as well."""
    shown = f"{BATCH_HOST.format(state='RUNNING', requeue=1)} Restarts=0"  # a controller that shows nothing new yet
    command(tools, "scontrol", f"case $* in *requeue*) kill -TERM $$;; esac; echo '{shown}'")
    command(tools, "sinfo", "echo n1")
    command(tools, "scancel", "true")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # as launchers and agents have it
    try:
        assert scheduler.injob.give_back({"SLURM_JOB_ID": "76"}) is True
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert calls(tools)[-1].split("/")[-1].strip() == "scontrol requeue 76"


@pytest.mark.parametrize(
    ("states", "fault"),
    [
        ("mixed\nmixed", ""),
        ("idle~", ""),
        ("completing", ""),
        ("a line of the site's own\nmixed*", "Slurm says mixed*"),
        ("down*\ndown*", "Slurm says down*"),
        ("draining", "Slurm says draining"),
        ("failing", "Slurm says failing"),
    ],
)
def test_host_fault_is_a_state_in_which_a_node_takes_no_jobs(states: str, fault: str, tools: Path) -> None:
    command(tools, "sinfo", f'echo "{states}"')
    assert scheduler.injob.host_fault("n2") == fault
    assert "--nodes=n2" in calls(tools)[-1]
    command(tools, "sinfo", "exit 1")
    assert scheduler.injob.host_fault("n2") == ""


def test_nothing_is_given_back_without_an_answer(tools: Path) -> None:
    command(tools, "scontrol", "exit 1")
    assert scheduler.injob.give_back({"SLURM_JOB_ID": "76"}) is False


# from sshare --parsable2, Slurm 22.05.8: the account in the tree, the user, limits, and use in minutes
SHARES = """\
root|||cpu=1,mem=583,node=1,gres/gpu=2
 ml||cpu=100000,gres/gpu=6000|cpu=90,mem=583,energy=0,node=1,gres/gpu=1230
  ml|alice||cpu=1,gres/gpu=2
"""
OTHER = " other|||cpu=0\n  other|alice||cpu=0\n"


@pytest.mark.parametrize(
    ("output", "account", "told"),
    [
        (SHARES, "", "account ml has 79 of 100 GPU-hours and 1,665 of 1,666 core-hours left"),
        (SHARES + OTHER, "ml", "account ml has 79 of 100 GPU-hours and 1,665 of 1,666 core-hours left"),
        (SHARES + OTHER, "", ""),  # which of them the job runs on is not known
        (SHARES + OTHER, "other", ""),
        (SHARES.replace("cpu=100000,", ""), "ml", "account ml has 79 of 100 GPU-hours left"),
        (SHARES.replace("gres/gpu=1230", "gres/gpu=9999"), "ml", "account ml has 0 of 100 GPU-hours and 1,665 of"),
        ("Welcome | to | the | site\n", "", ""),
        ("", "ml", ""),
    ],
)
def test_balance_is_what_the_account_has_left(output: str, account: str, told: str) -> None:
    found = query.parse_balance(output, account)
    assert found.startswith(told) if told else found == ""


@pytest.mark.parametrize(
    ("shares", "hours", "told"),
    [
        (SHARES, (27.5, "GPU"), "79 of 100 GPU-hours and 1,665 of 1,666 core-hours left, 51 GPU-hours after that"),
        (
            SHARES,
            (80.0, "GPU"),
            "79 of 100 GPU-hours and 1,665 of 1,666 core-hours left, too few GPU-hours for that",
        ),
        (
            SHARES.replace(",gres/gpu=6000", ""),
            (28.0, "GPU"),
            "1,665 of 1,666 core-hours left; its GPU-hours are not known",
        ),
        (
            SHARES.replace(",gres/gpu=6000", ""),
            (665.0, "core"),
            "1,665 of 1,666 core-hours left, 1,000 core-hours after that",
        ),
    ],
)
def test_balance_is_compared_with_a_job_in_its_own_unit(shares: str, hours: tuple[float, str], told: str) -> None:
    assert query.parse_balance(shares, "ml", hours) == query.parse_balance(shares, "ml", (hours[0] / 2, hours[1]), 2)
    assert query.parse_balance(shares, "ml", hours) == f"account ml has {told}"
