"""Inside a Slurm job: the allocation from the environment, the srun step, and srun's output when agents have ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from gridtf import schedulers
from gridtf.errors import CleanedUpError, PlacementError, SchedulerError, SpecError
from gridtf.jobspec.spec import JobSpec
from gridtf.schedulers.api import AgentCall, AgentEnd, Allocation, Host, JobIdentity, Parent
from gridtf.schedulers.slurm import injob, scheduler
from gridtf.schedulers.slurm.injob import allocation
from tests.support.fixtures import Program
from tests.support.rendering import plan

CALL = AgentCall(
    ("/runs/a", "1"),
    lambda arguments, gpus=None: 0,
    ("python", "-c", "code", "supervisor"),
    Path("/runs/a/agents.log"),
)
BATCH = {
    "SLURM_JOB_ID": "7",
    "SLURMD_NODENAME": "n1",
    "SLURM_JOB_NODELIST": "n[1-3,10]",
    "SLURM_JOB_CPUS_PER_NODE": "4(x2),2,8",
    "SLURM_TASKS_PER_NODE": "2(x2),1,2",
}


def no_query(job: str) -> Mapping[str, int]:
    raise AssertionError("the controller need not be queried")


def hosts(environ: Mapping[str, str], query: object = no_query, **spec: object) -> tuple[Host, ...]:
    request = scheduler.login.resolve(JobSpec.from_dict({"command": ["x"], **spec}), in_job=True)
    return allocation(environ, request, query).hosts  # type: ignore[arg-type]


def test_allocation_from_the_environment() -> None:
    assert hosts(BATCH) == (
        Host("n1", 2, 0, 4, "n1"),
        Host("n2", 2, 0, 4, "n2"),
        Host("n3", 1, 0, 2, "n3"),
        Host("n10", 2, 0, 8, "n10"),
    )


def test_tasks_per_node_of_the_specification_sets_the_slots() -> None:
    assert [host.slots for host in hosts(BATCH, tasks_per_node=6)] == [6, 6, 6, 6]


@pytest.mark.parametrize(("text", "count"), [("2", 2), ("a100:4", 4), ("a100:2,v100:1", 3)])
def test_gpus_per_node_with_types(text: str, count: int) -> None:
    assert [host.gpus for host in hosts({**BATCH, "SLURM_GPUS_PER_NODE": text})] == [count] * 4


@pytest.mark.parametrize("more", [{"SLURM_GPUS": "5"}, {"SLURM_GPUS_PER_TASK": "1"}, {"SLURM_JOB_GPUS": "0,1"}])
def test_gpus_that_may_differ_by_host_are_queried(more: dict[str, str]) -> None:
    queried = []

    def query(job: str) -> Mapping[str, int]:
        queried.append(job)
        return {"n1": 3, "n2": 2}

    assert [host.gpus for host in hosts({**BATCH, **more}, query)] == [3, 2, 0, 0]
    assert queried == ["7"]


def test_gpus_are_queried_in_a_step_without_any() -> None:
    assert hosts({**BATCH, "SLURM_GPUS_PER_NODE": "0"}, lambda job: {"n2": 4})[1].gpus == 4


def test_gpus_are_queried_in_the_shell_of_an_salloc() -> None:
    elsewhere = {name: text for name, text in BATCH.items() if name != "SLURMD_NODENAME"}
    assert hosts(elsewhere, lambda job: {"n2": 4})[1].gpus == 4


def test_without_a_controller_all_hosts_have_the_gpus_of_the_first() -> None:
    def query(job: str) -> Mapping[str, int]:
        raise SchedulerError("down")

    assert {host.gpus for host in hosts({**BATCH, "SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_GPUS": "0,1"}, query)} == {2}


def test_fewer_gpus_than_requested() -> None:
    with pytest.raises(PlacementError, match="4 GPUs a node are requested, but this job has 2 on n1"):
        hosts({**BATCH, "SLURM_GPUS_PER_NODE": "2"}, gpus_per_node=4)
    with pytest.raises(PlacementError, match="this job has 0 on n1"):
        hosts(BATCH, gpus_per_node=1)


def test_fewer_nodes_than_requested() -> None:
    with pytest.raises(PlacementError, match=r"9 nodes are requested, but this job has \d: n1, n2"):
        hosts(BATCH, nodes=9)
    assert hosts(BATCH, nodes="1-9")


def test_more_tasks_per_node_than_gpus_are_refused() -> None:
    four = {**BATCH, "SLURM_GPUS_PER_NODE": "4"}
    with pytest.raises(PlacementError, match="16 tasks x 1 GPUs need more than this job has on n1, 4"):
        hosts(four, tasks_per_node=16)
    with pytest.raises(PlacementError, match="4 tasks x 2 GPUs"):
        hosts(four, tasks_per_node=4, gpus_per_task=2)
    with pytest.raises(PlacementError, match="this job has on n3, 1"):
        hosts({**BATCH, "SLURM_GPUS": "7"}, lambda job: {"n1": 2, "n2": 2, "n3": 1, "n10": 2}, tasks_per_node=2)
    assert [host.slots for host in hosts(four, tasks_per_node=4)] == [4, 4, 4, 4]
    assert [host.slots for host in hosts(four, tasks_per_node=16, gpus_per_task=0)] == [16, 16, 16, 16]


def test_missing_nodelist_is_an_error() -> None:
    with pytest.raises(SchedulerError, match="SLURM_JOB_NODELIST is not set"):
        hosts({"SLURM_JOB_ID": "7"})


HET = {
    "SLURM_JOB_ID": "7",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "n[1-2]",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "c1",
    "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_0": "4(x2)",
    "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1": "6",
    "SLURM_TASKS_PER_NODE_HET_GROUP_0": "2(x2)",
    "SLURM_TASKS_PER_NODE_HET_GROUP_1": "2",
    "SLURM_GPUS_PER_NODE_HET_GROUP_0": "2",
}
PS_ELSEWHERE = {"tasks": {"ps": {"count": 2, "partition": "cpu"}}}


def test_components_of_a_heterogeneous_job() -> None:
    assert hosts({**HET, "SLURMD_NODENAME": "n1"}, **PS_ELSEWHERE) == (
        Host("n1", 2, 2, 4, "n1", 0),
        Host("n2", 2, 2, 4, "n2", 0),
        Host("c1", 2, 0, 6, "c1", 1),
    )


def test_fewer_components_than_requested() -> None:
    with pytest.raises(PlacementError, match="this job has 1"):
        hosts(BATCH, **PS_ELSEWHERE)


# --- the step


def test_srun_command_starts_one_agent_per_node() -> None:
    made = (Host("n1", 2, 2, 4), Host("n2", 2, 3, 4))
    words = injob.srun_command(made, CALL, {})
    assert words[0] == "srun"
    assert words[-7:] == [*CALL.command, "@SLURMD_NODENAME", *CALL.arguments]
    assert {
        "--nodes=2",
        "--ntasks=2",
        "--ntasks-per-node=1",
        "--cpus-per-task=4",
        "--export=ALL",
        "--wait=0",
        "--kill-on-bad-exit=1",
        "--cpu-bind=none",
        "--mem=0",
    } <= set(words)
    assert "--overlap" not in words


def test_srun_command_requests_the_gpus_of_the_hosts() -> None:
    inside = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    same = (Host("n1", 2, 2, 4), Host("n2", 2, 2, 4))
    assert {"--gpus-per-node=2", "--overlap"} <= set(injob.srun_command(same, CALL, inside))
    different = injob.srun_command((Host("n1", 2, 2, 4), Host("n2", 2, 3, 4)), CALL, inside)
    assert "--gpus=5" in different
    assert "--overlap" not in different
    none = injob.srun_command((Host("n1", 2, 0, 4), Host("n2", 2, None, 4)), CALL, inside)
    assert "--overlap" in none
    assert not [word for word in none if word.startswith("--gpus")]


def test_srun_command_of_a_batch_script_does_not_overlap_with_other_steps() -> None:
    batch_script_of_26_05 = {"SLURM_STEP_ID": "-5"}
    assert "--overlap" not in injob.srun_command((Host("n1", 2, 2, 4),), CALL, batch_script_of_26_05)


LOST = {"SLURM_JOB_NUM_NODES": "3"}
IN_STEP = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_GPUS": "0,1"}


@pytest.mark.parametrize(
    ("environ", "restarted", "gpus", "what"),
    [
        (IN_STEP, False, 2, "the one that gridtf runs in"),
        ({"SLURM_STEP_NUM_TASKS": "1"}, False, 2, None),
        (IN_STEP, False, 0, None),
        (LOST, True, 2, "the one that has lost a host"),
        (LOST, False, 2, None),
        ({"SLURM_JOB_NUM_NODES": "2"}, True, 2, None),
    ],
)
def test_step_that_holds_gpus(environ: dict[str, str], restarted: bool, gpus: int, what: str | None) -> None:
    held = injob.held_gpus((Host("n1", 2, gpus), Host("n2", 2, gpus)), CALL.replace(restarted=restarted), environ)
    assert (held and held[0]) == what


@pytest.mark.parametrize(
    ("printed", "old"),
    [
        ("slurm-wlm 20.11.4", "Slurm 20.11"),
        ("slurm 21.08.8-2", "Slurm 21.08"),
        ("slurm-wlm 22.05.8", ""),
        ("slurm 26.05.5", ""),
        ("", ""),
    ],
)
def test_versions_whose_steps_cannot_share_gpus(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, old: str
) -> None:
    program("srun", f"echo {printed}")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert scheduler.login.commands.without_shared_gpus() == old
    made = Host("n1", 2, 2), Host("n2", 2, 2)
    if old:
        with pytest.raises(PlacementError, match=f"{old} does not share GPUs between steps, and the one that gridtf"):
            scheduler.injob.start_agents(Allocation(made), CALL, IN_STEP)


def test_srun_command_without_cpus_where_hosts_differ() -> None:
    assert not [
        word for word in injob.srun_command((Host("n1", 1, 0, 4), Host("n2", 1, 0, 2)), CALL, {}) if "cpus" in word
    ]


def test_srun_command_over_two_components() -> None:
    words = injob.srun_command(hosts({**HET, "SLURMD_NODENAME": "n1"}, **PS_ELSEWHERE), CALL, {})
    first, second = words[: words.index(":")], words[words.index(":") :]
    assert {"--het-group=0", "--nodes=2", "--gpus-per-node=2", "--cpus-per-task=4", "--mem=0"} <= set(first)
    assert {"--het-group=1", "--nodes=1", "--cpus-per-task=6", "--mem=0"} <= set(second)
    assert first[-2:] == second[-2:] == list(CALL.arguments)


def test_srun_environment_omits_options_of_the_training_tasks() -> None:
    kept = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n1",
        "SLURM_CPUS_ON_NODE": "4",
        "SLURM_CONF": "/c",
        "PATH": "/bin",
    }
    names = (
        "CPUS_PER_TASK NTASKS NTASKS_PER_NODE GPUS_PER_TASK GPU_BIND EXPORT_ENV MEM_PER_CPU EXACT CPU_BIND WAIT NPROCS "
        "CLUSTERS"
    )
    omitted = {f"SLURM_{name}": "1" for name in names.split()}
    assert injob.srun_environment({**kept, **omitted}) == kept
    heterogeneous = {**kept, "SLURM_HET_SIZE": "2"}
    assert injob.srun_environment({**heterogeneous, "SLURM_JOB_NUM_NODES": "2"}) == heterogeneous
    assert injob.srun_environment({**kept, "SLURM_JOB_NUM_NODES": "2"}) == {**kept, "SLURM_JOB_NUM_NODES": "2"}


def test_tasks_do_not_inherit_the_rank_variables_of_their_agent() -> None:
    """jax.distributed and TensorFlow's SlurmClusterResolver would read them, and take a task for one of the agents."""
    place = (
        "SLURM_PROCID SLURM_LOCALID SLURM_NTASKS SLURM_NPROCS SLURM_STEP_NUM_TASKS SLURM_TASKS_PER_NODE "
        "SLURM_STEP_TASKS_PER_NODE SLURM_NTASKS_PER_NODE SLURM_GTIDS SLURM_TASK_PID SLURM_CPUS_PER_TASK "
        "SLURM_CPU_BIND_TYPE SLURM_TRES_PER_TASK SLURM_NTASKS_HET_GROUP_0 PMI_RANK PMI_SIZE PMIX_RANK "
        "OMPI_COMM_WORLD_SIZE OMPI_MCA_orte_hnp_uri MPI_LOCALRANKID"
    )
    kept = (
        "SLURM_JOB_ID SLURM_STEP_ID SLURM_STEP_NODELIST SLURM_NODEID SLURM_JOB_NUM_NODES SLURM_CPUS_ON_NODE PATH "
        "SLURM_ARRAY_TASK_ID SLURM_STEP_GPUS SLURMD_NODENAME OMPI_MCA_btl"
    )
    environ = dict.fromkeys(f"{place} {kept}".split(), "1")
    assert schedulers.without_place(environ).keys() == set(kept.split())
    # tasks of the local scheduler may run inside a step of Slurm, too; outside, Slurm's names mean nothing
    del environ["SLURM_JOB_ID"]
    assert {name for name in environ if name.startswith("SLURM")} < schedulers.without_place(environ).keys()
    assert "PMI_RANK" not in schedulers.without_place(environ)


# Output of srun 22.05.
KILLED = [
    "srun: error: n3: task 2: Killed",
    "srun: launch/slurm: _step_signal: Terminating StepId=1.1",
    "slurmstepd-n1: error: *** STEP 1.1 ON n1 CANCELLED AT 2026-11-21T10:50:13 ***",
    "srun: error: n2: task 1: Exited with exit code 3",
]


@pytest.mark.parametrize(
    ("code", "printed", "end"),
    [
        (137, KILLED, AgentEnd(-signal.SIGKILL, "n3")),
        (70, ["srun: error: n2: task 1: Exited with exit code 70"], AgentEnd(70, "n2")),
        (0, [], AgentEnd(0, None)),
        (
            1,
            ["srun: error: Unable to create step for job 7: More processors requested than permitted"],
            AgentEnd(
                1, None, ("srun: error: Unable to create step for job 7: More processors requested than permitted",)
            ),
        ),
    ],
)
def test_parse_failure_finds_the_first_agent_that_ended(code: int, printed: list[str], end: AgentEnd) -> None:
    assert injob.parse_failure(code, printed) == end


# Its output after scancel of the step only.
ABORTED = [
    "srun: Job step aborted: Waiting up to 7 seconds for job step to finish.",
    "slurmstepd-n1: error: *** STEP 16.0 ON n1 CANCELLED AT 2026-11-21T23:45:52 ***",
    "srun: error: n2: task 1: Killed",
]
NODE_FAILED = [
    ABORTED[0],
    "slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-21T23:45:52 DUE TO NODE FAILURE, SEE LOG ***",
]
NOT_LAUNCHED = [
    "srun: error: Task launch for StepId=10.0 failed on node n4: Protocol authentication error",
    "srun: error: Application launch failed: Protocol authentication error",
    *ABORTED,
]
# Of srun 24.11 with --oom-kill-step.
OUT_OF_MEMORY = [
    "slurmstepd-n2: error: Detected 1 oom_kill event in StepId=2.0. Some of the step tasks have been OOM Killed.",
    "srun: error: n1: task 0: Killed",
    "srun: Terminating StepId=2.0",
    "srun: error: n2: task 1: Out Of Memory",
]
FULL = "the job ran out of memory on host n2, and the kernel killed the agent there"


@pytest.mark.parametrize(
    ("code", "printed", "what", "why"),
    [
        (-signal.SIGKILL, [], "srun, which had started the agents, was killed by SIGKILL", ""),
        (137, ABORTED, "the agents' job step 16.0 was cancelled", ""),
        (143, ABORTED[:1], "the agents' job step was cancelled", ""),
        (143, NODE_FAILED, "the agents' job step 7.0 was cancelled", "Slurm's reason: node failure"),
        (253, OUT_OF_MEMORY, FULL, ""),
        (253, OUT_OF_MEMORY[::-1], FULL, ""),
        (253, [*ABORTED, OUT_OF_MEMORY[-1]], FULL, ""),
        (1, NOT_LAUNCHED, "Slurm could not start the agent on host n4", "Protocol authentication error"),
    ],
)
def test_parse_failure_of_srun_or_its_step(code: int, printed: list[str], what: str, why: str) -> None:
    error = injob.parse_failure(code, printed).error
    assert error is not None
    assert (error.what, error.why) == (what, why)


@pytest.mark.parametrize("restarts", [0, 1])
def test_parse_failure_of_a_cancelled_step_that_a_host_ended_first(restarts: int) -> None:
    """Seen on a busy machine: srun learns of the end on that host before it learns that the step is cancelled."""
    printed = ["srun: error: n2: task 1: Killed", *ABORTED]
    end = injob.parse_failure(137, printed, restarts)
    assert (end.host, end.code) == (None, -signal.SIGTERM)
    assert end.error is not None
    assert end.error.what == "the agents' job step 16.0 was cancelled"


@pytest.mark.parametrize("why", ["Job credential revoked", "Invalid job credential"])
def test_parse_failure_of_a_restarted_job_tells_late_clean_up(why: str) -> None:
    late = injob.parse_failure(137, KILLED, restarts=1)
    assert isinstance(late.error, CleanedUpError)
    assert late.error.host == late.host
    revoked = [f"srun: error: Task launch for StepId=2.0 failed on node n3: {why}"]
    error = injob.parse_failure(1, revoked, restarts=1).error
    assert isinstance(error, CleanedUpError)
    assert error.host == "n3"
    assert not isinstance(injob.parse_failure(1, revoked).error, CleanedUpError)
    assert injob.parse_failure(137, KILLED).error is None
    assert injob.parse_failure(75, ["srun: error: n3: task 2: Exited with exit code 75"], restarts=1) == AgentEnd(
        75, "n3"
    )


def test_parse_failure_ignores_a_cancelled_step_after_an_agent_failed() -> None:
    assert injob.parse_failure(75, ["srun: error: n3: task 2: Exited with exit code 75", *ABORTED]).error is None


def test_this_host_is_slurm_s_name_of_the_node() -> None:
    assert scheduler.injob.this_host({"SLURMD_NODENAME": "n7"}) == "n7"
    assert scheduler.injob.this_host({}) == os.uname().nodename


def test_identity() -> None:
    assert scheduler.injob.identity({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"}) == JobIdentity("7", restarts="2")
    element = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    assert scheduler.injob.identity(element) == JobIdentity("7_3", element="3")


def test_parent_lost_is_a_killed_slurmstepd() -> None:
    assert "slurmstepd, which had started the job script on" in scheduler.injob.parent_lost(Parent(71, "slurmstepd"))
    assert scheduler.injob.parent_lost(Parent(71, "bash")) == ""


@pytest.mark.parametrize(
    ("native", "expected"),
    [
        ([], ""),
        (["--qos=high"], ""),
        (["--array=0-2"], "0 1 2"),
        (["-a 1,5-9:2%2"], "1 5 7 9"),
        (["--array 3"], "3"),
        (["--array=0-1", "--array=7"], "7"),
        (["--array='0-1'  # two"], "0 1"),
        (['--comment="--array=0-1"'], ""),
    ],
)
def test_array_elements_of_native_options(native: list[str], expected: str) -> None:
    assert plan("slurm", native=native).request.elements == tuple(expected.split())


@pytest.mark.parametrize("text", ["--array=a", "--array=3-1", "--array=0-4:0", "--array=1,,2", "--array=0-99999999"])
def test_invalid_array_index_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="is not an array index"):
        plan("slurm", native=[text])


def test_each_array_element_has_its_own_log() -> None:
    made = plan("slurm", run_dir="/runs/100%", native=("--array=0-2",))
    assert "--output=/runs/100%%/array/%a/job.log" in scheduler.login.submit_command(made)


def test_srun_command_of_a_job_that_outlives_lost_hosts() -> None:
    hosts = (Host("n1", 1), Host("n3", 1))
    words = injob.srun_command(hosts, CALL.replace(outlives=True), {})
    assert {"--nodes=2", "--nodelist=n1,n3", "--no-kill"} <= set(words)
    assert "--overlap" not in words
    again = injob.srun_command(hosts, CALL.replace(outlives=True, restarted=True), {})
    assert set(again) - set(words) == {"--overlap"}
