"""A soak: two users submit small jobs as fast as they can, while jobs, gridtf's own processes and hosts are killed.

On a Slurm and on a Grid Engine test bed. What befalls each job is known, hence how it has to end: the tables of tests
(tests/faults/hosts.py) say so. A job that lost a host may end as it would have, or as one that names the host.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cluster import ROOT, test_bed
from measure import table

sys.path.insert(0, str(ROOT))

from gridtf.run.rundir import RunDir
from gridtf.states import ENDED
from tests.faults.firstlines import fits
from tests.faults.hosts import NOT_AGAIN, OF_JOBS, HostFault, ready
from tests.support.cluster import SHARED, Bed
from tests.support.clusterfaults import GRIDTF_ENVIRON, NODES
from tests.support.clusterjobs import GRIDTF, ClusterJob, gridtf
from tests.support.sgebed import BINARIES, GridEngineBed

JOBS = int(os.environ.get("JOBS", "60"))  # of each user
USERS = ("alice", "bob")
BEDS = {"slurm": Bed, "sge": GridEngineBed}
FOLDERS = {"slurm": "/usr/bin", "sge": BINARIES}  # with the scheduler's commands
_WRONG, _LEFT = "wrong states", "things left on hosts"
COMMANDS = {  # that are counted
    "slurm": {"submission": "sbatch", "queue": "squeue", "accounting": "sacct", "site": "scontrol"},
    "sge": {"submission": "qsub", "queue": "qstat", "accounting": "qacct", "site": "qconf"},
}
POWER_CUTS = (0.2, 0.4, 0.6, 0.8)  # when so many jobs have ended, a host loses its power
_LOST = {"NODE_FAIL", "FAILED"}  # the states of a job that lost a host: FAILED where it was just starting there
_DOWN = 10.0  # seconds without power
_LOOK, _LIMIT = 3.0, 280.0  # seconds
# What the tasks of a job do. Whoever has done it all leaves a file: no job without all of them is COMPLETED.
_TASK = """\
case $1 in
    well) sleep $((RANDOM % 3)); touch "$OUTPUT_DIR/done-$RANK" ;;
    exits) exit 3 ;;
    dies) kill -9 $$ ;;
    *) sleep 300 ;;
esac
"""


def _own(name: str, line: str, state: str = "FAILED") -> HostFault:
    """What a job does itself."""
    return HostFault(name, "", dict.fromkeys(BEDS, line), None, "", state=state)


_WELL = _own("well", "all training tasks have exited with 0", "COMPLETED")
_OWN = {1: _own("exits", "worker:N on HOST: exit code 3"), 3: _own("dies", "worker:N on HOST: killed by SIGKILL")}
_FROM_OUTSIDE = {5: ("cancelled", "deleted"), 7: ("agent-killed", "launcher-killed")}  # in turn


def _fault(number: int) -> HostFault:
    """What befalls a job, by its number: by its last digit, six of ten end well."""
    if names := _FROM_OUTSIDE.get(number % 10):
        return next(fault for fault in OF_JOBS if fault.name == names[number // 10 % 2])
    return _OWN.get(number % 10, _WELL)


class Job(ClusterJob):
    """One job of the soak.

    Attributes:
        fault: What befalls it.
        acted: Whether it has.
        view: What gridtf list shows of it.
        lost: Hosts that had no power while it was not over.
    """

    def __init__(self, bed: Bed, user: str, number: int) -> None:
        self.bed, self.user, self.fault, self.acted = bed, user, _fault(number), False
        self._number, self.name = number, f"{self.fault.name}-{number}"
        self.nodes = 2 if number % 2 else 1
        self.view: Mapping[str, Any] = {"state": "not submitted", "reason": ""}
        self.lost: list[str] = []
        self._answer = bed.home(user) / "soak" / f"{self.name}.json"
        self.id = self.seen_as = ""

    def command(self) -> str:
        """Submits it, as a line of a shell script in the user's home folder."""
        gpus = ["--gpus-per-task", "1"] if self.fault is _WELL and self.nodes == 2 else []
        words = ["submit", "--json", *self.bed.options, "--name", self.name, "--nodes", str(self.nodes)]
        again = NOT_AGAIN[self.bed.kind] if self._number // 2 % 2 else ()
        words += ["--tasks-per-node", "1", "--kill-grace", "1", *gpus, *again]
        words += ["--", "bash", "soak/task.sh", self.fault.name]
        answer = shlex.quote(f"soak/{self._answer.name}")
        return f"{shlex.join((*GRIDTF, *words))} >{answer}.new 2>&1; mv {answer}.new {answer}"

    def submitted_by_now(self) -> bool:
        if not self.id and self._answer.exists():
            try:
                answer = json.loads(self._answer.read_text())
            except ValueError:
                self.view = {"state": "refused", "reason": self._answer.read_text()}
                self.id = "none"
            else:
                self.id, self.seen_as = answer["job_id"], answer["run_dir"]
                self.run = RunDir(self.bed.shared / Path(self.seen_as).relative_to(SHARED))
        return bool(self.id)

    def may_run(self) -> bool:
        return self.submitted_by_now() and not self.over()

    def over(self) -> bool:
        return self.view["state"] in (*ENDED, "refused")

    def act(self) -> None:
        """Have it befall what is to, once it runs."""
        if self.fault.act and not self.acted and self.may_run() and ready(self.fault, self):
            self.acted = True
            try:
                self.fault.act(self)
            except (AssertionError, KeyError):  # its host has just lost its power
                if not self.lost:
                    raise

    def names_a_lost_host(self) -> bool:
        """Whether it has ended because a host had no power, and says which."""
        return self.view["state"] in _LOST and any(host in self.view["reason"] for host in self.lost)

    def wrong(self) -> str:
        """What is wrong with its end; empty: nothing."""
        state, reason = self.view["state"], self.view["reason"]
        done = self.id != "none" and len(list(self.run.output.glob("done-*"))) == self.nodes
        line = f"{self.fault.lines[self.bed.kind]}{'…' * bool(self.lost)}"  # and what became of the lost host
        if state == self.fault.state and fits(line, reason):
            right = done or state != "COMPLETED"
        else:
            right = self.names_a_lost_host()
        lost = f", while {', '.join(self.lost)} had no power" if self.lost else ""
        about = "" if self.over() or not self.id else f"\n{self.bed.about(self.id)}"
        return "" if right else f"{self.user}'s {self.name}{lost}: {state}: {reason}{about}"


def main() -> None:
    rows: list[list[object]] = [["", *BEDS, "aim"]]
    found = [_soak(kind) for kind in BEDS]
    for what in found[0]:
        rows.append([what, *(one[what] for one in found), 0 if what in (_WRONG, _LEFT) else ""])
    cuts = f"a host loses its power {len(POWER_CUTS)} times"
    print(f"\n{len(USERS)} users submit {JOBS} jobs each, of one or two tasks; {cuts}")
    table(rows)


def _soak(kind: str) -> dict[str, object]:
    """Run the jobs; returns what is told of them."""
    with test_bed(kind, {}), ExitStack() as submitting:
        bed = BEDS[kind](Path(os.environ["GRIDTF_TESTBED_STATE"]))
        jobs = [Job(bed, user, number) for user in USERS for number in range(JOBS)]
        environ = _counting(bed)
        begin = time.monotonic()
        for user in USERS:
            folder = bed.home(user) / "soak"
            folder.mkdir()
            folder.chmod(0o777)
            (folder / "task.sh").write_text(_TASK)
            (folder / "submit.sh").write_text("\n".join(job.command() for job in jobs if job.user == user))
            process = submitting.enter_context(bed.popen("login", "bash", "soak/submit.sh", user=user, env=environ))
            submitting.callback(process.terminate)
        _follow(bed, jobs, environ)
        seconds = time.monotonic() - begin
        wrong = list(filter(None, (job.wrong() for job in jobs)))
        left = list(_left(bed))
        for line in (*wrong, *left):
            print(f"{kind}: {line}", flush=True)
        calls = Counter((bed.shared / "counting/calls").read_text().split())
        return {
            "jobs": len(jobs),
            "of these, ended by a lost host": sum(job.names_a_lost_host() for job in jobs),
            _WRONG: len(wrong),
            _LEFT: len(left),
            "seconds": round(seconds),
            **{f"calls a job: {what}": f"{calls[name] / len(jobs):.2f}" for what, name in COMMANDS[kind].items()},
        }


def _counting(bed: Bed) -> dict[str, str]:
    """Count the calls of the scheduler's commands on the login host; returns the variables that do."""
    folder = bed.shared / "counting"
    folder.mkdir()
    (folder / "calls").touch()
    (folder / "calls").chmod(0o666)
    seen = bed.seen(folder)
    for name in COMMANDS[bed.kind].values():
        count = f'[ "$HOSTNAME" != login ] || echo {name} >>{seen}/calls'
        (folder / name).write_text(f'#!/bin/bash\n{count}\nexec {FOLDERS[bed.kind]}/{name} "$@"\n')
        (folder / name).chmod(0o755)
    return {**GRIDTF_ENVIRON, **({"PATH": f"{seen}:{bed.path}"} if bed.kind == "slurm" else {"SGE_BINARY_PATH": seen})}


def _follow(bed: Bed, jobs: list[Job], environ: Mapping[str, str]) -> None:
    """Until all jobs are over: have befall them what is to, and hosts lose their power now and then."""
    end, cuts, settled = time.monotonic() + _LIMIT, list(POWER_CUTS), False
    while not settled and time.monotonic() < end:
        settled = all(job.over() for job in jobs)  # and one more look, when the scheduler has told all
        for job in jobs:
            job.act()
        if cuts and sum(job.over() for job in jobs) >= cuts[0] * len(jobs):
            cuts.pop(0)
            _cut_power(bed, jobs)
        time.sleep(_LOOK)
        _look(bed, jobs, environ)


def _look(bed: Bed, jobs: list[Job], environ: Mapping[str, str]) -> None:
    for user in USERS:
        listed = gridtf(bed, "list", "--all", "--json", user=user, env=environ, timeout=_LIMIT).stdout
        views = {view["run_dir"]: view for view in json.loads(listed)}
        for job in jobs:
            if job.user == user and job.submitted_by_now():
                job.view = views.get(job.seen_as, job.view)


def _cut_power(bed: Bed, jobs: list[Job]) -> None:
    """Cut the power of the host with most tasks, for a moment."""
    going = [job for job in jobs if not job.over()]
    tasks = Counter(task["host"] for job in going if job.may_run() for task in job.tasks().values())
    host = max(NODES, key=lambda name: tasks[name])
    for job in going:
        job.lost.append(host)
    bed.kill(host)
    time.sleep(_DOWN)
    bed.mend(host)


def _left(bed: Bed) -> Iterator[str]:
    """What the users still have on the hosts of jobs: processes, files, GPU claims; with its process ends a port's."""
    users = ",".join(USERS)
    owned = " -o ".join(f"-user {user}" for user in USERS)
    look = f"pgrep -a -u {users}; find /tmp /var/tmp /dev/shm {owned}; grep -a @gridtf /proc/net/unix"
    for host in NODES:
        for line in bed.run(host, "bash", "-c", look, user="root", check=False).stdout.splitlines():
            yield f"left on {host}: {line}"
