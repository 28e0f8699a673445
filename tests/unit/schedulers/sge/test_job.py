"""The half of Grid Engine inside a job: its environment, its hosts, the words of qrsh and qstat, as seen on 8.1.9."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gridtf.errors import HostLostError, SchedulerError
from gridtf.jobspec.layout import request
from gridtf.jobspec.spec import JobSpec, TaskSpec
from gridtf.schedulers.base import CANCELLED, TIMEOUT, AgentCall, Host
from gridtf.schedulers.common import needs
from gridtf.schedulers.sge import injob, query
from gridtf.schedulers.sge.directives import Slots, slots
from gridtf.schedulers.sge.injob import HostLine
from gridtf.schedulers.sge.query import NO, PER_HOST, PER_JOB, PER_SLOT, ResourceRequest, Row, row_of

CALL = AgentCall(
    ("/runs/a", "1"), lambda words: 0, ("python", "-c", "a = 1\nb"), Path("/runs/agents.log"), lambda environ: None
)


def spec(**values: Any) -> JobSpec:
    tasks = {name: TaskSpec(**table) for name, table in values.pop("tasks", {}).items()}
    return JobSpec(command=("train",), tasks=tasks, **values)


def hosts(
    found: list[HostLine], values: dict[str, Any], asked: Mapping[str, ResourceRequest] | None = None
) -> list[Host]:
    return list(injob.allocation(found, spec(**values), lambda: asked or {}).hosts)


def shape(found: list[Host]) -> list[tuple[str, int, int | None, int | None]]:
    return [(host.name, host.slots, host.gpus, host.cpus) for host in found]


# --- which hosts


def environ(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "pe_hostfile"
    path.write_text(text)
    return {"PE": "mpi", "PE_HOSTFILE": str(path)}


def test_the_host_of_the_script_comes_first(tmp_path: Path) -> None:
    told = environ(tmp_path, "n1 1 q@n1\nn2 2 q@n2\nn3 1 q@n3\n")
    assert [line.name for line in injob.allocated_hosts(told, "n2.site.org")] == ["n2", "n1", "n3"]
    assert [line.name for line in injob.allocated_hosts(told, "elsewhere")] == ["n1", "n2", "n3"]


def test_a_job_without_a_parallel_environment() -> None:
    assert injob.allocated_hosts({"NSLOTS": "1"}, "n1") == (HostLine("n1", 1),)
    assert injob.allocated_hosts({}, "n1") == (HostLine("n1", 1),)


def test_a_hostfile_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "gone"
    with pytest.raises(SchedulerError, match=f"cannot read PE_HOSTFILE, {path}, on n1: No such file") as caught:
        injob.allocated_hosts({"PE": "mpi", "PE_HOSTFILE": str(path)}, "n1")
    assert caught.value.why
    assert caught.value.hint


def test_what_qrsh_has_started_has_no_hostfile() -> None:
    with pytest.raises(SchedulerError, match=r"PE_HOSTFILE is not set on n2, .* parallel environment mpi") as caught:
        injob.allocated_hosts({"PE": "mpi", "NSLOTS": "4"}, "n2")
    assert "gridtf_join" in caught.value.hint


# --- what they have room for


def test_a_slot_is_a_cpu_and_a_task() -> None:
    assert shape(hosts([HostLine("n1", 4), HostLine("n2", 2)], {})) == [("n1", 4, 0, 4), ("n2", 2, 0, 2)]


def test_tasks_of_several_cpus() -> None:
    assert shape(hosts([HostLine("n1", 4), HostLine("n2", 5)], {"cpus_per_task": 2})) == [
        ("n1", 2, 0, 4),
        ("n2", 2, 0, 5),
    ]


def test_slots_of_tasks_that_ride_along_are_not_there_for_others() -> None:
    values = {"tasks": {"ps": {"count": 1, "cpus": 3}}}
    assert [host.slots for host in hosts([HostLine("n1", 4), HostLine("n2", 4)], values)] == [3, 2]


def test_a_host_for_the_script_alone_has_no_tasks() -> None:
    assert [host.name for host in hosts([HostLine("n1", 0), HostLine("n2", 4)], {})] == ["n2"]


def test_no_more_tasks_a_host_than_asked_for_in_a_script_of_ones_own() -> None:
    assert [host.slots for host in hosts([HostLine("n1", 4), HostLine("n2", 1)], {"tasks_per_node": 2})] == [2, 1]


@pytest.mark.parametrize(
    ("lines", "nodes", "expected"),
    [
        ([HostLine("n1", 3), HostLine("n2", 1)], 4, [3, 1]),
        ([HostLine("n1", 4)], 4, [4]),
        ([HostLine("n1", 2), HostLine("n2", 1)], "2-4", [2, 1]),
        ([HostLine("n1", 4), HostLine("n2", 1)], 4, [1, 1]),  # more than was asked for
        ([HostLine("n1", 3)], "2-4", [3]),
    ],
)
def test_slots_may_be_on_fewer_hosts_than_asked_for(lines: list[HostLine], nodes: Any, expected: list[int]) -> None:
    assert [host.slots for host in hosts(lines, {"nodes": nodes, "tasks_per_node": 1})] == expected


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 7, 11])
@pytest.mark.parametrize("more", [{}, {"nodes": 8}, {"cpus_per_task": 2}], ids=["plain", "nodes", "cpus"])
def test_a_count_that_tasks_per_node_does_not_divide(workers: int, more: dict[str, Any]) -> None:
    """All of what gridtf has asked for is used, however few hosts it lies on."""
    values = {"tasks_per_node": 2, "tasks": {"worker": {"count": workers}}, **more}
    (low, high), per_task = (asked_slots(values).low, asked_slots(values).high), asked_slots(values).per_task
    assert low == high == workers * per_task
    assert [host.slots for host in hosts([HostLine("n1", low)], values)] == [workers]
    if workers > 2:
        spread = [HostLine("n1", low - per_task), HostLine("n2", per_task)]
        assert [host.slots for host in hosts(spread, values)] == [workers - 1, 1]


def asked_slots(values: dict[str, Any]) -> Slots:
    wanted = spec(**values)
    asked = request(wanted)
    return slots(wanted, asked, needs(wanted, asked))


def test_cores_that_the_job_is_bound_to() -> None:
    assert [host.cpus for host in hosts([HostLine("n1", 4, cores=8)], {"gpus_per_task": 1})] == [8]


@pytest.mark.parametrize(
    ("asked", "values", "expected"),
    [
        pytest.param({"gpu": ResourceRequest(1, PER_SLOT)}, {}, [2, 1], id="per-slot"),
        pytest.param({"gpu": ResourceRequest(2, PER_SLOT)}, {"gpus_per_task": 1}, [4, 2], id="what-was-asked-counts"),
        pytest.param({"gpu": ResourceRequest(4, PER_HOST)}, {}, [4, 4], id="per-host"),
        pytest.param({"gpu": ResourceRequest(4, PER_JOB)}, {}, [4, 0], id="per-job"),
        pytest.param({"ngpus": ResourceRequest(1, PER_SLOT)}, {"gpu_resource": "ngpus"}, [2, 1], id="another-name"),
        pytest.param({"gpu": ResourceRequest(1, NO)}, {"gpus_per_task": 2}, [4, 2], id="not-consumable"),
        pytest.param({}, {"gpus_per_node": 3}, [3, 3], id="told-per-node"),
        pytest.param({}, {"gpus_per_task": 2}, [4, 2], id="told-per-task"),
        pytest.param({"h_rt": ResourceRequest(60, NO)}, {}, [0, 0], id="none"),
    ],
)
def test_gpus(asked: Mapping[str, ResourceRequest], values: dict[str, Any], expected: list[int]) -> None:
    assert [host.gpus for host in hosts([HostLine("n1", 2), HostLine("n2", 1)], values, asked)] == expected


@pytest.mark.parametrize(
    ("values", "asked", "there", "note"),
    [
        ({}, {}, ("0", "1"), "host n1 has 2 GPUs, and no task gets one: the job has asked Grid Engine for no gpu; "),
        ({"gpu_resource": "cards"}, {}, ("0",), "for no cards; "),
        ({}, {}, (), ""),
        ({}, {"gpu": ResourceRequest(1, PER_SLOT)}, ("0",), ""),
        ({"gpus_per_node": 0}, {}, ("0",), ""),  # it was said
        ({"gpus_per_task": 1}, {}, ("0",), ""),
    ],
)
def test_gpus_that_nobody_has_asked_for(
    values: dict[str, Any], asked: Mapping[str, ResourceRequest], there: tuple[str, ...], note: str
) -> None:
    wanted = spec(**values)
    given = injob.allocation([HostLine("n1", 4)], wanted, lambda: asked)
    said = injob.unused_gpus(given, wanted, lambda: there)
    assert note in said
    assert bool(note) == bool(said)


def test_gpus_while_qmaster_does_not_answer() -> None:
    def silent() -> Mapping[str, ResourceRequest]:
        raise SchedulerError("qmaster does not answer")

    found = injob.allocation([HostLine("n1", 2)], spec(gpus_per_task=1), silent)
    assert [host.gpus for host in found.hosts] == [2]


def test_requests_are_read_from_qstat() -> None:
    text = """<?xml version='1.0'?>
<detailed_job_info><djob_info><element><JB_job_number>12</JB_job_number>
  <JB_hard_resource_list>
    <qstat_l_requests><CE_name>gpu</CE_name><CE_stringval>2</CE_stringval><CE_doubleval>2.000000</CE_doubleval>
      <CE_consumable>1</CE_consumable></qstat_l_requests>
    <qstat_l_requests><CE_name>h_rt</CE_name><CE_stringval>60</CE_stringval><CE_doubleval>60.000000</CE_doubleval>
      <CE_consumable>0</CE_consumable></qstat_l_requests>
    <qstat_l_requests><CE_name>arch</CE_name><CE_stringval>lx-amd64</CE_stringval></qstat_l_requests>
  </JB_hard_resource_list></element></djob_info></detailed_job_info>"""
    assert query.parse_requests(text) == {"gpu": ResourceRequest(2, PER_SLOT), "h_rt": ResourceRequest(60, NO)}
    with pytest.raises(SchedulerError, match="XML"):
        query.parse_requests("error: denied")


def test_requests_as_open_cluster_scheduler_keeps_them() -> None:
    # in a list for the whole job, or for its first host and the others (its source; not seen live)
    one = (
        "<qstat_l_requests><CE_name>{}</CE_name><CE_doubleval>{}</CE_doubleval><CE_consumable>1</CE_consumable>"
        "</qstat_l_requests>"
    )
    sets = "".join(
        f"<ulong_sublist><JRS_scope>{scope}</JRS_scope><JRS_hard_resource_list>{one.format(*pair)}"
        "</JRS_hard_resource_list></ulong_sublist>"
        for scope, pair in enumerate((("gpu", "1.000000"), ("a", "inf"), ("b", "nan")))
    )
    text = f"<detailed_job_info><JB_request_set_list>{sets}</JB_request_set_list></detailed_job_info>"
    assert query.parse_requests(text) == {"gpu": ResourceRequest(1, PER_SLOT)}


def test_the_variables_that_a_job_was_submitted_with() -> None:
    text = """<detailed_job_info><djob_info><element><JB_env_list>
  <job_sublist><VA_variable>CUDA_VISIBLE_DEVICES</VA_variable><VA_value>3</VA_value></job_sublist>
  <job_sublist><VA_variable>EMPTY</VA_variable></job_sublist></JB_env_list></element></djob_info></detailed_job_info>"""
    assert query.parse_variables(text) == {"CUDA_VISIBLE_DEVICES": "3", "EMPTY": ""}


# --- which job


def test_identity(tmp_path: Path) -> None:
    (tmp_path / "config").touch()
    os.utime(tmp_path / "config", ns=(5, 5))
    told = {"JOB_ID": "12", "SGE_TASK_ID": "undefined", "RESTARTED": "1", "SGE_JOB_SPOOL_DIR": str(tmp_path)}
    assert injob.identity(told) == {"job_id": "12", "restarts": "1-5"}
    assert injob.identity({**told, "SGE_TASK_ID": "3"}) == {"job_id": "12.3", "restarts": "1-5", "element": "3"}
    assert injob.identity({"JOB_ID": "12"}) == {"job_id": "12", "restarts": "0-0"}
    named = injob.identity({"JOB_ID": "12", "JOB_NAME": "mine.sh"})
    assert named == {"job_id": "12", "restarts": "0-0", "job_name": "mine.sh"}


def test_the_name_of_this_host_is_not_taken_from_elsewhere() -> None:
    here = os.uname().nodename
    assert injob.this_host({"HOSTNAME": "login"}) == here
    assert injob.this_host({}) == here
    assert injob.this_host({"HOSTNAME": here.split(".")[0]}) == here.split(".")[0]


# --- agents


def test_the_words_for_qrsh() -> None:
    words = injob.qrsh_command("/sge/bin/qrsh", "n2", CALL)
    assert words[:6] == ["/sge/bin/qrsh", "-inherit", "-noshell", "-v", "GRIDTF_ENVIRONMENT=1", "n2"]
    assert words[-6:] == ["python", "-c", "a = 1\nb", "n2", "/runs/a", "1"]


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
def test_what_qrsh_means(code: int, line: str, what: str, hint: str) -> None:
    end = injob.agent_end("n2", "mpi", code, ["gridtf: agent on n2: something", 'error: about host "n22"', line])
    assert end.error is not None
    assert what in end.error.what
    assert end.error.why == line
    assert hint in end.error.hint
    assert isinstance(end.error, HostLostError) == (code == 0)


def test_a_hang_up_is_the_death_of_what_stood_above_the_agent() -> None:
    error = injob.agent_end("n2", "mpi", 129, []).error
    assert error is not None
    assert error.what.startswith("what had started the agent on host n2 was killed: its sge_shepherd, or all")


def test_the_agents_own_exit_codes_pass_through() -> None:
    assert injob.agent_end("n2", "mpi", 70, []).code == 70
    assert injob.agent_end("n2", "mpi", 70, []).error is None
    assert injob.agent_end("n2", "mpi", 137, []).code == -9


# --- the end

ROWS = [Row("8", "r"), Row("9", "dr"), Row("10", "dr", "3"), Row("10", "r", "4")]


@pytest.mark.parametrize(
    ("job_id", "element", "limits", "expected"),
    [
        ("9", "", [], (CANCELLED, "deleted with qdel")),
        ("8", "", ["h_rt"], (TIMEOUT, "the walltime is over (h_rt)")),
        ("8", "", [], (TIMEOUT, "a limit of queue all.q is reached, such as h_rt")),
        ("10", "3", [], (CANCELLED, "deleted with qdel")),
        ("10", "4", ["h_rt"], (TIMEOUT, "the walltime is over (h_rt)")),
        ("11", "", [], None),
    ],
)
def test_why_it_ends(job_id: str, element: str, limits: list[str], expected: tuple[str, str] | None) -> None:
    status = injob.reason_in_queue(row_of(ROWS, ".".join(filter(None, (job_id, element)))), limits, "all.q")
    assert (status and (status.state, status.reason)) == expected


def test_a_deleted_job_is_known_by_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(job_id: str, *, limit: float) -> None:
        raise SchedulerError("qstat -j does not answer")

    monkeypatch.setattr(query, "own_row", lambda job_id, which, *, limit: row_of(ROWS, job_id))
    monkeypatch.setattr(query, "job_requests", silent)
    told = injob.termination_reason("9", "all.q")
    assert told is not None
    assert told.reason == "deleted with qdel"
    assert injob.termination_reason("8", "all.q") is None
