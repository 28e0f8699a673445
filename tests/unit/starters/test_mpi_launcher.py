"""The launcher's half of an MPI world: who starts the ranks, commands of mpirun for other hosts, what mpirun says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gridtf import schedulers
from gridtf.bootstrap.launcher.api import LauncherView, starter_of
from gridtf.bootstrap.launcher.hosts import HostMonitor
from gridtf.bootstrap.launcher.reporter import Reporter
from gridtf.bootstrap.plan.launchedjob import LaunchedJob
from gridtf.bootstrap.wire.messages import MessageError
from gridtf.run.rundir import Record
from gridtf.starters.mpi import REMOTE, WORLD, said_by_mpirun
from tests.support.plans import hosts, task_plan
from tests.support.streams import FakeListener, InlineRecorder
from tests.support.system import FakeSystem


class World:
    """A world on three hosts, whose agents say what the test has them say."""

    def __init__(self, folder: Path, kind: str = "mpirun", names: Sequence[str] = ("n1", "n2", "n3")) -> None:
        system = FakeSystem()
        self.listener = FakeListener(system=system)
        plan = task_plan(folder / "run", hosts(0, 0, 0, slots=2), tasks={"worker": {"count": 5}}, mpi=kind or False)
        request = plan.request.replace(mpi=kind)
        job = LaunchedJob(plan.attempt.run, plan.spec, request, schedulers.get("local"), "7", system)
        self.hosts = HostMonitor(plan.attempt, self.listener, 30.0, system.sleep, system, names)
        reporter = Reporter(job, plan.attempt, plan.nonce, InlineRecorder(system), self.hosts, "")
        self.starter = starter_of(LauncherView(job, plan.attempt, self.hosts, reporter, plan))
        self.listener.kinds.update(self.starter.hears)
        self.hosts.heard = dict.fromkeys(self.starter.hears, self.starter.heard)

    def hear(self, host: str, kind: str, content: Record) -> None:
        self.listener.say(host, kind, content)
        self.hosts.read()


@pytest.mark.parametrize(
    ("kind", "told"), [("mpirun", ["h0"]), ("pmix", ["h0"]), ("gloo", ["h0", "h1", "h2"]), ("", [])]
)
def test_who_starts_the_ranks_is_told_their_hosts(tmp_path: Path, kind: str, told: Sequence[str]) -> None:
    world = World(tmp_path, kind)
    world.starter.met()
    ranks = {"hosts": ["h0", "h0", "h1", "h1", "h2"]}
    assert world.listener.sent == [(host, WORLD, ranks) for host in told]


def test_commands_go_to_their_hosts_and_codes_come_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    first = {"0": ["n2", "orted 1"]}
    world.hear("n1", REMOTE, {"commands": first, "codes": {}})
    both = {**first, "1": ["n3", "orted 2"]}
    world.hear("n1", REMOTE, {"commands": both, "codes": {}})  # an agent says all so far
    world.hear("n3", REMOTE, {"commands": {}, "codes": {"1": 0}})
    assert world.listener.sent == [
        ("n2", REMOTE, {"commands": first, "codes": {}}),
        ("n3", REMOTE, {"commands": {"1": ["n3", "orted 2"]}, "codes": {}}),
        ("n1", REMOTE, {"commands": {}, "codes": {"1": 0}}),
    ]


@pytest.mark.parametrize(("called", "host"), [("n2", "n2.site.org"), ("n2.site.org", "n2.site.org"), ("n10", "n10")])
def test_host_without_its_domain_is_found(tmp_path: Path, called: str, host: str) -> None:
    world = World(tmp_path, names=("n1", "n2.site.org", "n10"))
    world.hear("n1", REMOTE, {"commands": {"0": [called, "orted"]}, "codes": {}})
    assert [target for target, *_ in world.listener.sent] == [host]


def test_command_for_a_host_that_is_none_of_the_job_has_failed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.hear("n1", REMOTE, {"commands": {"0": ["elsewhere", "orted"]}, "codes": {}})
    assert world.listener.sent == [("n1", REMOTE, {"commands": {}, "codes": {"0": 1}})]


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (REMOTE, {"commands": {"0": "n2 orted"}, "codes": {}}),
        (REMOTE, {"commands": {}, "codes": {"0": "1"}}),
        (REMOTE, {"commands": {}}),
        (WORLD, {"hosts": ["n1"]}),
        ("another", {}),
    ],
)
def test_message_that_no_agent_has_for_it_is_refused(tmp_path: Path, kind: str, content: Record) -> None:
    world = World(tmp_path)
    with pytest.raises(MessageError, match=f"a damaged message {kind}: |a message of kind '{kind}', where "):
        world.hear("n1", kind, content)


def test_nobody_has_commands_for_others_where_agents_start_the_tasks(tmp_path: Path) -> None:
    world = World(tmp_path, "")
    with pytest.raises(MessageError, match="a message of kind 'remote', where "):
        world.hear("n1", REMOTE, {"commands": {}, "codes": {}})


@pytest.mark.parametrize(
    ("text", "telling", "first"),
    [
        (
            "-----\nPrimary job  terminated normally, but 1 process returned\na non-zero exit code.\n"
            "-----\nmpirun detected that one or more processes exited: exiting improperly, process rank 1\n",
            "mpirun detected that one or more processes exited: exiting improperly, process rank 1",
            "",
        ),
        ("=====\n=   BAD TERMINATION\n=   EXIT CODE: 6\n", "=   EXIT CODE: 6", ""),
        ("[proxy:1@n2] control_cb: assert (!closed) failed\n", "", "[proxy:1@n2] control_cb: assert (!closed) failed"),
        ("", "", ""),
    ],
)
def test_what_mpirun_says(tmp_path: Path, text: str, telling: str, first: str) -> None:
    log = tmp_path / "n1.log"
    log.write_text(text)
    assert said_by_mpirun(log, first=False) == telling
    assert said_by_mpirun(log) == (telling or first)
    assert said_by_mpirun(tmp_path / "none.log") == ""
