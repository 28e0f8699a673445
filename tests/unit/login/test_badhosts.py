"""A submission tells of hosts that were bad in the user's last jobs, or leaves out some of them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from gridtf.cli import main
from gridtf.errors import SchedulerError
from gridtf.jobspec.spec import JobSpec
from gridtf.login import submission
from gridtf.run import hosthistory
from gridtf.run.hosthistory import LOST, Finding
from gridtf.schedulers.api import Plan
from gridtf.schedulers.commands import Answer
from gridtf.schedulers.sge import offers as sge_offers
from gridtf.schedulers.sge.commands import sge
from gridtf.schedulers.slurm import offers

SINFO = """\
gpu*|up|1-00:00:00|1-infinite|{count}|idle|8|16000|gpu:4|n[1-{count}]
gpu*|up|1-00:00:00|1-infinite|2|idle|4|16000||c[1-2]
gpu*|up|1-00:00:00|1-infinite|1|down*|8|16000|gpu:4|d1
other|up|1-00:00:00|1-infinite|1|idle|8|16000|gpu:4|o1
"""
QSTAT = """<job_info><queue_info>
<Queue-List><name>all.q@n1.cluster</name><slots_used>0</slots_used><slots_total>4</slots_total></Queue-List>
<Queue-List><name>all.q@n2.cluster</name><slots_total>4</slots_total>
  <job_list state="running"><JB_job_number>1</JB_job_number><state>dr</state><slots>1</slots></job_list></Queue-List>
<Queue-List><name>all.q@n3.cluster</name><slots_total>4</slots_total><state>au</state></Queue-List>
<Queue-List><name>big.q@n1.cluster</name><slots_total>8</slots_total></Queue-List>
</queue_info></job_info>"""


def found(*hosts: str, jobs: int = 2, cluster: str = "slurm:") -> None:
    """Each host was lost by so many jobs."""
    hosthistory.note(
        os.environ,
        [Finding(host, str(job), time.time(), LOST, "no heartbeat", cluster) for host in hosts for job in range(jobs)],
    )


def plan(scheduler: str = "slurm", avoid: bool = True, **values: Any) -> Plan:
    return submission.prepare(
        JobSpec(command=("true",), scheduler=scheduler, avoid_bad_hosts=avoid, **values), {"exclude": "--exclude"}
    )


def excluded(made: Plan) -> list[str]:
    return list(made.request.options.get("exclude", ()))


@pytest.fixture(autouse=True)
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", "")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "no"))
    many(monkeypatch, 8)


def many(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(offers, "query_partitions", lambda **_: offers.parse_partitions(SINFO.format(count=count)))


def test_nothing_is_asked_and_told_where_no_host_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "query_partitions", None)
    found("n2", jobs=1)
    assert plan(nodes=2).bad_hosts == ()
    found("n2", cluster="sge:ctl")
    assert plan(nodes=2).bad_hosts == ()
    assert plan("local").bad_hosts == ()


def test_bad_hosts_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "query_partitions", None)
    found("n2")
    found("n5", jobs=3)
    told = plan(avoid=False, nodes=2).bad_hosts
    assert [note.partition(" ")[0] for note in told] == ["n5", "n2"]
    assert told[0] == (
        "n5 was bad in 3 of your jobs (lost: no heartbeat): --exclude n5 leaves it out, --avoid-bad-hosts any such host"
    )
    assert plan(avoid=False, nodes=2, exclude=("n5.cluster", "N2")).bad_hosts == ()
    found("n6", "n7", "n8")
    assert plan(avoid=False, nodes=2).bad_hosts[3:] == ("`gridtf nodes` shows 2 more bad hosts",)


def test_at_most_a_tenth_of_the_hosts_is_left_out_the_worst_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found("n2")
    found("n5", jobs=3)
    made = plan(nodes=2, gpus_per_node=4)  # 9 of the partition's hosts have as many GPUs
    assert excluded(made) == ["n5"]
    assert made.spec.exclude == ()
    assert made.bad_hosts[0] == "avoid_bad_hosts leaves out n5: was bad in 3 of your jobs (lost: no heartbeat)"
    about = "n2 was bad in 2 of your jobs (lost: no heartbeat)"
    assert made.bad_hosts[1] == f"{about}: it stays, since at most a tenth of 9 hosts is left out"
    assert excluded(plan(nodes=2)) == ["n5", "n2"]  # of 11
    assert excluded(plan(nodes=2, exclude=("n5",))) == ["n5", "n2"]
    many(monkeypatch, 30)
    found("n9", "n10", jobs=5)
    assert excluded(plan(nodes=2)) == ["n10", "n9", "n5", "n2"]


@pytest.mark.parametrize(("needed", "left_out"), [(6, ["n2"]), (7, ["n2"]), (8, []), ("4-8", ["n2"])])
def test_job_keeps_the_hosts_that_it_needs(needed: int | str, left_out: list[str]) -> None:
    found("n2")
    made = plan(nodes=needed, gpus_per_node=4)
    assert excluded(made) == left_out
    assert made.bad_hosts[0].endswith(": it stays, since the job needs it") != bool(left_out)


def test_spare_hosts_are_needed_as_well_and_hosts_out_of_service_are_not() -> None:
    found("n2", "d1")
    assert excluded(plan(nodes=7, spare_nodes=1, gpus_per_node=4, restarts=1)) == ["d1"]


@pytest.mark.parametrize(
    "values",
    [
        {"native": ("--constraint=big",)},
        {"native": ("-w n1",)},
        {"native": ("--reservation=r",)},
        {"native": ("-x c1",)},
        {"native": ("--exclude=c1",)},
        {"native": ("--clusters=beta",)},
        {"tasks": {"worker": {"count": 2}, "ps": {"count": 1, "partition": "other"}}},
        {"partition": "other"},
    ],
)
def test_nothing_is_left_out_where_it_is_not_known_which_hosts_may_run_the_job(values: dict[str, Any]) -> None:
    found("n2")
    made = plan(**values)
    assert excluded(made) == []
    assert made.bad_hosts[0].endswith(": it stays, since it is not known whether the job may run there")


@pytest.mark.parametrize("scheduler", ["slurm", "sge"])
def test_hosts_of_nodelist_stay(scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sge, "printed", lambda argv, *, limit: QSTAT)
    monkeypatch.setattr(sge, "run", lambda argv, *, limit: Answer(1, "", ""))
    found("n2", cluster=f"{scheduler}:")
    more: dict[str, Any] = {"pe": "rr", "nodes": 1} if scheduler == "sge" else {"nodes": 2}
    made = plan(scheduler, tasks_per_node=1, nodelist=("n1", "n2"), **more)
    assert excluded(made) == []
    assert made.bad_hosts[0].endswith(": it stays, since nodelist chooses the job's hosts")


def test_scheduler_that_does_not_answer_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**_: object) -> None:
        raise SchedulerError("sinfo: no controller")

    found("n2")
    monkeypatch.setattr(offers, "query_partitions", fails)
    assert excluded(plan(nodes=2)) == []


def test_odd_names_reach_neither_scheduler_nor_terminal() -> None:
    found("n2,n3", "$(reboot)", "n2\n\x1b[31m")
    made = plan(nodes=2)
    assert excluded(made) == []
    assert all(note.isprintable() for note in made.bad_hosts)


@pytest.mark.parametrize(
    ("pe", "rule", "values", "left_out"),
    [
        ("rr", "$round_robin", {"nodes": 1}, ["n2.cluster"]),
        ("rr", "$round_robin", {"nodes": 2}, []),  # one of the three is out of service
        ("rr", "$fill_up", {"slots": 8}, ["n2.cluster"]),
        ("rr", "$fill_up", {"slots": 9}, []),
        ("one", "1", {"slots": 2}, []),
        ("smp", "$pe_slots", {"slots": 8}, ["n2.cluster"]),
        ("rr", "$fill_up", {"nodes": 1, "native": ("-l hostname=n1",)}, []),
        ("rr", "$fill_up", {"tasks": {"worker": {"count": 2}}, "gpus_per_task": 1}, []),
    ],
)
def test_slots_that_a_job_needs_stay_on_grid_engine(
    monkeypatch: pytest.MonkeyPatch, pe: str, rule: str, values: dict[str, Any], left_out: list[str]
) -> None:
    asked: list[list[str]] = []

    def printed(argv: list[str], **_: object) -> str:
        asked.append(argv)
        return QSTAT

    monkeypatch.setattr(sge_offers, "known_pe", lambda name: sge_offers.PE(name, 99, True, rule))
    monkeypatch.setattr(sge, "printed", printed)
    found("n2", cluster="sge:")
    assert excluded(plan("sge", pe=pe, partition="all.q", time="10", **values)) == left_out
    assert all(argv[:7] == ["qstat", "-f", "-xml", "-q", "all.q", "-pe", pe] for argv in asked)
    assert all("h_rt=" in argv[8] for argv in asked)


def test_marks_of_the_site_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks, config = tmp_path / "bad-hosts", tmp_path / "site.toml"
    marks.write_text("n3 GPU 1 is gone\n")
    config.write_text(f'avoid_bad_hosts = true\n[limits]\nbad_hosts = "{marks}"\n')
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", str(config))
    assert plan(nodes=2).bad_hosts == ("avoid_bad_hosts leaves out n3: is marked by your site (GPU 1 is gone)",)
    assert plan(avoid=False, nodes=2).bad_hosts[0].startswith("n3 is marked by your site (GPU 1 is gone): --exclude n3")
    marks.chmod(0o666)
    (note,) = plan(nodes=2).bad_hosts
    assert "any user may write" in note


def test_job_file_cannot_name_the_site_s_marks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.toml").write_text('command = ["true"]\n[limits]\nbad_hosts = "/tmp/mine"\n')
    assert main(["render", "--scheduler", "slurm", str(tmp_path / "job.toml")]) == 2
    assert "counts in the site's file only" in capsys.readouterr().err


def test_nodes_shows_and_forgets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nodes"]) == 0
    assert "nothing is known against any host" in capsys.readouterr().err
    found("n2", "n3\x1b[31m")
    found("n4", jobs=1)
    assert main(["nodes"]) == 0
    shown = capsys.readouterr().out
    assert "scontrol update nodename=n2 state=drain 'reason=lost: no heartbeat'" in shown
    assert "\x1b[31m" not in shown
    assert "1 finding" in shown
    assert main(["nodes", "forget", "n9"]) == 2
    assert main(["nodes", "forget"]) == 2
    assert "no host is named to forget" in capsys.readouterr().err
    assert main(["nodes", "forget", "n2", "n4"]) == 0
    capsys.readouterr()
    assert main(["nodes"]) == 0
    assert "n2" not in capsys.readouterr().out
