"""Inside a Grid Engine job: its hosts, agents, shepherd and end. Messages of qrsh and qstat were recorded on 8.1.9."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from gridtf import schedulers
from gridtf.bootstrap.launcher import launcher
from gridtf.bootstrap.plan.placement import place
from gridtf.errors import GridtfError, HostLostError, SchedulerError
from gridtf.host import procfs
from gridtf.host.names import same_host
from gridtf.jobspec.request import Request
from gridtf.jobspec.spec import JobSpec
from gridtf.run.rundir import RunDir
from gridtf.schedulers.api import AgentCall, Host, JobIdentity, Parent
from gridtf.schedulers.commands import Answer
from gridtf.schedulers.sge import agents, injob, query, scheduler
from gridtf.schedulers.sge.agents import ShepherdWatch
from gridtf.schedulers.sge.commands import sge
from gridtf.schedulers.sge.directives import resources, slots
from gridtf.schedulers.sge.injob import HostLine, parse_hostfile
from gridtf.schedulers.sge.query import NO, PER_HOST, PER_JOB, PER_SLOT, ResourceRequest, Row
from gridtf.states import JobState
from tests.support.rendering import plan

if TYPE_CHECKING:
    from gridtf.bootstrap.wire.stream import Listener


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "n2 2 all.q@n2 UNDEFINED\nn4 1 all.q@n4 UNDEFINED\n", [HostLine("n2", 2), HostLine("n4", 1)], id="as-it-is"
        ),
        pytest.param("n2 2 all.q@n2 <NULL>\n", [HostLine("n2", 2)], id="null"),
        pytest.param("n2 2 all.q@n2 NONE\n", [HostLine("n2", 2)], id="none"),
        pytest.param("n2 2 all.q@n2 0,0:0,1\n", [HostLine("n2", 2, cores=2)], id="binding"),
        pytest.param("n2 4 all.q@n2 0:0,0:1,0:2,0:3\n", [HostLine("n2", 4, cores=4)], id="binding-of-the-pe"),
        pytest.param("n2 2 all.q@n2 0,0\nn2 2 long.q@n2 0,4:0,5\n", [HostLine("n2", 4, cores=3)], id="bindings-summed"),
        pytest.param("n2 2 a.q@n2 0,0\nn2 2 b.q@n2 UNDEFINED\n", [HostLine("n2", 4)], id="half-a-binding"),
        pytest.param(
            "n1 2 a.q@n1 UNDEFINED\nn2 1 a.q@n2 UNDEFINED\nn1 1 b.q@n1 UNDEFINED\n",
            [HostLine("n1", 3), HostLine("n2", 1)],
            id="repeated-hosts",
        ),
        pytest.param(
            "n1.site.org 2 a.q@n1.site.org UNDEFINED\nn1 1 b.q@n1 UNDEFINED\n", [HostLine("n1.site.org", 3)], id="fqdn"
        ),
        pytest.param("n1.a.org 2\nn1.b.org 1\n", [HostLine("n1.a.org", 2), HostLine("n1.b.org", 1)], id="two-domains"),
        pytest.param("N1 2 q@N1\nn1 1 b@n1\n", [HostLine("N1", 3)], id="letter-case"),
        pytest.param("\n\nn2 2\n\nn3\n   \n", [HostLine("n2", 2), HostLine("n3", 1)], id="short-and-blank"),
        pytest.param(
            "n2 2 q@n2 UNDEFINED\r\nn3 1 q@n3 UNDEFINED\r\n", [HostLine("n2", 2), HostLine("n3", 1)], id="crlf"
        ),
        pytest.param("n2 0 q@n2 UNDEFINED\nn3 4 q@n3 UNDEFINED", [HostLine("n2", 0), HostLine("n3", 4)], id="no-slots"),
        pytest.param("n2\t2\tall.q@n2\t<NULL>\n", [HostLine("n2", 2)], id="tabs"),
    ],
)
def test_parse_hostfile(text: str, expected: list[HostLine]) -> None:
    assert list(parse_hostfile(text)) == expected


def test_invalid_slots_in_hostfile_are_reported_with_their_line() -> None:
    with pytest.raises(SchedulerError, match="/spool/pe_hostfile:2: 'many' is not a number of slots") as caught:
        parse_hostfile("n1 2 q@n1 UNDEFINED\nn2 many q@n2 UNDEFINED\n", "/spool/pe_hostfile")
    assert "n2 many q@n2" in caught.value.why
    assert "start_proc_args" in caught.value.hint


@pytest.mark.parametrize("slots", ["²", "٣", "-1", "1.5", "inf", "9" * 5000])
def test_invalid_numbers_in_hostfile_are_refused(slots: str) -> None:
    with pytest.raises(SchedulerError, match="is not a number of slots") as caught:
        parse_hostfile(f"n1 {slots} q@n1 UNDEFINED\n")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("text", ["", "\n \r\n"])
def test_hostfile_without_hosts_is_refused(text: str) -> None:
    with pytest.raises(SchedulerError, match="names no host"):
        parse_hostfile(text)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("n1", "n1", True),
        ("n1", "N1.site.org", True),
        ("n1.site.org", "n1.site.org", True),
        ("n1.a", "n1.b", False),
        ("n1", "n10", False),
        ("n1", "n2.site.org", False),
    ],
)
def test_same_host(one: str, other: str, expected: bool) -> None:
    assert same_host(one, other) is expected
    assert same_host(other, one) is expected


CALL = AgentCall(("/runs/a", "1"), lambda *words: 0, ("python", "-c", "a = 1; b"), Path("/runs/agents.log"))


def request(**values: Any) -> Request:
    """As a hand-written script makes it inside the job."""
    return scheduler.login.resolve(JobSpec.from_dict({"command": ["train"], **values}), in_job=True)


def hosts(
    lines: list[HostLine], values: dict[str, Any], requested: Mapping[str, ResourceRequest] | None = None
) -> list[Host]:
    return list(injob.allocation(lines, request(**values), lambda: requested or {}).hosts)


def shape(found: list[Host]) -> list[tuple[str, int, int | None, int | None]]:
    return [(host.name, host.slots, host.gpus, host.cpus) for host in found]


# --- which hosts


def environ(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "pe_hostfile"
    path.write_text(text)
    return {"PE": "mpi", "PE_HOSTFILE": str(path)}


def test_host_of_the_script_comes_first(tmp_path: Path) -> None:
    variables = environ(tmp_path, "n1 1 q@n1\nn2 2 q@n2\nn3 1 q@n3\n")
    assert [line.name for line in injob.allocated_hosts(variables, "n2.site.org")] == ["n2", "n1", "n3"]
    assert [line.name for line in injob.allocated_hosts(variables, "elsewhere")] == ["n1", "n2", "n3"]


def test_job_without_parallel_environment_has_one_host() -> None:
    assert injob.allocated_hosts({"NSLOTS": "1"}, "n1") == (HostLine("n1", 1),)
    assert injob.allocated_hosts({}, "n1") == (HostLine("n1", 1),)


def test_missing_hostfile_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "gone"
    with pytest.raises(SchedulerError, match=f"cannot read PE_HOSTFILE, {path}, on n1: No such file") as caught:
        injob.allocated_hosts({"PE": "mpi", "PE_HOSTFILE": str(path)}, "n1")
    assert caught.value.why
    assert caught.value.hint


def test_unset_hostfile_in_a_parallel_job_is_reported() -> None:
    with pytest.raises(SchedulerError, match=r"PE_HOSTFILE is not set on n2, .* parallel environment mpi") as caught:
        injob.allocated_hosts({"PE": "mpi", "NSLOTS": "4"}, "n2")
    assert "gridtf_join" in caught.value.hint


# --- room for tasks


def test_slot_is_a_cpu_and_a_task() -> None:
    assert shape(hosts([HostLine("n1", 4), HostLine("n2", 2)], {})) == [("n1", 4, 0, 4), ("n2", 2, 0, 2)]


def test_tasks_with_several_cpus_take_several_slots() -> None:
    assert shape(hosts([HostLine("n1", 4), HostLine("n2", 5)], {"cpus_per_task": 2})) == [
        ("n1", 2, 0, 4),
        ("n2", 2, 0, 5),
    ]


def test_slots_of_tasks_that_do_not_train_are_reserved() -> None:
    values = {"tasks": {"ps": {"count": 1, "cpus": 3}}}
    assert [host.slots for host in hosts([HostLine("n1", 4), HostLine("n2", 4)], values)] == [3, 2]


def test_host_without_slots_gets_no_tasks() -> None:
    assert [host.name for host in hosts([HostLine("n1", 0), HostLine("n2", 4)], {})] == ["n2"]


def test_tasks_per_node_limits_hosts_in_hand_written_scripts() -> None:
    assert [host.slots for host in hosts([HostLine("n1", 4), HostLine("n2", 1)], {"tasks_per_node": 2})] == [2, 1]


@pytest.mark.parametrize(
    ("lines", "nodes", "expected"),
    [
        ([HostLine("n1", 3), HostLine("n2", 1)], 4, [3, 1]),
        ([HostLine("n1", 4)], 4, [4]),
        ([HostLine("n1", 2), HostLine("n2", 1)], "2-4", [2, 1]),
        ([HostLine("n1", 4), HostLine("n2", 1)], 4, [1, 1]),  # more than gridtf requests
        ([HostLine("n1", 3)], "2-4", [3]),
    ],
)
def test_all_slots_are_used_on_fewer_hosts_than_requested(
    lines: list[HostLine], nodes: Any, expected: list[int]
) -> None:
    assert [host.slots for host in hosts(lines, {"nodes": nodes, "tasks_per_node": 1})] == expected


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 7, 11])
@pytest.mark.parametrize("more", [{}, {"nodes": 8}, {"cpus_per_task": 2}], ids=["plain", "nodes", "cpus"])
def test_tasks_that_tasks_per_node_does_not_divide(workers: int, more: dict[str, Any]) -> None:
    """All slots that gridtf requested are used, on however few hosts."""
    values = {"tasks_per_node": 2, "tasks": {"worker": {"count": workers}}, **more}
    wanted = slots(request(**values))
    low, per_task = wanted.low, wanted.per_task
    assert low == wanted.high == workers * per_task
    assert [host.slots for host in hosts([HostLine("n1", low)], values)] == [workers]
    if workers > 2:
        spread = [HostLine("n1", low - per_task), HostLine("n2", per_task)]
        assert [host.slots for host in hosts(spread, values)] == [workers - 1, 1]


@pytest.mark.parametrize(
    ("binding", "hostfile", "cores", "note"),
    [
        (
            "3",
            "n1 2 a.q UNDEFINED\nn2 1 a.q UNDEFINED\n",
            [1, 1],
            "2 slots of the job on host n1 have 1 core (-binding",
        ),
        ("3", "n1 2 a.q 0,0:0,1\nn2 1 a.q 0,0\n", [2, 1], ""),  # -binding pe
        ("3", "", [1], ""),
        ("0 1", "n1 2 a.q UNDEFINED\n", [None], ""),  # of another job: -V has copied it
        ("", "n1 2 a.q UNDEFINED\n", [None], ""),
    ],
)
def test_cores_that_the_job_is_bound_to(
    binding: str, hostfile: str, cores: list[int | None], note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With -binding linear:1, which is for each host."""
    (tmp_path / "hosts").write_text(hostfile)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    environ = {"SGE_BINDING": binding, **({"PE_HOSTFILE": str(tmp_path / "hosts")} if hostfile else {})}
    lines = injob.allocated_hosts(environ, "n1")
    assert [line.cores for line in lines] == cores
    assert injob.narrow_binding(lines).startswith(note)
    assert bool(injob.narrow_binding(lines)) == bool(note)


def test_cpus_are_the_cores_of_the_binding() -> None:
    assert [host.cpus for host in hosts([HostLine("n1", 4, cores=8)], {"gpus_per_task": 1})] == [8]


@pytest.mark.parametrize(
    ("requested", "values", "expected"),
    [
        pytest.param({"gpu": ResourceRequest(1, PER_SLOT)}, {}, [2, 1], id="per-slot"),
        pytest.param({"gpu": ResourceRequest(2, PER_SLOT)}, {"gpus_per_task": 1}, [4, 2], id="request-counts"),
        pytest.param({"gpu": ResourceRequest(4, PER_HOST)}, {}, [4, 4], id="per-host"),
        pytest.param({"gpu": ResourceRequest(4, PER_JOB)}, {}, [4, 0], id="per-job"),
        pytest.param({"gpu": ResourceRequest(0.5, PER_SLOT)}, {"cpus_per_task": 2}, [1, 0], id="half-per-slot"),
        pytest.param({"ngpus": ResourceRequest(1, PER_SLOT)}, {"gpu_resource": "ngpus"}, [2, 1], id="another-name"),
        pytest.param({"gpu": ResourceRequest(1, NO)}, {"gpus_per_task": 2}, [4, 2], id="not-consumable"),
        pytest.param({}, {"gpus_per_node": 3}, [3, 3], id="option-per-node"),
        pytest.param({}, {"gpus_per_task": 2}, [4, 2], id="option-per-task"),
        pytest.param({"h_rt": ResourceRequest(60, NO)}, {}, [0, 0], id="none"),
    ],
)
def test_gpus_of_hosts(requested: Mapping[str, ResourceRequest], values: dict[str, Any], expected: list[int]) -> None:
    assert [host.gpus for host in hosts([HostLine("n1", 2), HostLine("n2", 1)], values, requested)] == expected


@pytest.mark.parametrize(
    ("slots", "amount", "gpus"), [(8, 0.25, 2), (6, 0.333333, 2), (3, 0.333333, 1), (2, 0.333333, 0), (48, 0.083333, 4)]
)
def test_parts_of_gpus_add_up(slots: int, amount: float, gpus: int) -> None:
    found = hosts([HostLine("n1", slots)], {}, {"gpu": ResourceRequest(amount, PER_SLOT)})
    assert shape(found) == [("n1", slots, gpus, slots)]  # a slot is a CPU


@pytest.mark.parametrize(
    ("requested", "values", "cpus"),
    [
        ({"gpu": ResourceRequest(1, PER_SLOT)}, {}, None),  # a slot is a GPU
        ({"gpu": ResourceRequest(1, PER_SLOT)}, {"cpus_per_task": 4}, None),
        ({"gpu": ResourceRequest(0.25, PER_SLOT)}, {}, 8),
        ({"gpu": ResourceRequest(2, PER_JOB)}, {}, 8),
        ({"gpu": ResourceRequest(8, PER_HOST)}, {}, 8),
        ({}, {"gpus_per_node": 2}, 8),
        ({}, {}, 8),
    ],
)
def test_slots_are_cpus_unless_they_stand_for_gpus(
    requested: Mapping[str, ResourceRequest], values: dict[str, Any], cpus: int | None
) -> None:
    assert [host.cpus for host in hosts([HostLine("n1", 8)], values, requested)] == [cpus]


@pytest.mark.parametrize(
    ("lines", "requested", "values", "expected"),
    [
        # one slot a GPU, as some sites have it: gridtf_run --cpus-per-task 4 counts GPUs
        ([2, 2], ResourceRequest(1, PER_SLOT), {"cpus_per_task": 4}, [2, 2]),
        ([2, 2], ResourceRequest(1, PER_SLOT), {"cpus_per_task": 4, "tasks_per_node": 2, "gpus_per_task": 1}, [2, 2]),
        ([8, 8], ResourceRequest(0.25, PER_SLOT), {"cpus_per_task": 4, "gpus_per_task": 1}, [2, 2]),
        ([8, 8], ResourceRequest(2, PER_HOST), {"cpus_per_task": 4}, [2, 2]),
        ([8], ResourceRequest(2, PER_JOB), {}, [2]),
        ([8], ResourceRequest(2, PER_JOB), {"gpus_per_task": 2, "cpus_per_task": 4}, [1]),
        ([8, 8], ResourceRequest(2, PER_HOST), {"tasks_per_node": 1, "cpus_per_task": 4}, [1, 1]),
    ],
)
def test_tasks_are_placed_by_gpus(
    lines: list[int], requested: ResourceRequest, values: dict[str, Any], expected: list[int]
) -> None:
    resolved = request(**values)
    named = [HostLine(f"n{number}", count) for number, count in enumerate(lines)]
    tasks = place(injob.allocation(named, resolved, lambda: {"gpu": requested}), resolved)
    assert list(Counter(task.host for task in tasks).values()) == expected


@pytest.mark.parametrize(
    ("values", "lines", "amount"),
    [
        ({"tasks": {"worker": {"count": 4}}, "gpus_per_task": 1, "cpus_per_task": 4}, [8, 8], 0.25),
        ({"tasks": {"worker": {"count": 4}}, "gpus_per_task": 1, "cpus_per_task": 3}, [6, 6], 0.333333),
        ({"nodes": 2, "gpus_per_node": 2, "cpus_per_task": 4}, [8, 8], 0.25),
        ({"tasks": {"worker": {"count": 3}}, "gpus_per_task": 1, "cpus_per_task": 4, "slots": 16}, [8, 8], 0.25),
        (
            {"tasks": {"worker": {"count": 2}, "ps": {"count": 1}}, "gpus_per_task": 1, "cpus_per_task": 4},
            [12],
            0.166666,
        ),
    ],
)
def test_what_gridtf_requests_is_enough_for_its_tasks(values: dict[str, Any], lines: list[int], amount: float) -> None:
    made = plan("sge", pe="x", **values)
    wanted = slots(made.request)
    assert wanted.low == sum(lines)
    assert resources(made.request, wanted)["gpu"] == str(amount)
    named = [HostLine(f"n{number}", count) for number, count in enumerate(lines)]
    given = injob.allocation(named, made.request, lambda: {"gpu": ResourceRequest(amount, PER_SLOT)})
    tasks = place(given, made.request)
    assert sum(task.gpus for task in tasks) == (made.request.training or 4)
    assert {task.cpus for task in tasks} == {made.request.task_cpus}


@pytest.mark.parametrize(
    ("values", "requested", "present", "note"),
    [
        ({}, {}, ("0", "1"), "host n1 has 2 GPUs, and no task gets one: the job did not request resource gpu; "),
        ({"gpu_resource": "cards"}, {}, ("0",), "`--gpus-per-node 1`, in a script of your own `#$ -l cards=1`, or "),
        ({}, {}, (), ""),
        ({}, {"gpu": ResourceRequest(1, PER_SLOT)}, ("0",), ""),
        ({"gpus_per_node": 0}, {}, ("0",), ""),  # explicitly none
        ({"gpus_per_task": 1}, {}, ("0",), ""),
    ],
)
def test_unused_gpus_are_noted(
    values: dict[str, Any], requested: Mapping[str, ResourceRequest], present: tuple[str, ...], note: str
) -> None:
    resolved = request(**values)
    given = injob.allocation([HostLine("n1", 4)], resolved, lambda: requested)
    text = injob.unused_gpus(given, resolved, lambda: present)
    assert note in text
    assert bool(note) == bool(text)


@pytest.mark.parametrize(
    ("slots", "values", "note"),
    [
        ((2, 2), {"nodes": 2, "gpus_per_node": 2}, ""),
        ((1, 1, 1, 1), {"nodes": 2, "gpus_per_node": 2}, "2 hosts, 2 GPUs a host requested, but the job has 4 hosts"),
        ((3, 1), {"nodes": 2, "gpus_per_node": 2}, "but the job has 2 hosts with 1 or more each: PE rr decides"),
        ((2, 2), {"nodes": 3, "tasks_per_node": 1}, "3 hosts requested, but the job has 2 hosts: PE rr"),
        ((4,), {"tasks": {"worker": {"count": 4}}}, ""),
    ],
)
def test_other_hosts_than_requested_are_noted(slots: tuple[int, ...], values: dict[str, Any], note: str) -> None:
    lines = [HostLine(f"n{number}", count) for number, count in enumerate(slots, 1)]
    resolved = request(**values)
    given = injob.allocation(lines, resolved, lambda: {"gpu": ResourceRequest(1, PER_SLOT)})
    text = injob.other_layout(given, resolved, "rr")
    assert note in text
    assert bool(note) == bool(text)


def test_gpus_of_hosts_without_the_qmaster() -> None:
    def silent() -> Mapping[str, ResourceRequest]:
        raise SchedulerError("qmaster does not answer")

    found = injob.allocation([HostLine("n1", 2)], request(gpus_per_task=1), silent)
    assert [host.gpus for host in found.hosts] == [2]


# --- which job


def test_identity(tmp_path: Path) -> None:
    (tmp_path / "config").touch()
    os.utime(tmp_path / "config", ns=(5, 5))
    variables = {"JOB_ID": "12", "SGE_TASK_ID": "undefined", "RESTARTED": "1", "SGE_JOB_SPOOL_DIR": str(tmp_path)}
    assert injob.identity(variables) == JobIdentity("12", restarts="1-5")
    assert injob.identity({**variables, "SGE_TASK_ID": "3"}) == JobIdentity("12.3", restarts="1-5", element="3")
    assert injob.identity({"JOB_ID": "12"}) == JobIdentity("12", restarts="0-0")
    named = injob.identity({"JOB_ID": "12", "JOB_NAME": "mine.sh"})
    assert named == JobIdentity("12", {"job_name": "mine.sh"}, restarts="0-0")


def test_this_host_ignores_a_foreign_hostname() -> None:
    here = os.uname().nodename
    assert scheduler.injob.this_host({"HOSTNAME": "login"}) == here
    assert scheduler.injob.this_host({}) == here
    assert scheduler.injob.this_host({"HOSTNAME": here.split(".")[0]}) == here.split(".")[0]


# --- agents


def test_qrsh_command() -> None:
    words = agents.qrsh_command("/sge/bin/qrsh", "n2", CALL)
    assert words[:6] == ["/sge/bin/qrsh", "-inherit", "-noshell", "-v", "GRIDTF_ENVIRONMENT=1", "n2"]
    assert words[-6:] == ["python", "-c", "a = 1; b", "n2", "/runs/a", "1"]


def test_no_word_for_qrsh_has_a_newline(tmp_path: Path) -> None:
    """Grid Engine 6.2 and Open Cluster Scheduler make the two characters \\ and n of it."""
    spec, nowhere = JobSpec.from_dict({"command": ["train"]}), cast("Listener", None)
    call = launcher.agent_call(RunDir(tmp_path).attempt(1), "nonce", spec, nowhere)
    words = agents.qrsh_command("/sge/bin/qrsh", "n2", call)
    assert not re.search(r"[\x00-\x1f]", "".join(words))
    compile(call.command[-1], "agent", "exec")


REFUSED = 'error: executing task of job 12 failed: execution daemon on host "n2" didn\'t accept task'
NO_EXECD = "error: executing task of job 12 failed: failed sending task to execd@n2: got send error"
NO_NAME = 'error: executing task of job 12 failed: can\'t resolve host name "n2"'
CUT = 'error: commlib error: got read error (closing "n2.site.org/shepherd_ijs/1")'


@pytest.mark.parametrize(
    ("code", "line", "what", "hint"),
    [
        (1, REFUSED, "has not started the agent on host n2", "qconf -sp mpi"),
        (1, NO_EXECD, "has not started the agent on host n2", "sge_execd"),
        (1, NO_NAME, "has not started the agent on host n2", "known by this name"),
        (0, CUT, "the connection to host n2 is lost", "crashed"),
        (0, "", "the connection to host n2 is lost", "crashed"),
    ],
)
def test_end_of_qrsh_is_explained(code: int, line: str, what: str, hint: str) -> None:
    end = agents.agent_end("n2", "mpi", code, ["gridtf: agent on n2: something", 'error: about host "n22"', line])
    assert end.error is not None
    assert what in end.error.what
    assert end.error.why == line
    assert hint in end.error.hint
    assert isinstance(end.error, HostLostError) == (code == 0)
    assert end.again == (line == NO_EXECD)


def test_hang_up_means_the_starter_of_the_agent_was_killed() -> None:
    error = agents.agent_end("n2", "mpi", 129, []).error
    assert error is not None
    assert error.what.startswith("the process that started the agent on host n2 was killed: its sge_shepherd, or all")


def test_exit_codes_of_the_agent_pass_through() -> None:
    assert agents.agent_end("n2", "mpi", 128, []).code == 128
    assert agents.agent_end("n2", "mpi", 70, []).code == 70
    assert agents.agent_end("n2", "mpi", 70, []).error is None
    assert agents.agent_end("n2", "mpi", 137, []).code == -9


# --- termination and suspension


SHEPHERD = Parent(20, "sge_shepherd")


def job(job_id: str, queue: str = "all.q") -> dict[str, str]:
    """Variables of the script of a job, or of an element of one such as 10.3."""
    number, _, element = job_id.partition(".")
    return {"JOB_ID": number, "SGE_TASK_ID": element or "undefined", "QUEUE": queue}


def requesting(walltime: int | None) -> Request:
    return plan("sge", name="x").request.replace(walltime=walltime)


def fake_qstat(rows: list[Row], requests: list[str] | None, amount: int = 0) -> Callable[..., Answer]:
    """Answers as qstat does, and with these resources, of so much each, as qstat -j does; None: qstat -j does not."""

    def answer(argv: list[str], *, limit: float) -> Answer:
        if "-F" in argv:
            time = {f"short.q@{os.uname().nodename}": "01:00:00"}.get(argv[argv.index("-q") + 1], "infinity")
            return Answer(0, f"<job_info><resource name='h_rt' type='qf'>{time}</resource></job_info>", "")
        if "-j" not in argv:
            element = (
                "<job_list><JB_job_number>{0.number}</JB_job_number><state>{0.state}</state><tasks>{0.tasks}</tasks>"
                "<queue_name>{0.queue}</queue_name></job_list>"
            )
            jobs = "".join(map(element.format, rows))
            return Answer(0, f"<job_info>{jobs}</job_info>", "")
        if requests is None:
            raise SchedulerError("qstat -j does not answer")
        value = f"<CE_doubleval>{amount}</CE_doubleval>"
        entries = "".join(f"<request><CE_name>{name}</CE_name>{value}</request>" for name in requests)
        return Answer(0, f"<info><JB_hard_resource_list>{entries}</JB_hard_resource_list></info>", "")

    return answer


FORGOTTEN = "Grid Engine does not know the job any more"
ROWS = [Row("8", "r"), Row("9", "dr"), Row("10", "dr", "3"), Row("10", "r", "4")]


@pytest.mark.parametrize(
    ("job_id", "limits", "expected"),
    [
        ("9", [], (JobState.CANCELLED, "deleted with qdel")),
        ("8", ["h_rt", "h_vmem"], (JobState.TIMEOUT, "the walltime is over (h_rt)")),
        ("8", [], (JobState.TIMEOUT, "a limit of the job or of queue all.q is reached, such as h_cpu")),
        ("10.3", [], (JobState.CANCELLED, "deleted with qdel")),
        ("10.4", ["s_rt"], (JobState.TIMEOUT, "the walltime is over (s_rt)")),
        ("11", [], (JobState.CANCELLED, f"deleted with qdel -f, or its advance reservation is over: {FORGOTTEN}")),
    ],
)
def test_termination_reason(
    job_id: str, limits: list[str], expected: tuple[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sge, "run", fake_qstat(ROWS, limits))
    status = injob.termination_reason(job(job_id, "all.q"), SHEPHERD)
    assert (status and (status.state, status.reason)) == expected


@pytest.mark.parametrize(
    ("restarted", "state", "queue", "again"),
    [
        ("0", "Rq", "", True),
        ("0", "Rr", "all.q@{here}", True),
        ("1", "Rq", "", True),
        ("1", "Rt", "all.q@{here}", True),
        ("1", "Rr", "all.q@n9", True),
        ("1", "Rr", "short.q@{here}", True),
        ("1", "Rr", "all.q@{here}", False),  # since its first start, and it has reached a limit
        ("1", "Rr", "", False),
        ("0", "dRr", "all.q@n9", False),
    ],
)
def test_termination_reason_of_a_rescheduled_job(
    restarted: str, state: str, queue: str, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Row("8", state, queue=queue.format(here=os.uname().nodename))
    monkeypatch.setattr(sge, "run", fake_qstat([row], []))
    status = injob.termination_reason({**job("8"), "RESTARTED": restarted}, SHEPHERD)
    assert status is not None
    assert status.requeued == again
    assert ("rescheduled" in status.reason) == again
    assert (status.state == JobState.CANCELLED) == (again or "d" in state)


@pytest.mark.parametrize(
    ("age", "requested", "state", "reason"),
    [
        (3.0, ["h_rt", "h_vmem"], JobState.OUT_OF_MEMORY, "it used more memory than requested (h_vmem)"),
        (3.0, ["h_rt", "h_cpu"], JobState.TIMEOUT, "a limit of the job or of queue all.q is reached, such as h_cpu"),
        (3590.0, ["h_rt", "h_vmem"], JobState.TIMEOUT, "the walltime is over (h_rt)"),  # it took 10 s to its host
    ],
)
def test_job_that_is_ended_long_before_its_walltime_has_reached_another_limit(
    age: float,
    requested: list[str],
    state: JobState,
    reason: str,
    above: dict[int, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sge, "run", fake_qstat(ROWS, requested, amount=3600))
    monkeypatch.setattr(procfs, "age", {20: age}.get)
    status = injob.termination_reason(job("8", "all.q"), SHEPHERD)
    assert status is not None
    assert (status.state, status.reason) == (state, reason)


def test_termination_reason_of_a_deleted_job_needs_no_second_qstat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sge, "run", fake_qstat(ROWS, None))
    status = injob.termination_reason(job("9", "all.q"), SHEPHERD)
    assert status is not None
    assert status.reason == "deleted with qdel"
    assert injob.termination_reason(job("8", "all.q"), SHEPHERD) is None


@pytest.mark.parametrize(("requested", "of_queue"), [(["h_rt"], ""), ([], " of queue short.q")])
@pytest.mark.parametrize("age", [3598.0, 3599.5])
def test_job_that_is_deleted_at_its_walltime_was_not_deleted_by_a_user(
    age: float, requested: list[str], of_queue: str, above: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grid Engine itself deletes it then."""
    monkeypatch.setattr(sge, "run", fake_qstat(ROWS, requested, amount=3600))
    monkeypatch.setattr(procfs, "age", {20: age}.get)
    status = injob.termination_reason(job("9", "short.q"), SHEPHERD)
    assert status is not None
    over = (JobState.TIMEOUT, f"the walltime is over (h_rt{of_queue})")
    assert (status.state, status.reason) == (over if age > 3599 else (JobState.CANCELLED, "deleted with qdel"))


@pytest.mark.parametrize(
    ("restart", "conf", "why"),
    [
        ("1", "qmaster_params               none", ""),
        ("0", "qmaster_params               FORBID_RESCHEDULE=0", ""),
        ("2", "qmaster_params               none", "it was submitted with -r n"),
        ("1", "qmaster_params               ENABLE_X=1,FORBID_RESCHEDULE=true", "the site forbids it"),
        (None, "", ""),
    ],
)
def test_why_grid_engine_does_not_start_a_job_again(
    restart: str | None, conf: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(argv: list[str], *, limit: float) -> Answer:
        if restart is None:
            raise SchedulerError("no answer")
        if argv[0] == "qconf":
            return Answer(0, f"max_unheard   00:05:00\n{conf}\nexecd_params none\n", "")
        if "-s" in argv:
            return fake_qstat(ROWS, [])(argv, limit=limit)
        return Answer(0, f"<detailed_job_info><JB_restart>{restart}</JB_restart></detailed_job_info>", "")

    monkeypatch.setattr(sge, "run", run)
    assert injob.why_not_again(job("8")).startswith(why)
    assert bool(injob.why_not_again(job("8"))) == bool(why)
    assert injob.why_not_again(job("9")) == ("it was deleted with qdel" if restart else "")


@pytest.mark.parametrize(
    ("requested", "of_queue", "seconds"),
    [
        ({"h_rt": 7200.0}, {"h_rt": 9000}, 7200),
        ({}, {"h_rt": 9000}, 9000),
        ({"s_rt": 60.0}, {"h_rt": 9000, "s_rt": 99}, 9000),
        (None, {}, 3600),
    ],
)
def test_end_of_job_is_h_rt_after_its_start(
    requested: dict[str, float] | None,
    of_queue: dict[str, int],
    seconds: int,
    above: dict[int, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def job_requests(job_id: str, *, limit: float) -> dict[str, ResourceRequest]:
        if requested is None:
            raise SchedulerError("no answer")
        return {name: ResourceRequest(amount, NO) for name, amount in requested.items()}

    monkeypatch.setattr(query, "job_requests", job_requests)
    monkeypatch.setattr(query, "queue_limits", lambda instance, names, limit: of_queue)
    monkeypatch.setattr(procfs, "age", {20: 100.0}.get)
    now = time.time()
    end = injob.end_of_job(job("9", "a.q"), requesting(3600), now - 50)
    assert end is not None
    assert now + seconds - 100 <= end <= time.time() + seconds - 100
    above.clear()  # without a shepherd
    assert injob.end_of_job(job("9", "a.q"), requesting(3600), 50.0) == 50 + seconds
    assert (injob.end_of_job(job("9", "a.q"), requesting(None), 50.0) is None) == (requested is None)


def test_end_of_job_without_a_limit_is_not_the_one_that_was_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    """A JSV has removed h_rt from the request."""
    monkeypatch.setattr(sge, "run", fake_qstat([], []))
    assert injob.end_of_job(job("9", "all.q"), requesting(3600), 50.0) is None


@pytest.fixture
def above(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """The processes above this one, by pid, nearest first."""
    found = {30: "bash", 20: "sge_shepherd", 10: "sge_execd"}

    def ancestors(pid: int) -> Iterator[int]:
        assert pid == os.getpid()
        return iter(list(found))

    monkeypatch.setattr(agents, "_POLL_INTERVAL", 0.0)
    monkeypatch.setattr(procfs, "ancestors", ancestors)
    monkeypatch.setattr(procfs, "name", lambda pid: found.get(pid, ""))
    return found


@pytest.mark.parametrize("killed", [[20, 10], [30, 20, 10]], ids=["shepherd", "script"])
def test_shepherd_watch_reports_a_lost_shepherd(above: dict[int, str], killed: list[int]) -> None:
    watch = ShepherdWatch("n1")
    assert watch.poll() is None
    for pid in killed:
        del above[pid]
    end = watch.poll()
    assert end is not None
    assert isinstance(end.error, GridtfError)
    assert "the job script on host n1, or the sge_shepherd that had started it, was killed" in end.error.what


def test_shepherd_watch_without_a_shepherd_reports_nothing(above: dict[int, str]) -> None:
    del above[20]
    watch = ShepherdWatch("n1")
    above.clear()
    assert watch.poll() is None


def test_shell_of_qlogin_is_noted(above: dict[int, str]) -> None:
    assert "qlogin" in schedulers.unannounced()
    assert (
        schedulers.around_this_process({"JOB_ID": "3", "SGE_TASK_ID": "undefined"}) == "sge"
    )  # by its variables alone
    del above[20]
    assert schedulers.unannounced() == ""


@pytest.mark.parametrize("method", ["terminate", "kill"])
def test_shepherd_watch_ends_without_error_when_terminated(above: dict[int, str], method: str) -> None:
    watch = ShepherdWatch("n1")
    getattr(watch, method)()
    end = watch.poll()
    assert end is not None
    assert end.error is None


SUSPENDED = [
    Row("7", "r"),
    Row("8", "s"),
    Row("9", "S"),
    Row("10", "T"),
    Row("11", "s", "3"),
    Row("12", "dr"),
    Row("13", "P"),
]


@pytest.mark.parametrize(
    ("job_id", "expected"),
    [("7", False), ("8", True), ("9", True), ("10", True), ("11", False), ("11.3", True), ("12", False), ("13", True)],
)
def test_suspended(job_id: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sge, "run", fake_qstat(SUSPENDED, None))
    assert injob.suspended(job(job_id)) == expected


# from qstat -f -xml -q '*@n2', Son of Grid Engine 8.1.9
QUEUE_INSTANCE = """<Queue-List><name>{}@n2</name><qtype>BIP</qtype><slots_used>0</slots_used><slots_resv>0</slots_resv>
<slots_total>4</slots_total><arch>lx-amd64</arch>{}</Queue-List>"""


@pytest.mark.parametrize(
    ("states", "fault"),
    [
        (["", ""], ""),
        (["au", "au"], "none of its queues is in service"),
        (["d", "E"], "none of its queues is in service"),
        (["d", ""], ""),
        (["a"], ""),  # its load is high
        ([], ""),
    ],
)
def test_host_fault_is_that_no_queue_of_a_host_is_in_service(
    states: list[str], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = (f"<state>{state}</state>" if state else "" for state in states)
    queues = "".join(QUEUE_INSTANCE.format(f"q{number}", state) for number, state in enumerate(shown))
    monkeypatch.setattr(sge, "run", lambda argv, **_: Answer(0, queues if argv[-1] == "*@n2" else "", ""))
    assert injob.host_fault("n2") == fault


def test_host_fault_is_unknown_without_the_qmaster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sge, "run", lambda argv, **_: Answer(1, "", "error: unable to contact qmaster"))
    assert injob.host_fault("n2") == ""


def test_suspended_is_unknown_without_the_qmaster(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*words: object, **more: object) -> None:
        raise SchedulerError("no answer")

    monkeypatch.setattr(sge, "run", silent)
    assert injob.suspended(job("7")) is None


def test_killed_qrsh_is_reported() -> None:
    end = agents.agent_end("n2", "rr", -signal.SIGKILL, [])
    assert end.error is not None
    assert end.error.what == "qrsh, the connection to host n2, was killed by SIGKILL"
    assert agents.agent_end("n2", "rr", 128 + signal.SIGKILL, []).error is None  # its other half
