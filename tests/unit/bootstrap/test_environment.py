"""What a task finds: the whole contract, nothing stale, and its command with the placeholders filled in."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gridtf import contract
from gridtf.bootstrap.plan import rendezvous
from gridtf.bootstrap.plan.environment import HOME, command, placeholders, task_environment
from gridtf.bootstrap.plan.placement import PlacedTask
from gridtf.bootstrap.plan.rendezvous import AttemptPlan, merge
from gridtf.errors import GridtfError
from gridtf.jobspec.placeholders import NAMES, fill
from tests.support.plans import NONCE, hosts, records, task_plan
from tests.support.traps import Traps

TABLES: dict[str, Any] = {"chief": {}, "worker": {"count": 2}, "ps": {"count": 1}, "evaluator": {}}
CLUSTER = {"chief": ["h0:20001"], "worker": ["h0:20002", "h1:20004"], "ps": ["h1:20005"]}
USUAL = {"PATH": "/usr/bin", "HOME": "/home/user"}


@pytest.fixture
def plan(tmp_path: Path) -> AttemptPlan:
    return task_plan(tmp_path / "run", hosts(2, 2, cpus=6), name="digits", tasks=TABLES)


def named(plan: AttemptPlan, name: str) -> PlacedTask:
    return next(task for task in plan.tasks if task.name == name)


def environment(
    plan: AttemptPlan, name: str, base: Mapping[str, str] = USUAL, gpus: tuple[str, ...] = ()
) -> dict[str, str]:
    meeting = merge(plan.tasks, records(plan))
    return task_environment(base, plan, named(plan, name), meeting, gpus)


def argv(plan: AttemptPlan, name: str) -> list[str]:
    return command(
        plan, named(plan, name), merge(plan.tasks, records(plan)), Path("/site/gridtf"), Path("/run:1/python")
    )


# --- the contract


def test_task_environment_of_a_worker(plan: AttemptPlan) -> None:
    run = plan.attempt.run.path
    env = environment(plan, "worker:0", gpus=("1",))
    assert json.loads(env.pop("TF_CONFIG")) == {"cluster": CLUSTER, "task": {"type": "worker", "index": 0}}
    assert env == {
        **USUAL,
        "CUDA_VISIBLE_DEVICES": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TF_GRPC_REUSE_PORT": "1",
        "GRIDTF_RUN_DIR": str(run),
        "GRIDTF_JOB_ID": "4711",
        "GRIDTF_JOB_NAME": "digits",
        "GRIDTF_ATTEMPT": "1",
        "GRIDTF_TASK_TYPE": "worker",
        "GRIDTF_TASK_INDEX": "0",
        "GRIDTF_RENDEZVOUS": str(run / "attempt-1" / "rendezvous.json"),
        "GRIDTF_NONCE": NONCE,
        "GRIDTF_PARAMS": "{}",
        "OUTPUT_DIR": str(run / "output"),
        "OMP_NUM_THREADS": "2",
        "TF_NUM_INTRAOP_THREADS": "2",
        "TF_NUM_INTEROP_THREADS": "2",
        "RANK": "1",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "h0",
        "MASTER_PORT": "30000",
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": "h0:30000",
        "KERAS_DISTRIBUTION_NUM_PROCESSES": "3",
        "KERAS_DISTRIBUTION_PROCESS_ID": "1",
        "PYTHONUNBUFFERED": "1",
    }


@pytest.mark.parametrize("name", ["ps:0", "evaluator:0"])
def test_non_training_tasks_have_no_gpu_and_no_rank(plan: AttemptPlan, name: str) -> None:
    env = environment(plan, name, {**USUAL, "CUDA_VISIBLE_DEVICES": "0,1", "RANK": "5", "LOCAL_RANK": "5"})
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert not env.keys() & {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
    assert env["MASTER_ADDR"] == "h0"


def test_tf_config_of_the_evaluator_has_the_cluster_and_itself(plan: AttemptPlan) -> None:
    config = json.loads(environment(plan, "evaluator:0")["TF_CONFIG"])
    assert config == {"cluster": {**CLUSTER, "evaluator": ["h0:20003"]}, "task": {"type": "evaluator", "index": 0}}


def test_variables_of_an_outer_job_are_replaced(plan: AttemptPlan) -> None:
    stale = {
        "TF_CONFIG": '{"task": {"type": "worker", "index": 99}}',
        "RANK": "7",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "7",
        "LOCAL_WORLD_SIZE": "8",
        "MASTER_ADDR": "elsewhere",
        "MASTER_PORT": "1",
        "CUDA_VISIBLE_DEVICES": "7",
        "GRIDTF_TASK_TYPE": "ps",
        "GRIDTF_TASK_INDEX": "9",
        "GRIDTF_NONCE": "stale",
        "GRIDTF_ATTEMPT": "9",
        "GRIDTF_RENDEZVOUS": "/elsewhere",
        "TF_GRPC_REUSE_PORT": "0",
    }
    for name in ("chief:0", "ps:0"):
        assert environment(plan, name, {**USUAL, **stale}) == environment(plan, name)


def test_contract_task_reads_the_task_environment(plan: AttemptPlan) -> None:
    rendezvous.publish(plan.attempt, plan.job_id, NONCE, merge(plan.tasks, records(plan)))
    found = contract.task(environment(plan, "worker:1", gpus=("GPU-ab", "GPU-cd")))
    assert found == contract.Task(
        type="worker",
        index=1,
        cluster={kind: tuple(members) for kind, members in CLUSTER.items()},
        job_id="4711",
        job_name="digits",
        attempt=1,
        run_dir=plan.attempt.run.path,
        output_dir=plan.attempt.run.output,
        gpus=("GPU-ab", "GPU-cd"),
        rank=2,
        world_size=3,
        outside={"evaluator": ("h0:20003",)},
    )
    assert contract.task(environment(plan, "chief:0")).is_chief
    assert contract.task(environment(plan, "ps:0")).rank is None


def test_parameters_reach_the_task_with_their_types(tmp_path: Path) -> None:
    params = {"lr": 1e-3, "layers": 4, "tag": "é '\"$x", "cache": True}
    own = ["train", "{params}", "--x={{ layers }}"]
    plan = task_plan(tmp_path / "run", hosts(1), params=params, command=own, env={"TAG": "{params.tag}"})
    env = environment(plan, "worker:0", {**USUAL, "GRIDTF_PARAMS": '{"of": "an outer job"}'})
    assert (json.loads(env["GRIDTF_PARAMS"]), env["TAG"]) == (params, params["tag"])
    assert argv(plan, "worker:0") == ["train", "--lr=0.001", "--layers=4", "--tag=é '\"$x", "--cache", "--x=4"]
    rendezvous.publish(plan.attempt, plan.job_id, NONCE, merge(plan.tasks, records(plan)))
    found = contract.task(env).params
    assert (found, [type(value) for value in found.values()]) == (params, [float, int, str, bool])
    assert contract.task({name: text for name, text in env.items() if name != "GRIDTF_PARAMS"}).params == {}
    with pytest.raises(GridtfError, match="is not a JSON object"):
        contract.task({**env, "GRIDTF_PARAMS": "[1]"})


# --- variables of the user


def test_env_precedence_is_task_type_then_job_then_base(tmp_path: Path) -> None:
    tables = {"worker": {"count": 1}, "ps": {"count": 1, "env": {"A": "ps", "TF_CONFIG": "no"}}}
    plan = task_plan(tmp_path / "run", hosts(None), tasks=tables, env={"A": "job", "B": "a b\n'\"$(x)"})
    base = {**USUAL, "A": "base", "B": "base", "C": "base"}
    worker, server = environment(plan, "worker:0", base), environment(plan, "ps:0", base)
    assert (worker["A"], server["A"]) == ("job", "ps")
    assert (worker["B"], worker["C"]) == ("a b\n'\"$(x)", "base")
    assert server["TF_CONFIG"] != "no"  # the contract is not the user's to break


@pytest.mark.parametrize("how", ["base", "env", "tasks"])
def test_user_values_of_thread_buffering_and_output_variables_are_kept(tmp_path: Path, how: str) -> None:
    own = {
        "OMP_NUM_THREADS": "3",
        "TF_NUM_INTRAOP_THREADS": "4",
        "TF_NUM_INTEROP_THREADS": "5",
        "PYTHONUNBUFFERED": "",
        "OUTPUT_DIR": "/scratch/out",
    }
    ways: dict[str, dict[str, Any]] = {
        "base": {},
        "env": {"env": own},
        "tasks": {"tasks": {"worker": {"count": 1, "env": own}}},
    }
    plan = task_plan(tmp_path / "run", hosts(1, cpus=16), **ways[how])
    env = environment(plan, "worker:0", {**USUAL, **own} if how == "base" else USUAL)
    if how == "base":  # the submitting shell's may be another job's
        assert env["OUTPUT_DIR"] == str(plan.attempt.run.output)
        del own["OUTPUT_DIR"]
    assert {name: env[name] for name in own} == own


def test_thread_variables_are_not_set_where_cpus_are_unknown(tmp_path: Path) -> None:
    env = environment(task_plan(tmp_path / "run", hosts(1, cpus=None)), "worker:0")
    assert not [name for name in env if "THREADS" in name]


def test_grpc_fail_fast_is_set_with_served_workers(tmp_path: Path) -> None:
    tables = {"chief": {}, "worker": {"count": 1}}
    served = task_plan(tmp_path / "run", hosts(2), tasks=tables, serve=["worker"])
    assert environment(served, "chief:0")["GRPC_FAIL_FAST"] == "use_caller"
    assert environment(served, "chief:0", {**USUAL, "GRPC_FAIL_FAST": "1"})["GRPC_FAIL_FAST"] == "1"
    assert "GRPC_FAIL_FAST" not in environment(task_plan(tmp_path / "own", hosts(2), tasks=tables), "chief:0")


def test_tf_config_and_hosts_of_types_of_the_job_s_own(tmp_path: Path) -> None:
    tables = {
        "worker": {"count": 1},
        "cache": {"kind": "member"},
        "driver": {"kind": "client", "command": ["drive", "{cache_hosts}", "{board_hosts}"]},
        "board": {"kind": "service"},
    }
    plan = task_plan(tmp_path / "run", hosts(2), tasks=tables, serve=["worker"])
    cluster = {"worker": ["h0:20001"], "cache": ["h0:20004"]}
    for name in ("worker:0", "cache:0", "driver:0", "board:0"):
        kind, index = name.split(":")
        config = json.loads(environment(plan, name)["TF_CONFIG"])
        assert config == {"cluster": cluster, "task": {"type": kind, "index": int(index)}}
    assert argv(plan, "driver:0") == ["drive", "h0:20004", "h0:20003"]
    assert environment(plan, "driver:0")["RANK"] == "0"  # it trains, and the served worker does not


def test_data_workers_are_in_no_tf_config(tmp_path: Path) -> None:
    plan = task_plan(tmp_path / "run", hosts(2), tasks={"worker": {"count": 1}, "data_worker": {"count": 1}})
    for name in ("worker:0", "data_worker:0", "data_dispatcher:0"):
        assert json.loads(environment(plan, name)["TF_CONFIG"])["cluster"] == {"worker": ["h0:20001"]}
    assert argv(plan, "data_worker:0")[3:] == ["/site/gridtf", "/run:1/python", "gridtf.training.serve"]
    assert environment(plan, "data_worker:0")["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize("proxy", ["http_proxy", "https_proxy", "grpc_proxy"])
def test_no_grpc_proxy_lists_the_hosts_of_the_cluster(proxy: str, plan: AttemptPlan) -> None:
    base = {**USUAL, proxy: "http://proxy:3128"}
    assert environment(plan, "worker:0", base)["no_grpc_proxy"] == "h0,h1"
    assert environment(plan, "worker:0", {**base, "no_proxy": "site,h1"})["no_grpc_proxy"] == "site,h1,h0"
    assert environment(plan, "worker:0", {**base, "no_grpc_proxy": "a", "no_proxy": "b"})["no_grpc_proxy"] == "a,h0,h1"
    assert environment(plan, "worker:0", base)[proxy] == "http://proxy:3128"


# --- the command


def test_command_of_each_kind_of_task(tmp_path: Path) -> None:
    own = {"worker": {"count": 1}, "ps": {"count": 1, "command": ["./ps", "{task_index}"]}, "evaluator": {}}
    plain = task_plan(tmp_path / "plain", hosts(None), tasks=own)
    assert argv(plain, "worker:0") == ["train"]
    assert argv(plain, "ps:0") == ["./ps", "0"]
    entry = task_plan(tmp_path / "entry", hosts(None), entry="train:main", tasks={**own, "ps": {"count": 1}})
    python, dash_c, _, *words = argv(entry, "worker:0")
    assert (python, dash_c) == ("/usr/bin/python3", "-c")
    assert words == ["/site/gridtf", "/run:1/python", "gridtf.training.run", "train:main"]
    assert argv(entry, "ps:0")[3:] == ["/site/gridtf", "/run:1/python", "gridtf.training.serve"]
    assert argv(task_plan(tmp_path / "own", hosts(None), entry="train:main", tasks=own), "ps:0") == ["./ps", "0"]
    served = task_plan(tmp_path / "served", hosts(None), tasks={"ps": {"count": 1}}, serve=["ps"])
    assert argv(served, "ps:0")[3:] == ["/site/gridtf", "/run:1/python", "gridtf.training.serve"]


def test_gridtf_tasks_import_gridtf_from_its_install_folder(tmp_path: Path) -> None:
    """From a folder that PYTHONPATH cannot name, for a Python without gridtf, and not from a planted package."""
    package = tmp_path / "a:b" / "gridtf"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "training").mkdir()
    planted = tmp_path / "planted" / "gridtf"
    planted.mkdir(parents=True)
    (planted / "__init__.py").write_text("raise SystemExit('bob was here')\n")
    (package / "training" / "run.py").write_text("import sys\nprint(__name__, __file__, sys.argv[1:])\n")
    entry = task_plan(tmp_path / "entry", hosts(None), entry="train:main", tasks={"worker": {"count": 1}})
    words = command(entry, entry.tasks[0], merge(entry.tasks, records(entry)), package, planted.parent)
    done = subprocess.run([sys.executable, "-I", *words[1:]], capture_output=True, text=True, check=True, timeout=180)
    assert done.stdout == f"__main__ {package / 'training' / 'run.py'} ['train:main']\n"


@pytest.mark.parametrize("safe", ["", "1"])
def test_gridtf_tasks_run_no_module_of_the_working_folder_in_place_of_python_s(tmp_path: Path, safe: str) -> None:
    traps = Traps(tmp_path / "traps", tmp_path / "ran")
    plan = task_plan(tmp_path / "run", hosts(None), entry="train:main", tasks={"worker": {"count": 1}})
    words = command(plan, plan.tasks[0], merge(plan.tasks, records(plan)), HOME, tmp_path / "package")
    words[words.index("gridtf.training.run")] = "gridtf.contract"  # without TensorFlow
    environ = {"PYTHONSAFEPATH": safe, "PYTHONPATH": str(tmp_path / "hook")}
    code = words[2].replace("import importlib.util", "print(sys.path[:2])\nimport importlib.util")
    argv = [sys.executable, "-c", code, *words[3:]]
    done = subprocess.run(argv, env=environ, cwd=traps.folder, capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stdout) == (0, f"['{tmp_path}/package', '{tmp_path}/hook']\n"), done.stderr
    assert not traps.ran


def test_placeholders_are_filled_in_and_other_braces_kept(tmp_path: Path) -> None:
    words = [
        "--ps_hosts={ps_hosts}",
        "--worker_hosts={worker_hosts}",
        "--master_hosts={master_hosts}",
        "--job_name={task_type}",
        "{task_index}{task_index}",
        "{cluster}",
        "{run_dir}/{output_dir}/{job_id}",
        '{"lr": {"run_dir": 0.1}, "x": {nothing}, "y": {}}',
        "{Task_type} { task_type } {task-type} {{task_type}}",
        "${task_index} ${HOME} {HOME} $1 %s {0}",
    ]
    plan = task_plan(tmp_path / "run", hosts(2, 2), command=words, tasks=TABLES)
    run = plan.attempt.run.path
    filled = argv(plan, "worker:1")
    assert json.loads(filled.pop(5)) == CLUSTER
    assert filled == [
        "--ps_hosts=h1:20005",
        "--worker_hosts=h0:20002,h1:20004",
        "--master_hosts=",
        "--job_name=worker",
        "11",
        f"{run}/{run}/output/4711",
        '{"lr": {"run_dir": 0.1}, "x": {nothing}, "y": {}}',
        "{Task_type} { task_type } {task-type} {worker}",
        "${task_index} ${HOME} {HOME} $1 %s {0}",  # ${task_index} is a variable of the shell that reads it
    ]


@pytest.mark.parametrize(
    ("named", "filled"), [("/results", "/results"), ("", "{run}/output"), ("{output_dir}/x", "{run}/output")]
)
def test_placeholder_of_the_output_is_the_folder_that_the_job_names(named: str, filled: str, tmp_path: Path) -> None:
    plan = task_plan(tmp_path / "run", hosts(2), command=["{output_dir}"], env={"OUTPUT_DIR": named} if named else {})
    assert argv(plan, "worker:0") == [filled.replace("{run}", str(plan.attempt.run.path))]


def test_placeholder_values_are_not_expanded_again() -> None:
    values = {"a": "{b}", "b": "\\1\\g<0>"}
    assert [fill(word, values) for word in ("{a}", "{b}")] == ["{b}", "\\1\\g<0>"]


def test_placeholders_of_rank_and_master_address(tmp_path: Path) -> None:
    words = ["--rank={rank}/{world_size}", "--local={local_rank}", "tcp://{master_addr}:{master_port}"]
    plan = task_plan(tmp_path / "run", hosts(2, 2), command=words, tasks=TABLES)
    assert argv(plan, "worker:1") == ["--rank=2/3", "--local=0", "tcp://h0:30000"]
    assert argv(plan, "ps:0") == ["--rank=/", "--local=", "tcp://h0:30000"]  # as its environment has none


def test_placeholders_are_filled_in_in_env_values(tmp_path: Path) -> None:
    tables = {"worker": {"count": 2, "env": {"WHO": "{task_type}-{task_index}"}}}
    own = {"PROCESS_ID": "{rank}", "FORMAT": '{"a": {step}}', "SHELL_S": "${rank}"}
    plan = task_plan(tmp_path / "run", hosts(2), tasks=tables, env=own)
    env = environment(plan, "worker:1")
    assert [env[name] for name in ("WHO", "PROCESS_ID", "FORMAT", "SHELL_S")] == [
        "worker-1",
        "1",
        '{"a": {step}}',
        "${rank}",
    ]


def test_every_placeholder_has_a_value(plan: AttemptPlan) -> None:
    values = placeholders(plan, plan.tasks[0], merge(plan.tasks, records(plan)))
    assert sorted(values) == sorted(NAMES)


@pytest.mark.parametrize(("before", "after"), [(None, "/tmp/hook"), ("", "/tmp/hook"), ("/a:/b", "/tmp/hook:/a:/b")])
def test_hook_comes_first_on_the_path_of_python(before: str | None, after: str, plan: AttemptPlan) -> None:
    base = {} if before is None else {"PYTHONPATH": before}
    first, meeting = plan.tasks[0], merge(plan.tasks, records(plan))
    assert task_environment(base, plan, first, meeting, (), None, Path("/tmp/hook"))["PYTHONPATH"] == after
    assert task_environment(base, plan, first, meeting, ()).get("PYTHONPATH") == before
