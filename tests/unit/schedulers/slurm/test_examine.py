"""What `gridtf doctor` finds out about Slurm. Output was recorded on Slurm 22.05.8."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gridtf.errors import SchedulerError
from gridtf.findings import Examination, Finding, Level, Setting, collect
from gridtf.jobspec.config import Configured
from gridtf.jobspec.spec import JobSpec
from gridtf.schedulers.commands import Answer
from gridtf.schedulers.slurm import examine, scheduler
from gridtf.schedulers.slurm.commands import SlurmCommands, slurm
from gridtf.schedulers.slurm.offers import parse_partitions

# scontrol show config, some of its lines
CONFIG = """\
Configuration data as of 2026-11-22T12:07:08
AccountingStorageEnforce = none
AccountingStorageType   = accounting_storage/none
BOOT_TIME               = 2026-11-22T12:06:51
ClusterName             = testbed
JobRequeue              = 1
PowerPlugin             =
SlurmctldHost[0]        = ctl(10.81.0.1)
SLURM_VERSION           = 22.05.8

Slurmctld(primary) at ctl is UP
"""
# scontrol -o show partition --all
PARTITION = (
    "PartitionName={} AllowGroups={} AllowAccounts={} AllowQos=ALL AllocNodes=ALL Default={} QoS=N/A DefaultTime={} "
    "DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED MaxTime=7-00:00:00 MinNodes=0 LLN=NO "
    "MaxCPUsPerNode=UNLIMITED Nodes=n[1-4] PriorityJobFactor=1 PriorityTier=10 RootOnly=NO ReqResv=NO OverSubscribe=NO "
    "OverTimeLimit=NONE PreemptMode=OFF State=UP TotalCPUs=32 TotalNodes=4 SelectTypeParameters=NONE "
    "JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED TRES=cpu=32,mem=62.50G,node=4,billing=32\n"
)
SINFO = """\
gpu*|up|7-00:00:00|1-infinite|4|idle|8|16000|gpu:4|n[1-4]
cpu|up|7-00:00:00|1-infinite|1|idle|8|16000|(null)|c1
short|up|30:00|1-infinite|4|idle|8|16000|gpu:4|n[1-4]
"""
REFUSED = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified\n"
NO_TIME = (
    "sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)\n"
)
INVALID_QOS = "sbatch: error: Batch job submission failed: Invalid qos specification\n"
SHAPE = "allocation failure: Requested node configuration is not available\n"
ACCEPTED = "sbatch: Job 1 to start at 2026-11-22T12:07:09 using 1 processors on nodes n1 in partition gpu\n"


def site(
    sinfo: str = SINFO, *, default_time: str = "NONE", allow: Mapping[str, tuple[str, str]] | None = None, **values: Any
) -> examine.Site:
    config = {**examine.parse_config(CONFIG), **values.pop("config", {})}
    rules = {}
    for name in ("gpu", "cpu", "short"):
        groups, accounts = (allow or {}).get(name, ("ALL", "ALL"))
        rules.update(examine.parse_rules(PARTITION.format(name, groups, accounts, "NO", default_time)))
    return examine.Site(config, parse_partitions(sinfo), rules).replace(**values)


def given(**values: Any) -> Configured:
    return Configured(JobSpec(command=("x",), **values), dict.fromkeys(values, "mine.toml:1"))


def judge(found: examine.Site, **values: Any) -> Examination:
    return collect(examine.judge(found, given(**values)))


def finding(found: Examination, check: str) -> Finding:
    (one,) = (item for item in found.findings if item.check == check)
    return one


def lines(found: Examination) -> list[str]:
    return [setting.line for setting in found.settings if not setting.example]


def problems(found: Examination) -> list[tuple[str, str]]:
    return [(str(item.level), item.check) for item in found.findings if item.level != Level.OK]


def test_config_is_parsed() -> None:
    config = examine.parse_config(CONFIG)
    assert (config["JobRequeue"], config["PowerPlugin"], config["SlurmctldHost[0]"]) == ("1", "", "ctl(10.81.0.1)")


def test_site_in_good_order_needs_no_settings() -> None:
    found = judge(site(default_time="01:00:00"))
    assert (problems(found), lines(found)) == ([], [])
    assert finding(found, "scheduler").message == "Slurm 22.05.8 answers; cluster testbed, partitions gpu, cpu, short"
    assert finding(found, "partition.state").message == "partition gpu, the default one, is up; usable nodes: 4"
    assert "gpu (4 each), short (4 each)" in finding(found, "gpus").message
    assert "starts a job again" in finding(found, "requeue").message
    comment = "for jobs in partition short: 4 GPUs per node, up to 00:30:00"
    assert comment in [setting.comment for setting in found.settings]
    tables = [(setting.table, setting.value) for setting in found.settings]
    assert tables == [("partitions.gpu", 4), ("partitions.short", 4)]


# --- partitions


def test_partition_with_gpus_and_many_nodes_is_chosen_where_there_is_no_default() -> None:
    found = judge(site(SINFO.replace("*", ""), default_time="1:00"))
    assert problems(found) == [("warning", "partition")]
    assert lines(found) == ['partition = "gpu"']
    assert finding(found, "partition").hint == 'write partition = "gpu"'


@pytest.mark.parametrize(
    ("allow", "chosen"),
    [
        ({"gpu": ("staff", "ALL")}, "short"),
        ({"gpu": ("staff,ml", "ALL")}, "gpu"),
        ({"gpu": ("ALL", "chem")}, "short"),
        ({"gpu": ("ALL", "chem"), "short": ("staff", "ALL")}, "cpu"),
    ],
)
def test_partition_that_does_not_admit_the_user_is_not_chosen(allow: dict[str, tuple[str, str]], chosen: str) -> None:
    here = site(SINFO.replace("*", ""), allow=allow, groups={"ml"}, accounts=["physics"])
    assert examine.choose(here, given()) == next(one for one in here.partitions if one.name == chosen)


def test_partition_of_a_file_counts() -> None:
    assert (
        "partition cpu, set in mine.toml:1, is up" in finding(judge(site(), partition="cpu"), "partition.state").message
    )
    found = judge(site(default_time="1:00"), partition="gpus")
    assert problems(found) == [("failure", "partition")]
    assert finding(found, "partition").hint == "did you mean gpu?"


@pytest.mark.parametrize(
    ("old", "new", "piece"),
    [
        ("gpu*|up", "gpu*|down", "partition gpu, the default one, is down: no job starts there"),
        ("gpu*|up", "gpu*|drain", "is drain: no job starts there"),
        ("gpu*|up|7-00:00:00|1-infinite|4|idle", "gpu*|up|7-00:00:00|1-infinite|4|drained", "used: n[1-4] drained"),
        ("gpu*|up|7-00:00:00|1-infinite|4|idle", "gpu*|up|7-00:00:00|1-infinite|4|down*", "n[1-4] down (not respond"),
    ],
)
def test_partition_that_does_not_work_is_one_failure(old: str, new: str, piece: str) -> None:
    found = judge(site(SINFO.replace(old, new), default_time="1:00"))
    assert problems(found) == [("failure", "partition.state")]
    assert piece in finding(found, "partition.state").message
    assert "these work: cpu, short" in finding(found, "partition.state").hint


def test_some_drained_nodes_are_no_problem() -> None:
    line = "gpu*|up|infinite|1-infinite|{}|8|16000|gpu:4|{}\n"
    found = judge(site(line.format("1|drained", "n1") + line.format("3|idle", "n[2-4]")))
    assert problems(found) == []
    assert finding(found, "partition.state").message.endswith("usable nodes: 3 of 4 (not: n1 drained)")


def test_table_of_a_partition_that_does_not_exist_is_a_warning() -> None:
    tables = {"gpux": "mine.toml:4", "short": "mine.toml:6", "cpu,short": "mine.toml:8"}
    found = collect(examine.judge(site(default_time="1:00"), given().replace(partitions=tables)))
    assert problems(found) == [("warning", "partition.table")]
    (one,) = (item for item in found.findings if item.check == "partition.table")
    assert (one.message, one.hint) == ("mine.toml:4: there is no partition gpux", "did you mean gpu?")


def test_each_of_several_partitions_is_judged() -> None:
    found = judge(site(SINFO.replace("gpu*|up", "gpu*|down"), default_time="1:00"), partition="gpu,short")
    states = [(item.level, item.message) for item in found.findings if item.check == "partition.state"]
    assert states == [
        ("ok", "partition short, set in mine.toml:1, is up; usable nodes: 4"),
        ("warning", "no job starts in partition gpu, one of several that are set: it is down"),
    ]
    both = [item.level for item in judge(site(), partition="gpu,short").findings if item.check == "partition.state"]
    assert both == ["ok", "ok"]


def test_no_partition_at_all_is_a_failure() -> None:
    assert ("failure", "partition") in problems(judge(site("")))


# --- time, accounts, requeueing


@pytest.mark.parametrize(
    ("sinfo", "default", "values", "level", "line"),
    [
        (SINFO, "NONE", {}, "warning", ['time = "01:00:00"', 'time = "00:30:00"']),
        (SINFO.replace("7-00:00:00", "20:00"), "NONE", {}, "warning", ['time = "00:20:00"']),
        (SINFO.replace("7-00:00:00", "infinite"), "NONE", {}, "ok", []),
        (SINFO, "00:10:00", {}, "ok", []),
        (SINFO, "NONE", {"time": "2h"}, "ok", []),
    ],
)
def test_walltime(sinfo: str, default: str, values: dict[str, Any], level: str, line: list[str]) -> None:
    found = judge(site(sinfo, default_time=default), **values)
    assert finding(found, "time").level == level
    assert lines(found) == line


ENFORCED = {"AccountingStorageEnforce": "associations,limits"}


@pytest.mark.parametrize(
    ("values", "account", "level", "line"),
    [
        ({}, None, "ok", []),
        ({"config": ENFORCED, "accounts": ["ml", "bio"], "has_default": True}, None, "ok", []),
        ({"config": ENFORCED, "accounts": ["ml", "bio"]}, None, "warning", ['account = "ml"']),
        ({"config": ENFORCED, "accounts": []}, None, "failure", []),
        ({"config": ENFORCED}, None, "warning", []),
        ({"config": ENFORCED, "accounts": ["ml"]}, "ml", "ok", []),
        ({"config": ENFORCED, "accounts": ["ml"]}, "m1", "failure", []),
    ],
)
def test_account(values: dict[str, Any], account: str | None, level: str, line: list[str]) -> None:
    found = judge(site(default_time="1:00", **values), account=account)
    assert finding(found, "account").level == level
    assert lines(found) == line


def test_site_without_requeueing_says_how_to_ask_for_it() -> None:
    found = judge(site(config={"JobRequeue": "0"}))
    assert "--native=--requeue" in finding(found, "requeue").message


# --- a first job


class FakeSlurm(SlurmCommands):
    """Answers of Slurm's commands, by the script that sbatch --test-only is given."""

    def __init__(self, judge: Callable[[str], Answer]) -> None:
        self.judge = judge
        self.scripts: list[str] = []

    def run(self, argv: Sequence[str], *, limit: float, text: str = "") -> Answer:
        if argv[0] == "sinfo":
            return Answer(0, SINFO, "")
        self.scripts.append(text)
        return self.judge(self.scripts[-1])

    def try_run(self, argv: Sequence[str], *, limit: float, **variables: str) -> str | None:
        return {"format=account": "ml\n", "format=qos": "normal,high\n", "reservation": ""}[argv[-1]]


def first_job(judge: Callable[[str], Answer], *settings: Setting, **values: Any) -> tuple[FakeSlurm, Examination]:
    fake = FakeSlurm(judge)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slurm, "run", fake.run)
        patch.setattr(slurm, "try_run", fake.try_run)
        return fake, collect(examine.first_job(scheduler, given(**values), settings))


@pytest.mark.parametrize(
    ("output", "values", "message", "hint"),
    [
        (ACCEPTED, {}, "sbatch accepts a job", ""),
        (REFUSED, {"account": "x"}, "mine.toml:1: account: Batch job submission failed: Inv", "available to you: ml"),
        (INVALID_QOS, {"native": ["--qos=gold"]}, "Invalid qos specification", "available to you: high, normal"),
        (
            "allocation failure: Unspecified error\n",
            {},
            "refuse this job: Unspecified error",
            "the site has gpu: 4 nodes",
        ),
        (SHAPE, {"nodes": 9}, "mine.toml:1: nodes: 9 nodes requested, partition gpu has 4", "no partition has enough"),
        (SHAPE, {"partition": "cpu", "gpus_per_node": 1}, "no node of partition cpu has GPUs", "gpu (4 each)"),
        (ACCEPTED, {"partition": "short", "time": "1h"}, "than partition short allows", 'write time = "00:30:00"'),
    ],
)
def test_first_job_is_judged_as_its_submission_is(output: str, values: dict[str, Any], message: str, hint: str) -> None:
    _, found = first_job(lambda script: Answer(output != ACCEPTED, "", output), **values)
    (one,) = found.findings
    assert (one.level, one.check) == ("failure" if hint else "ok", "submission")
    assert message in one.message
    assert hint in one.hint


def test_walltime_that_a_site_s_plugin_demands_is_found_by_trying() -> None:
    def judge(script: str) -> Answer:
        return Answer(0, "", ACCEPTED) if "--time" in script else Answer(1, "", NO_TIME)

    fake, found = first_job(judge, partition="cpu")
    assert [(item.level, item.check) for item in found.findings] == [
        ("warning", "time.compulsory"),
        ("ok", "submission"),
    ]
    assert lines(found) == ['time = "01:00:00"']
    assert all("#SBATCH --partition=cpu\n" in script for script in fake.scripts)


def test_first_job_has_the_settings_that_nothing_else_sets() -> None:
    settings = [
        Setting("partition", "gpu", ""),
        Setting("time", "1:00", "", "partitions.gpu"),
        Setting("account", "a", ""),
    ]
    fake, _ = first_job(lambda script: Answer(0, "", ACCEPTED), *settings, partition="cpu")
    assert "--partition=cpu\n" in fake.scripts[0]
    assert "--account=a\n" in fake.scripts[0]
    assert "--time" not in fake.scripts[0]


# --- all of it, with stand-ins for the commands

STAND_IN = """\
#!/bin/bash
case "${0##*/} $*" in
"scontrol ping") echo "Slurmctld(primary) at ctl is ${CONTROLLER:-UP}";;
"scontrol show config") cat config;;
"scontrol -o show partition --all") cat partitions;;
"sinfo "*) cat sinfo;;
"sacctmgr "*format=account) printf 'Welcome to the cluster\\nml\\nbio\\nml\\n';;
"sacctmgr "*format=defaultaccount) echo bio;;
"sbatch --test-only") grep -xq '#SBATCH --time=01:00:00' && cat accepted >&2;;
*) echo "unexpected: $0 $*" >&2; exit 9;;
esac
"""


@pytest.mark.thorough
def test_examination_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CONFIG.replace("= none", "= associations").replace(
        "accounting_storage/none", "accounting_storage/slurmdbd"
    )
    rules = "".join(PARTITION.format(name, "ALL", "ALL", "NO", "NONE") for name in ("gpu", "cpu", "short"))
    for name in ("scontrol", "sinfo", "sacctmgr", "sbatch"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(STAND_IN)
        (tmp_path / "bin" / name).chmod(0o755)
    for name, text in {"config": config, "partitions": rules, "sinfo": SINFO, "accepted": ACCEPTED}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    found = examine.examine(scheduler, given())
    assert problems(found) == [("warning", "time")]
    assert lines(found) == ['time = "01:00:00"', 'time = "00:30:00"']
    assert finding(found, "account").message == "jobs without `account` run on bio; also yours: ml"
    assert finding(found, "submission").level == Level.OK
    (tmp_path / "bin/sbatch").write_text("#!/bin/sh\nsleep 60\n")
    monkeypatch.setattr(examine, "_EXAMINE_LIMIT", 3.0)
    slow = examine.examine(scheduler, given())
    assert problems(slow) == [("warning", "time"), ("warning", "submission")]
    assert finding(slow, "submission").message == (
        "sbatch has not answered within 3 s, although Slurm's controller on ctl does"
    )
    (tmp_path / "bin/sbatch").write_text("#!/bin/sh\nkill -SEGV $$\n")
    crashed = finding(examine.examine(scheduler, given()), "submission")
    assert (crashed.level, crashed.message) == ("failure", "sbatch was killed by SIGSEGV")
    assert "try again" in crashed.hint
    monkeypatch.setenv("CONTROLLER", "DOWN")
    with pytest.raises(SchedulerError, match="controller on ctl does not answer: `scontrol ping` reports it as DOWN"):
        examine.examine(scheduler, given())


SLURM_CONF = """\
scontrol: error: s_p_parse_file: cannot stat file /nope: No such file or directory, retrying in 1sec up to 60sec
scontrol: error: ClusterName needs to be specified
scontrol: fatal: Unable to process configuration file
"""
LIBRARY = "scontrol: error while loading shared libraries: /home/alice/lib/libreadline.so.8: file too short\n"


@pytest.mark.parametrize(
    ("printed", "end", "message", "hint"),
    [
        (SLURM_CONF, "exit 1", "cannot read /nope (SLURM_CONF): No such file or directory", "unset SLURM_CONF"),
        pytest.param(
            SLURM_CONF,
            "sleep 60",
            "cannot read /nope (SLURM_CONF): No such file",
            "unset SLURM_CONF",
            marks=pytest.mark.thorough,
        ),
        (LIBRARY, "exit 127", "scontrol does not start: error while loading shared libraries", "LD_LIBRARY_PATH"),
    ],
)
def test_commands_that_do_not_start_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, end: str, message: str, hint: str
) -> None:
    (tmp_path / "printed").write_text(printed)
    (tmp_path / "scontrol").write_text(f"#!/bin/bash\ncat {tmp_path}/printed >&2\n{end}\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_CONF", "/nope")
    monkeypatch.setattr(examine, "_EXAMINE_LIMIT", 3.0)
    with pytest.raises(SchedulerError) as caught:
        examine.examine(scheduler, given())
    assert message in caught.value.what
    assert hint in caught.value.hint
