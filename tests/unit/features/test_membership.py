"""Whether tasks join TensorFlow's cluster: what the agent sees of them, and what the launcher makes of it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from gridtf.bootstrap.judge.evidence import STOP, Evidence
from gridtf.bootstrap.judge.verdict import Verdict, conclude
from gridtf.features.membership import Absent, InAgent, absent, notes, separate
from gridtf.states import ALONE, ELSEWHERE, JOINED, LOADED, JobState, TaskState
from tests.support.features import agent_view
from tests.support.plans import hosts, task, task_plan
from tests.support.system import FakeSystem

TENSORFLOW = "7f00-7f01 r-xp 0 fe:00 1  /lib/tensorflow/libtensorflow_framework.so.2\n"


PIDS = {"worker:0": 10, "worker:1": 11, "ps:0": 12}


class Host:
    """Two workers, with the ports 2000 and 2001, and ps:0, which is no member of the cluster; MASTER_PORT is 2009."""

    def __init__(self, folder: Path, *, mpi: str = "") -> None:
        self.system = FakeSystem()
        roles: dict[str, Any] = {"worker": {"count": 2}, "ps": {"count": 1, "env": {"TF_CONFIG": ""}}}
        plan = task_plan(folder / "run", hosts(0, slots=3), tasks=roles, serve=["ps"])
        view = agent_view(plan.replace(request=plan.request.replace(mpi=mpi)), self.system)
        view.conversation.rendezvous = {"master_port": 2009}
        self.tasks = view.state.supervisor.tasks
        for name, pid in PIDS.items():
            self.tasks[name].pid = pid
        self.ports = view.ports
        self.membership = InAgent(view)
        self.system.files = {12: TENSORFLOW}

    def look(self, seconds: float = 0.0) -> bool:
        self.system.sleep(seconds)
        return self.membership.view.state.supervisor.note(self.membership.look())

    @property
    def pause(self) -> float:
        return self.membership.due - self.system.monotonic()

    @property
    def seen(self) -> list[object]:
        return [self.tasks[name].notes.get("tensorflow", "") for name in PIDS]

    @property
    def listens(self) -> list[object]:
        return [self.tasks[name].notes.get("listens", ()) for name in PIDS]


def test_a_task_is_seen_to_load_tensorflow_then_to_open_its_port(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert not host.look()
    host.system.files[10] = TENSORFLOW
    assert host.look(1)
    assert host.seen == [LOADED, "", ""]
    host.system.opened = {2001}
    assert host.look(1)
    assert host.seen == [LOADED, JOINED, ""]
    assert not host.look(1)
    host.system.opened = set()
    assert host.seen == [LOADED, JOINED, ""]  # once is enough


def test_ports_of_its_own_are_seen_of_a_task_that_has_not_joined(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.system.files = {10: TENSORFLOW, 11: TENSORFLOW}
    host.system.opened = {2001}
    host.system.own_ports = {10: [4010], 11: [4011]}
    assert host.look(1)
    assert host.listens == [[4010], (), ()]  # worker:1 has joined
    host.system.own_ports = {}
    assert not host.look(1)
    assert host.tasks["worker:0"].record()["listens"] == [4010]  # once is enough


def test_the_end_of_a_task_shows_a_port_that_was_open_between_two_looks(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.system.files.update({10: TENSORFLOW, 11: TENSORFLOW})
    host.look()
    host.system.closed = {2000}
    host.tasks["worker:0"].ended = 1.0
    assert host.look()  # at once
    assert host.seen == [JOINED, LOADED, ""]


def test_looks_become_rarer_and_end_when_all_tasks_have_joined(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.look()
    assert host.pause == 0.25
    assert not host.look(0.1)
    host.look(600)
    assert host.pause == 30.0
    host.system.opened = {host.ports["worker:0"], host.ports["worker:1"]}
    assert host.look(30)
    host.system.sleep(100)
    assert host.pause == float("inf")
    assert not host.look()


def test_a_task_that_could_not_be_started_is_not_looked_for_all_the_time(tmp_path: Path) -> None:
    host = Host(tmp_path)
    for each in host.tasks.values():
        each.pid = None
    assert not host.look(1)
    assert host.pause == 0.25


JAX, TORCH = "/site-packages/jaxlib/libjax_common.so", "/site-packages/torch/lib/libtorch_cpu.so"
MPI4PY, HOROVOD = "/site-packages/mpi4py/MPI.mpich.cpython-311-x86_64-linux-gnu.so", "/horovod/tensorflow/mpi_lib.so"
LIBMPI = "/usr/lib/libmpi.so.40"


def loaded(*libraries: str) -> str:
    return "".join(f"7f00-7f01 r-xp 0 fe:00 1  {library}\n" for library in libraries)


@pytest.mark.parametrize(
    ("libraries", "variables", "seen"),
    [
        ((), [], LOADED),
        ((JAX,), [], LOADED),
        ((TORCH,), [], ELSEWHERE),
        ((MPI4PY, LIBMPI), [], ALONE),
        ((LIBMPI,), ["RANK=0", "PMIX_MCA_gds=hash"], ALONE),
        ((HOROVOD,), [], ALONE),
        ((HOROVOD, TORCH), [], ALONE),
        ((LIBMPI, TORCH), [], ELSEWHERE),  # a PyTorch that is linked to it
        ((MPI4PY,), ["HOME=/", "PMI_RANK=1"], ELSEWHERE),  # of a mpirun in the task
        ((LIBMPI,), ["OMPI_COMM_WORLD_RANK=0"], ELSEWHERE),
        ((HOROVOD,), ["HOROVOD_RANK=1"], ELSEWHERE),
        ((HOROVOD,), ["OMPI_COMM_WORLD_RANK=1"], ALONE),  # built without MPI
        ((HOROVOD, "/usr/lib/libmpi.so.40"), ["OMPI_COMM_WORLD_RANK=1"], ELSEWHERE),
        ((MPI4PY, "/usr/lib/libmpi.so.40"), ["HOROVOD_RANK=1"], ALONE),
        ((LIBMPI,), ["PMI_RANK=1", "MPI_LOCALRANKID=0"], ALONE),  # of the mpirun of MPICH
        ((LIBMPI,), ["PMI_RANK=1"], ELSEWHERE),  # of srun --mpi=pmi2
        ((LIBMPI,), ["PMI_RANK=1", "PMIX_RANK=1"], ELSEWHERE),  # of srun --mpi=pmix
        (("/opt/lib/libmpi.so.12",), ["PMI_RANK=1"], ELSEWHERE),
        (("/opt/lib/libmpi.so.12",), ["PMIX_RANK=1", "OMPI_COMM_WORLD_RANK=1"], ALONE),  # of the mpirun of Open MPI
    ],
)
def test_libraries_and_their_starter_show_how_a_task_communicates(
    libraries: tuple[str, ...], variables: list[str], seen: str, tmp_path: Path
) -> None:
    host = Host(tmp_path)
    host.system.files[10] = TENSORFLOW + loaded(*libraries)
    host.system.started_with[10] = ["PATH=/bin", *variables]
    assert host.look()
    assert host.seen == [seen, "", ""]


def test_mpi_is_seen_without_tensorflow_until_the_task_is_seen_to_join(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.system.files.update({10: loaded(MPI4PY), 11: loaded(TORCH)})
    host.system.started_with[10] = [""]
    assert not host.look()  # one without an environment exits
    host.system.started_with[10] = ["PATH=/bin"]
    assert host.look(1)
    assert host.seen == [ALONE, "", ""]
    host.system.files.clear()
    assert not host.look(1)
    assert host.seen == [ALONE, "", ""]  # it exits, and its end is not known yet
    host.system.opened = {2000}
    assert host.look(1)
    assert host.seen == [JOINED, "", ""]


def test_jax_communicates_once_it_listens(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.system.files.update({10: loaded(JAX), 11: loaded(JAX)})
    assert host.look()
    assert host.seen == [LOADED, LOADED, ""]
    host.system.own_ports = {11: [4000]}
    assert host.look(1)
    assert host.seen == [LOADED, ELSEWHERE, ""]
    assert host.listens == [(), (), ()]


def test_an_open_master_port_is_another_way_to_communicate(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.system.files.update({10: TENSORFLOW, 11: TENSORFLOW})
    host.system.opened = {2009}
    assert host.look()
    assert host.seen == [ELSEWHERE, LOADED, ""]


WORKERS = [task("worker:0"), task("worker:1", rank=1), task("ps:0"), task("evaluator:0")]


def records(*seen: str) -> dict[str, Any]:
    names = ("worker:0", "worker:1", "ps:0", "evaluator:0")
    return {name: {"tensorflow": state} for name, state in zip(names, seen, strict=False)}


def test_tasks_train_separately_when_all_have_loaded_tensorflow_and_none_has_joined() -> None:
    found = separate(WORKERS, records(LOADED, LOADED, JOINED, ""))
    assert found is not None
    assert found.ended == "2 workers trained separately: none joined the cluster"
    assert found.running == "2 workers have loaded TensorFlow or JAX, and none has joined the cluster so far"
    with_chief = separate(
        [task("chief:0"), task("worker:0", rank=1)], {name: {"tensorflow": LOADED} for name in ("chief:0", "worker:0")}
    )
    assert with_chief is not None
    assert with_chief.who == "2 tasks"


def test_tasks_that_listen_on_ports_of_their_own_may_have_trained_together() -> None:
    seen = records(LOADED, LOADED)
    seen["worker:1"]["listens"] = [4011, 4012]
    found = separate(WORKERS, seen)
    assert found is not None
    assert found.ended == "2 workers did not join the cluster, and opened ports of their own: worker:1 on 4011, 4012"
    assert found.running.endswith("; of their own, they have opened ports: worker:1 on 4011, 4012")
    assert found.hint.startswith("if they trained together by these, say so: --env TF_CONFIG=")


def test_tasks_that_are_each_a_world_of_mpi_or_horovod_are_told_what_starts_one() -> None:
    found = separate(WORKERS, records(ALONE, ALONE))
    assert found is not None
    assert found.running == "2 workers have loaded MPI or Horovod, to which each of them is rank 0 of 1"
    assert found.ended == "2 workers trained separately: to MPI or Horovod, each was rank 0 of 1"
    assert "add --mpi" in found.hint
    assert separate(WORKERS, records(LOADED, ALONE)) == found
    assert separate(WORKERS, records(ALONE, JOINED)) is None


@pytest.mark.parametrize(
    "seen", [(LOADED, JOINED), (LOADED, ""), ("", ""), (ALONE, ""), (ELSEWHERE, LOADED), (LOADED,), ()]
)
def test_no_warning_where_a_task_joined_or_may_not_train(seen: tuple[str, ...]) -> None:
    assert separate(WORKERS, records(*seen)) is None


def test_no_warning_for_one_training_task_and_for_served_ones() -> None:
    served = [task("chief:0"), task("worker:0", served=True)]
    assert separate(served, {"chief:0": {"tensorflow": LOADED}, "worker:0": {"tensorflow": LOADED}}) is None
    left_out = [task("worker:0", in_cluster=False), task("worker:1", rank=1, in_cluster=False), task("ps:0")]
    assert separate(left_out, records(LOADED, LOADED)) is None


def told(state: JobState, what: str, hint: str, members: list[Any], seen: dict[str, Any]) -> Verdict:
    return conclude(Evidence(STOP, what, hint=hint, state=state), [*notes(WORKERS, members, seen)])


def test_the_warning_is_added_to_the_verdict_on_a_job_that_no_task_has_failed() -> None:
    seen = records(LOADED, LOADED)
    done = told(JobState.COMPLETED, "all training tasks have exited with 0", "x", WORKERS, seen)
    assert done.reason == (
        "all training tasks have exited with 0; 2 workers trained separately: none joined the cluster"
    )
    assert done.hint.startswith("x; on one host, start one task with MirroredStrategy: --workers 1; on several, take")
    late = told(JobState.TIMEOUT, "the walltime is over", "", WORKERS, seen)
    assert late.reason.endswith("; 2 workers have loaded TensorFlow or JAX, and none has joined the cluster so far")
    for state in (JobState.CANCELLED, JobState.FAILED):
        assert told(state, "it has ended", "", WORKERS, seen) == Verdict(state, "it has ended")


def seen_of(*seen: tuple[str, str]) -> dict[str, Any]:
    """State, and what was seen of TensorFlow, of worker:0, worker:1 and ps:0."""
    return {each.name: {"state": state, "tensorflow": of} for each, (state, of) in zip(WORKERS, seen, strict=False)}


RUNS, WAITS = ("RUNNING", JOINED), ("RUNNING", LOADED)


def test_members_that_have_not_opened_their_port_are_named_where_another_one_has() -> None:
    one = absent(WORKERS[:3], seen_of(RUNS, RUNS, ("STOPPED", "")))
    assert one is not None
    assert one.running == "ps:0, a member of the cluster, has not opened its port for TensorFlow"
    assert "in_cluster = false in [tasks.ps]; or " in one.hint
    two = absent(WORKERS[:3], seen_of(RUNS, WAITS, ("RUNNING", "")))
    assert two is not None
    assert two.running == "worker:1, ps:0, members of the cluster, have not opened their ports for TensorFlow"
    assert "in_cluster = false in [tasks.worker], [tasks.ps]; or " in two.hint


@pytest.mark.parametrize(
    "last", [("RUNNING", JOINED), ("RUNNING", ELSEWHERE), ("COMPLETED", LOADED), ("FAILED", ""), ("PENDING", "")]
)
def test_members_that_have_joined_or_ended_keep_nobody_waiting(last: tuple[str, str]) -> None:
    assert absent(WORKERS[:3], seen_of(RUNS, RUNS, last)) is None


def test_no_member_is_missed_where_none_has_joined() -> None:
    assert absent(WORKERS[:3], seen_of(WAITS, WAITS, ("RUNNING", ""))) is None
    assert absent([], seen_of(RUNS, WAITS)) is None


def test_member_that_kept_the_others_waiting_is_in_the_verdict_on_a_timeout_instead_of_more_time() -> None:
    seen = seen_of(RUNS, RUNS, ("STOPPED", ""))
    late = told(JobState.TIMEOUT, "the walltime is over", "request more with --time", WORKERS[:3], seen)
    assert late.reason == f"the walltime is over; {Absent(('ps:0',)).running}"
    assert late.hint == Absent(("ps:0",)).hint
    assert told(JobState.COMPLETED, "done", "", WORKERS[:3], seen) == Verdict(JobState.COMPLETED, "done")


def test_mpi_that_is_loaded_after_tensorflow_is_seen_in_a_world(tmp_path: Path) -> None:
    host = Host(tmp_path, mpi="mpirun")
    host.system.files[10] = TENSORFLOW + loaded(TORCH)
    assert host.look()
    assert host.seen[0] == ELSEWHERE
    host.system.files[10] = TENSORFLOW + loaded(HOROVOD)
    host.system.started_with[10] = ["OMPI_COMM_WORLD_RANK=1"]
    assert host.look(30)
    assert host.seen[0] == ALONE


def test_program_that_an_exception_has_ended_is_ended_where_a_library_would_wait_for_other_tasks(
    tmp_path: Path,
) -> None:
    system = FakeSystem()
    view = agent_view(task_plan(tmp_path / "run", hosts(0, slots=5), tasks={"worker": {"count": 5}}), system)
    view.conversation.rendezvous = {"master_port": 2009}
    computing, starting, *_ = view.state.supervisor.tasks.values()
    for pid, each in enumerate(view.state.supervisor.tasks.values(), 5000):
        each.pid, each.state, each.exception = pid, TaskState.RUNNING, {"pid": pid, "time": system.time()}
        system.alive.add(pid)
        system.files[pid] = loaded(JAX, "/lib/libtensorflow_framework.so.2")  # TensorFlow loads it
    system.files[5004] += loaded(TORCH)
    system.own_ports = {5000: [4000], 5004: [4000]}
    system.connections = {2009: [5001, 5004], 443: [5002]}
    membership = InAgent(view)
    membership.look()
    assert system.sent == []
    system.sleep(16.0)
    system.own_ports[5002] = [4000]  # for what it uploads
    membership.look()
    assert system.sent == [(computing.pid, signal.SIGKILL), (starting.pid, signal.SIGKILL)]
