"""`gridtf doctor` and `gridtf init` on real clusters: as they are, and broken in one place each."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from tests.support.beds import on_every_scheduler
from tests.support.cluster import SHARED, Bed
from tests.support.clusterfaults import admin
from tests.support.clusterjobs import gridtf

CONFIG = "doctor/gridtf/config.toml"  # in alice's home
ENVIRON = {"XDG_CONFIG_HOME": f"{SHARED}/home/alice/doctor", "GRIDTF_SUBMIT_ENV": "PYTHONPATH"}
ON_DISK = ("warning", "run_root.shared")  # what the hosts of a bed share is a folder of this machine's disk
# More than one host, with no other option.
SIZES = {"slurm": ("--nodes", "2"), "sge": ("--workers", "2")}
ALL_QUEUES = "all.q csh.q left.q right.q short.q"


_WRITTEN: dict[Bed, str] = {}  # once a bed


class Fault(NamedTuple):
    """What is broken on a bed, by root on ctl, and the one finding that this gives.

    Attributes:
        breaks: A shell command.
        mends: A shell command.
        level: The finding's level.
        check: The finding's check.
        hint: A piece of its hint.
        cwd: alice's working folder; empty: her home.
        file: A user's file in place of the one that `gridtf init` writes.
        words: Options of the job.
    """

    breaks: str
    mends: str
    level: str
    check: str
    hint: str
    cwd: str = ""
    file: str = ""
    words: tuple[str, ...] = ()


def _queues(command: str) -> str:
    return f"for queue in {ALL_QUEUES}; do qconf {command} $queue; done"


UPDATE = "scontrol update partitionname=gpu"
FAULTS = {
    "slurm": {
        "partition down": Fault(
            f"{UPDATE} state=down", f"{UPDATE} state=up", "failure", "partition.state", "these work: cpu"
        ),
        "nodes drained": Fault(
            "scontrol update nodename=n[1-4] state=drain reason=x",
            "scontrol update nodename=n[1-4] state=resume",
            "failure",
            "partition.state",
            "these work: cpu",
        ),
        "no default partition": Fault(
            f"{UPDATE} default=no", f"{UPDATE} default=yes", "warning", "partition", 'write partition = "gpu"'
        ),
        "controller stopped": Fault("scontrol shutdown slurmctld", "", "failure", "scheduler", "try again later"),
        "working folder in memory": Fault(
            ":", ":", "failure", "chdir.shared", "work in a folder that all hosts share: cd ~", cwd="/tmp"
        ),
        "run root in memory": Fault(
            ":",
            ":",
            "failure",
            "run_root.shared",
            'write run_root = "~/gridtf-runs"',
            file='time = "1:00"\nrun_root = "/dev/shm/runs"\n',
        ),
        "run root of another user": Fault(":", ":", "failure", "run_root.write", "write run_root = …", cwd=SHARED),
        "file that is no TOML": Fault(
            ":", ":", "failure", "configuration", 'write time = "2h"', file='time = 2h\npartition = "gpu"\n'
        ),
        **{
            f"more than there is: {' '.join(words)}": Fault(":", ":", "failure", "submission", hint, words=words)
            for words, hint in {
                ("--nodes", "9"): "no partition has enough",
                ("-p", "cpu", "--gpus-per-node", "1"): "these partitions have GPUs: gpu (4 each)",
                ("-p", "short", "--time", "1:00:00"): 'write time = "00:30:00"',
            }.items()
        },
    },
    "sge": {
        "PE without control_slaves": Fault(
            "qconf -mattr pe control_slaves FALSE rr",
            "qconf -mattr pe control_slaves TRUE rr",
            "failure",
            "pe.control_slaves",
            "write pe = …; suitable: rrj, rrs",
        ),
        "PE on one host only": Fault(
            "qconf -mattr pe allocation_rule '$pe_slots' rr",
            "qconf -mattr pe allocation_rule '$round_robin' rr",
            "warning",
            "pe.allocation_rule",
            "for several hosts: rrj, rrs",
        ),
        "no queue with a PE": Fault(
            _queues("-rattr queue pe_list NONE"),
            'for queue in left.q right.q; do qconf -rattr queue pe_list "rr fill rrj" $queue; done; '
            "for queue in short.q csh.q; do qconf -rattr queue pe_list rr $queue; done; "
            'qconf -rattr queue pe_list "rr fill two one rrj fillj rrs loose smp" all.q',
            "failure",
            "pe.queues",
            "qconf -aattr queue pe_list rr all.q",
        ),
        "more slots than there are": Fault(
            ":", ":", "failure", "submission", "`qstat -g c` shows", words=("--slots", "400")
        ),
        "queues disabled": Fault("qmod -d '*'", "qmod -e '*'", "failure", "queues", "`qstat -f -explain E`"),
        "qmaster silent": Fault(
            "pkill -STOP -x sge_qmaster", "pkill -CONT -x sge_qmaster", "failure", "scheduler", "try again later"
        ),
    },
}


def doctor(bed: Bed, *words: str, silent: str = "", **more: Any) -> dict[str, Any]:
    """What doctor finds. Where it says that a busy machine has kept a command from answering, it is asked again.

    Args:
        silent: The check that is expected to get no answer.
    """
    deadline = time.monotonic() + 300
    while True:
        found = _asked(bed, "doctor", *words, **more)
        if time.monotonic() > deadline or _late(found) <= {silent}:
            return found


def _late(found: Mapping[str, Any]) -> set[str]:
    """The checks that have not got an answer in time."""
    return {one["check"] for one in found["findings"] if re.search("answered within|no answer", one["message"])}


def _asked(bed: Bed, command: str, *words: str, **more: Any) -> dict[str, Any]:
    done = gridtf(bed, command, "--json", *words, env=ENVIRON, check=False, **more)
    assert done.returncode in (0, 1), done.stderr
    assert done.stderr == "" or command == "init" or "--probe" in words
    found: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 1) == ("failure" in {finding["level"] for finding in found["findings"]})
    return found


def problems(found: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """(level, check) -> hint, of all findings that are not ok."""
    listed = [finding for finding in found["findings"] if finding["level"] != "ok"]
    return {(finding["level"], finding["check"]): finding["hint"] for finding in listed}


@pytest.fixture
def written(bed: Bed) -> Iterator[str]:
    """The file that `gridtf init` has written for alice."""
    file = bed.home() / CONFIG
    while bed not in _WRITTEN:
        if not _late(_asked(bed, "init")):
            _WRITTEN[bed] = file.read_text()
        file.unlink(missing_ok=True)
    file.write_text(_WRITTEN[bed])
    yield _WRITTEN[bed]
    file.unlink()


@on_every_scheduler
def test_first_job_runs_with_the_written_file_and_no_other_option(bed: Bed, written: str) -> None:
    found = doctor(bed)
    assert set(problems(found)) <= {ON_DISK}
    checks = {finding["check"]: finding["message"] for finding in found["findings"]}
    assert {"slurm": "Slurm 2", "sge": "SGE 8"}[bed.kind] in checks["scheduler"]
    assert "GPUs" in checks["gpus"]
    assert "# " in written
    tell = ("--wait", "--", "bash", "-c", "echo worker $RANK of $WORLD_SIZE")
    for size, hosts in (((), 1), (SIZES[bed.kind], 2)):
        name = f"first-{hosts}"
        done = gridtf(bed, "submit", "--name", name, *size, *tell, env=ENVIRON)
        assert "COMPLETED" in done.stdout, done.stdout + done.stderr
        status = json.loads(gridtf(bed, "status", "--json", name, env=ENVIRON).stdout)
        assert len({task["host"] for task in status["tasks"]}) == hosts
    seen = doctor(bed, "--probe")
    assert {finding["check"]: finding["level"] for finding in seen["findings"]}["probe.hosts"] == "ok"
    assert set(problems(seen)) <= {("warning", "time")}
    sent = seen["result"]
    assert re.fullmatch({"slurm": r"slurm\S* 2[\d.]+", "sge": r"SGE 8[\d.]+\w*"}[bed.kind], sent["version"])
    assert (sent["failed"], "probe.hosts" in sent["passed"]) == ([], True)
    assert not re.search(r"alice|/mnt|\bn1\b", json.dumps(sent))
    again = gridtf(bed, "init", env=ENVIRON, check=False)
    assert (again.returncode, (bed.home() / CONFIG).read_text()) == (2, written)


@contextmanager
def broken(bed: Bed, fault: Fault) -> Iterator[None]:
    admin(bed, "bash", "-c", fault.breaks)
    try:
        yield
    finally:
        if fault.mends:
            admin(bed, "bash", "-c", fault.mends)
        else:
            bed.mend("ctl")


@pytest.mark.parametrize(
    ("bed", "what"), [(kind, what) for kind, faults in FAULTS.items() for what in faults], indirect=["bed"]
)
def test_fault_of_a_site_is_one_finding(bed: Bed, what: str, written: str) -> None:
    fault = FAULTS[bed.kind][what]
    if fault.file:
        (bed.home() / CONFIG).write_text(fault.file)
    with broken(bed, fault):
        found = problems(doctor(bed, *fault.words, silent=fault.check, cwd=fault.cwd or None))
    assert set(found) - {ON_DISK} == {(fault.level, fault.check)}
    assert fault.hint in found[fault.level, fault.check]
