"""JobSpec: refused values, and the properties of accepted ones."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest

from gridtf.errors import SpecError
from gridtf.jobspec.spec import JobSpec, TaskSpec, container_path
from tests.support.plans import job

RUNS = ("python", "train.py")


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("command", {"command": "python train.py"}),
        ("command", {"command": ["python", 3]}),
        ("command", {"command": ["a\0b"]}),
        ("command", {"command": ["", "a"]}),
        ("entry", {"entry": "train"}),
        ("entry", {"entry": "train:main", "command": RUNS}),
        ("name", {"name": "two words"}),
        ("name", {"name": "-dash"}),
        ("name", {"name": "x" * 64}),
        ("success_policy", {"success_policy": "any"}),
        ("ports", {"ports": "keep"}),
        ("fence", {"fence": "on"}),
        ("notify", {"notify": "sms"}),
        ("notify", {"notify": "mail:ann and bob"}),
        ("notify", {"notify": True}),
        ("hook", {"hook": "no"}),
        ("hook", {"hook": 0}),
        ("nodes", {"nodes": 0}),
        ("nodes", {"nodes": "4-2"}),
        ("nodes", {"nodes": 1.5}),
        ("nodes", {"nodes": True}),
        ("gpus_per_node", {"gpus_per_node": -1}),
        ("tasks_per_node", {"tasks_per_node": 0}),
        ("gpus_per_task", {"gpus_per_task": "1"}),
        ("gpus_per_task", {"gpus_per_task": 4, "gpus_per_node": 2}),
        ("cpus_per_task", {"cpus_per_task": 0}),
        ("mem", {"mem": "lots"}),
        ("time", {"time": "soon"}),
        ("time", {"time": 0}),
        ("checkpoint_before", {"checkpoint_before": "soon", "time": "1h"}),
        ("checkpoint_before", {"checkpoint_before": -5, "time": "1h"}),
        ("checkpoint_before", {"checkpoint_before": "60m", "time": "1h"}),
        ("checkpoint_before", {"checkpoint_before": "30m", "time": "1h", "time_min": "30m"}),
        ("time_min", {"time": "1h", "time_min": "2h"}),
        ("time_min", {"time_min": "2h"}),
        ("time_min", {"time": "1h", "time_min": "soon"}),
        ("checkpoint_before", {"checkpoint_before": "2h", "time": "1h"}),
        ("continuations", {"continuations": -1, "checkpoint_before": "5m", "time": "1h"}),
        ("continuations", {"continuations": "2", "checkpoint_before": "5m", "time": "1h"}),
        ("continuations", {"continuations": None, "checkpoint_before": "5m", "time": "1h"}),
        ("continuations", {"continuations": 2, "time": "1h"}),
        ("checkpoint_signal", {"checkpoint_signal": "TERM"}),
        ("native", {"native": "--exclusive"}),
        ("native", {"native": ["a\nb"]}),
        ("setup", {"setup": "module load cuda"}),
        ("env", {"env": ["A=1"]}),
        ("env.A B", {"env": {"A B": "1"}}),
        ("env.A", {"env": {"A": 1}}),
        ("kill_grace", {"kill_grace": -1}),
        ("kill_grace", {"kill_grace": "5"}),
        ("address", {"address": ""}),
        ("address", {"address": "hosti"}),
        ("address", {"address": "{host"}),
        ("address", {"address": "{hots}i"}),
        ("address", {"address": "{host}:22"}),
        ("address", {"address": "{host} i"}),
        ("interface", {"interface": 0}),
        ("interface", {"interface": "/dev/ib0"}),
        ("interface", {"interface": "ib0, ib1"}),
        ("interface", {"interface": "i" * 16}),
        ("interface", {"interface": "ib0", "address": "{host}i"}),
        ("container", {"container": ""}),
        ("container", {"container": "nvcr.io/nvidia/tensorflow:24.03"}),
        ("container_binds", {"container_binds": "/data", "container": "i.sif"}),
        ("container_binds", {"container_binds": ["/data"]}),
        ("container_binds", {"container_binds": ["data:/data"], "container": "i.sif"}),
        ("container_binds", {"container_binds": ["/data:d"], "container": "i.sif"}),
        ("container_binds", {"container_binds": ["/a:/b:ro:x"], "container": "i.sif"}),
        ("container_command", {"container_command": "ch-run {image}", "container": "i"}),
        ("container_command", {"container_command": ["ch-run"], "container": "i"}),
        ("container_command", {"container_command": ["ch-run", "{image}"]}),
        ("container_command", {"container_command": ["ch-run", "{images}"], "container": "i"}),
        ("container_command", {"container_command": ["c", "{image}"], "container": "i", "container_binds": ["/d"]}),
        ("start_timeout", {"start_timeout": 0}),
        ("heartbeat_timeout", {"heartbeat_timeout": 0}),
        ("kill_grace", {"kill_grace": float("nan")}),
        ("mem_per_task", {"mem_per_task": "lots"}),
        ("mem_per_task", {"mem_per_task": "1G", "mem": "2G"}),
        ("start_timeout", {"start_timeout": float("inf")}),
        ("serve", {"serve": ["chief"]}),
        ("serve", {"serve": ["worker"]}),
        ("serve", {"serve": ["ps"], "tasks": {"ps": TaskSpec(command=("x",))}}),
        ("tasks", {"tasks": ["ps"]}),
        ("tasks.ps", {"tasks": {"ps": 1}}),
        ("tasks.ps.cuont", {"tasks": {"ps": {"cuont": 1}}}),
        ("tasks.ps.count", {"tasks": {"ps": {"count": "1"}}}),
        ("tasks.pss", {"tasks": {"pss": TaskSpec(count=1)}}),
        ("tasks.ps.count", {"tasks": {"ps": TaskSpec(count=-1)}}),
        ("tasks.ps.gpus", {"tasks": {"ps": TaskSpec(gpus=1)}}),
        ("tasks.ps.mem", {"tasks": {"ps": TaskSpec(mem="x")}}),
        ("tasks.ps.env.A", {"tasks": {"ps": TaskSpec(env={"A": 1})}}),  # type: ignore[dict-item]
        ("tasks.ps.partition", {"tasks": {"ps": TaskSpec(partition="")}}),
        ("tasks.evaluator.partition", {"tasks": {"evaluator": TaskSpec(partition="a\nb")}}),
        ("tasks.worker.partition", {"tasks": {"worker": TaskSpec(partition="cpu")}}),
        ("tasks.chief.partition", {"partition": "gpu", "tasks": {"chief": TaskSpec(partition="cpu")}}),
        ("tasks.worker.command", {"tasks": {"worker": TaskSpec(command="x")}}),  # type: ignore[arg-type]
        ("tasks.chief.count", {"tasks": {"chief": TaskSpec(count=2)}}),
        ("tasks.evaluator.count", {"tasks": {"evaluator": TaskSpec(count=2)}}),
        ("tasks.master", {"tasks": {"chief": TaskSpec(), "master": TaskSpec()}}),
        ("tasks.worker.count", {"tasks": {"worker": TaskSpec(count=0)}}),
        ("tasks.data_worker.command", {"tasks": {"data_worker": TaskSpec(command=("x",))}}),
        ("tasks.data_worker.in_cluster", {"tasks": {"data_worker": TaskSpec(in_cluster=True)}}),
        ("tasks.data_worker.gpus", {"tasks": {"data_worker": TaskSpec(gpus=1)}}),
        ("tasks.data_worker.count", {"tasks": {"data_dispatcher": TaskSpec()}}),
        ("tasks.data_dispatcher.count", {"tasks": {"data_worker": TaskSpec(), "data_dispatcher": TaskSpec(count=0)}}),
        ("tasks.data_dispatcher.count", {"tasks": {"data_worker": TaskSpec(), "data_dispatcher": TaskSpec(count=2)}}),
        ("serve", {"serve": ["data_worker"]}),
        ("tasks.board.kind", {"tasks": {"board": TaskSpec(kind="helper")}}),
        ("tasks.ps.kind", {"tasks": {"ps": TaskSpec(kind="member")}}),
        ("tasks.Board", {"tasks": {"Board": TaskSpec(kind="service")}}),
        ("tasks.job", {"tasks": {"job": TaskSpec(kind="service")}}),
        ("tasks.board2", {"tasks": {"board2": TaskSpec(kind="service")}}),
        ("tasks.board.gpus", {"tasks": {"board": TaskSpec(kind="service", gpus=1)}}),
        ("tasks.board.in_cluster", {"tasks": {"board": TaskSpec(kind="service", in_cluster=True)}}),
        ("serve", {"serve": ["board"], "tasks": {"board": TaskSpec(kind="service")}}),
        ("tasks.worker.count", {"tasks": {"worker": TaskSpec(count=0), "board": TaskSpec(kind="service")}}),
        ("mpi", {"mpi": "PMIx v4"}),
        ("mpi", {"mpi": 1}),
        ("mpi", {"mpi": True, "tasks": {"ps": TaskSpec(count=1)}}),
        ("mpi", {"mpi": True, "serve": ["worker"], "tasks": {"chief": TaskSpec()}}),
        ("mpi", {"mpi": True, "tasks": {"evaluator": TaskSpec(count=1)}}),
        ("mpi", {"mpi": True, "container": "/images/tf.sif"}),
        ("tasks.worker.on_failure", {"mpi": True, "tasks": {"worker": TaskSpec(on_failure="restart")}}),
        ("leader", {"leader": "first"}),
        ("leader", {"leader": "chief", "tasks": {"chief": TaskSpec(count=0)}}),
        ("leader", {"leader": "master", "tasks": {"chief": TaskSpec(count=1)}}),
        ("leader", {"leader": "first-worker", "tasks": {"worker": TaskSpec(count=0), "out": TaskSpec(kind="client")}}),
    ],
)
def test_invalid_value_is_refused_with_its_key(key: str, values: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec(**values)
    assert caught.value.key == key


def test_types_of_the_job_s_own_are_treated_by_their_kind() -> None:
    tables = {"zebra": {"kind": "member", "count": 2}, "board": {"kind": "service"}, "driver": {"kind": "client"}}
    spec = job(tasks={**tables, "worker": {"count": 1}}, serve=["worker", "zebra"])
    assert spec.types[:4] == ("chief", "master", "worker", "driver")  # those that train come first
    assert spec.types[-2:] == ("board", "zebra")
    assert [spec.count(name) for name in ("zebra", "board", "driver")] == [2, 1, 1]
    assert [spec.in_cluster(name) for name in ("zebra", "board", "driver")] == [True, False, False]
    assert [spec.serves(name) for name in ("zebra", "board", "driver")] == [True, False, False]
    assert JobSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


@pytest.mark.parametrize(
    ("tables", "serve", "workers"),
    [
        ({"driver": {"kind": "client"}, "zebra": {"kind": "member", "count": 2}}, [], 0),
        ({"driver": {"kind": "client"}, "ps": {"count": 2}}, ["ps"], 0),
        ({"driver": {"kind": "client"}, "worker": {}}, [], None),
        ({"driver": {"kind": "client"}}, ["worker"], None),
        ({"driver": {"kind": "client", "count": 0}}, [], None),
        ({"zebra": {"kind": "member"}, "board": {"kind": "service"}}, [], None),
    ],
)
def test_job_with_a_client_has_workers_only_where_it_names_them(
    tables: dict[str, Any], serve: list[str], workers: int | None
) -> None:
    assert job(tasks=tables, serve=serve).count("worker") == workers


@pytest.mark.parametrize(
    ("leader", "tables", "counts"),
    [
        ("chief", {}, (1, 0)),
        ("master", {}, (0, 1)),
        ("first-worker", {}, (0, 0)),
        ("master", {"chief": {"cpus": 2}}, (0, 1)),  # a table alone requests no second leader
        (None, {"chief": {"cpus": 2}}, (1, 0)),
        ("chief", {"chief": {"count": 1}}, (1, 0)),
    ],
)
def test_leader_decides_which_task_leads(leader: str | None, tables: dict[str, Any], counts: tuple[int, int]) -> None:
    spec = job(tasks=tables, leader=leader)
    assert (spec.count("chief"), spec.count("master")) == counts


def test_data_workers_bring_a_dispatcher_and_are_served_outside_the_cluster() -> None:
    spec = job(tasks={"data_worker": {"count": 3}})
    assert (spec.count("data_worker"), spec.count("data_dispatcher")) == (3, 1)
    for name in ("data_worker", "data_dispatcher"):
        assert (spec.serves(name), spec.in_cluster(name)) == (True, False)
    none = job(tasks={"data_worker": {"count": 0}})
    assert (none.count("data_worker"), none.count("data_dispatcher")) == (0, 0)


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({"tasks": {"wroker": TaskSpec()}}, "did you mean worker?"),
        ({"success_policy": "chef"}, "did you mean chief?"),
        ({"ports": "realease"}, "did you mean release?"),
        ({"tasks": {"ps": 1}}, 'write tasks={"ps": {"count": 1}}, or [tasks.ps] and count = 1 in a file'),
    ],
)
def test_misspelt_value_is_refused_with_the_nearest_one(values: dict[str, Any], hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec(**values)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({"workers": 2}, 'write tasks={"worker": TaskSpec(count=2)}'),
        ({"chief": True}, 'write tasks={"chief": TaskSpec(count=1)}'),
        ({"no_chief": True}, 'write tasks={"chief": TaskSpec(count=0)}'),
        ({"ps_builtin": True}, 'write serve=["ps"]'),
        ({"nods": 2}, "did you mean nodes?"),
        ({"xyzzy": 2}, "known: command, entry, "),
    ],
)
def test_unknown_keyword_is_refused_with_what_to_write(values: dict[str, Any], hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec(**values)
    assert caught.value.what == f"{caught.value.key}: JobSpec has no such keyword"
    assert caught.value.hint.startswith(hint)


def test_unknown_keyword_of_a_task_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(SpecError, match="cuont: TaskSpec has no such keyword") as caught:
        TaskSpec(cuont=2)  # type: ignore[call-arg]
    assert caught.value.hint == "did you mean count?"


def test_table_of_a_task_type_may_be_a_dict() -> None:
    tables = {"ps": {"count": 1}, "worker": TaskSpec(count=2)}
    spec = JobSpec(command=["python", "train.py"], tasks=tables)
    assert spec == JobSpec(command=("python", "train.py"), tasks={"ps": TaskSpec(count=1), "worker": TaskSpec(count=2)})
    tables["ps"] = {"count": 9}
    assert spec.count("ps") == 1


def test_specs_can_be_copied_and_pickled() -> None:
    spec = JobSpec(command=["x"], tasks={"ps": TaskSpec(count=1)})
    assert copy.deepcopy(spec) == pickle.loads(pickle.dumps(spec)) == spec


def test_unknown_key_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec.from_dict({"gpus_pre_node": 2})
    assert (caught.value.key, caught.value.hint) == ("gpus_pre_node", "did you mean gpus_per_node?")
    with pytest.raises(SpecError) as caught:
        JobSpec.from_dict({"tasks": {"ps": {"cuont": 2}}})
    assert (caught.value.key, caught.value.hint) == ("tasks.ps.cuont", "did you mean count?")


def test_spec_round_trips_through_json() -> None:
    spec = JobSpec(
        command=RUNS,
        nodes="2-4",
        time="1:30:00",
        env={"A": 'it\'s "x"\n'},
        setup=("module load cuda",),
        serve=("ps",),
        tasks={
            "ps": TaskSpec(count=2, env={"B": "c"}),
            "worker": TaskSpec(command=("w", "1")),
            "evaluator": TaskSpec(),
        },
    )
    assert JobSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_lists_are_stored_as_tuples() -> None:
    lists = JobSpec(
        command=["a"], setup=["b"], native=["-c"], serve=["ps"], tasks={"worker": TaskSpec(command=["d"], mem=1024)}
    )
    assert (lists.command, lists.setup, lists.native, lists.serve) == (("a",), ("b",), ("-c",), ("ps",))
    assert lists.task("worker").command == ("d",)


def test_empty_partition_of_the_job_is_not_that_of_a_task_type_without_one() -> None:
    spec = JobSpec(command=RUNS, partition="", tasks={"ps": TaskSpec(count=1)})
    assert JobSpec.from_dict(spec.to_dict()) == spec


def test_to_dict_omits_defaults() -> None:
    assert JobSpec(command=RUNS, kill_grace=5.0, gpu_resource="gpu").to_dict() == {"command": ["python", "train.py"]}


def test_node_range_walltime_and_mem_mib_are_parsed() -> None:
    spec = JobSpec(command=RUNS, nodes="2-4", time="1:30:00", mem="2G")
    assert (spec.node_range, spec.walltime, spec.mem_mib) == ((2, 4), 5400, 2048)
    assert spec.replace(checkpoint_before="5m").seconds_to_save == 300
    bare = JobSpec(command=RUNS)
    assert (bare.node_range, bare.walltime, bare.mem_mib) == (None, None, None)


@pytest.mark.parametrize(
    ("values", "title"),
    [
        ({"command": RUNS, "name": "mine"}, "mine"),
        ({"command": ("python", "/a/b/train digits.py", "x.py")}, "train-digits"),
        ({"command": ("bash", "run.sh")}, "run"),
        ({"command": ("python", "-m", "trainer.task", "--epochs", "3")}, "task"),
        ({"command": ("/opt/venv/bin/python3.11", "-u", "-m", "mnist")}, "mnist"),
        ({"command": ("python", "-m", "torch.distributed.run", "train.py")}, "train"),
        ({"command": ("python", "-m")}, "python"),
        ({"command": ("python", "13.py")}, "run-13"),
        ({"command": ("env", "-m", "x")}, "env"),
        ({"command": ("./.hidden",)}, "hidden"),
        ({"entry": "package.train:main"}, "package.train"),
        ({"command": ("…",)}, "gridtf"),
        ({}, "gridtf"),
    ],
)
def test_title_is_derived_from_command_or_entry(values: dict[str, Any], title: str) -> None:
    assert JobSpec(**values).title == title


@pytest.mark.parametrize(
    ("image", "is_path"),
    [
        ("tf.sif", True),
        ("/images/tf:2", True),
        ("./tf:2.sif", True),
        ("docker://tf:2", False),
        ("oci:images/tf", False),
        (None, False),
    ],
)
def test_container_is_a_path_or_an_address(image: str | None, is_path: bool) -> None:
    assert container_path(JobSpec(command=RUNS, container=image).container) == (image if is_path else "")


def test_container_command_alone_is_a_container() -> None:
    assert JobSpec(command=RUNS, container_command=["shifter"]).contained
    assert not JobSpec(command=RUNS).contained


def test_counts_of_task_types() -> None:
    spec = JobSpec(command=RUNS, tasks={"ps": TaskSpec(count=2), "evaluator": TaskSpec(), "chief": TaskSpec(count=0)})
    counts = {name: spec.count(name) for name in ("worker", "ps", "evaluator", "chief", "master")}
    assert counts == {"worker": None, "ps": 2, "evaluator": 1, "chief": 0, "master": 0}


def test_spec_copies_the_callers_tables() -> None:
    """A caller may change its tables in a loop that submits one job after another."""
    env, tasks = {"LR": "0.1"}, {"worker": TaskSpec(count=1)}
    spec, table = JobSpec(command=("train",), env=env, tasks=tasks), TaskSpec(env=env)
    env["LR"] = "0.2"
    tasks["worker"] = TaskSpec(count=2)
    assert (spec.env, spec.count("worker"), table.env) == ({"LR": "0.1"}, 1, {"LR": "0.1"})


@pytest.mark.parametrize(
    ("tables", "more", "what"),
    [
        ({"ps": {"in_cluster": "no"}}, {}, "tasks.ps.in_cluster: 'no' is neither true nor false"),
        ({"ps": {"in_cluster": 0}}, {}, "tasks.ps.in_cluster: 0 is neither true nor false"),
        ({"evaluator": {"in_cluster": True}}, {}, "would wait for a cluster member of type evaluator"),
        ({"ps": {"in_cluster": False}}, {"serve": ["ps"]}, "gridtf serves ps"),
        ({"worker": {"in_cluster": False}}, {}, "no task would be left in the cluster"),
    ],
)
def test_invalid_in_cluster_is_refused(tables: dict[str, Any], more: dict[str, Any], what: str) -> None:
    with pytest.raises(SpecError, match=what):
        JobSpec.from_dict({"command": ["train"], "tasks": tables, **more})


def test_in_cluster_and_serves_of_task_types() -> None:
    spec = JobSpec.from_dict({"entry": "train:main", "tasks": {"ps": {"in_cluster": False}, "chief": {}}})
    assert [spec.in_cluster(name) for name in ("chief", "worker", "ps", "evaluator")] == [True, True, False, False]
    assert not spec.serves("ps")  # outside the cluster it has no TensorFlow server, but runs the entry
    assert JobSpec.from_dict({"entry": "train:main", "tasks": {"ps": {}}}).serves("ps")
    assert JobSpec.from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("stall_after", {"stall_after": "soon"}),
        ("stall_after", {"stall_after": -5}),
        ("stall_after", {"stall_after": None}),
        ("stall_after", {"stall_after": True}),
        ("on_stall", {"on_stall": "kill"}),
        ("on_stall", {"on_stall": "restart"}),
        ("on_stall", {"on_stall": "end", "stall_after": "off"}),
        ("check", {"check": "slow"}),
        ("on_bad_host", {"check": "quick", "on_bad_host": "leave"}),
        ("on_bad_host", {"on_bad_host": "end"}),
    ],
)
def test_what_becomes_of_stalled_jobs_and_bad_hosts_is_checked(key: str, values: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec(command=["true"], **values)
    assert caught.value.key == key


def test_time_after_which_a_job_is_stalled() -> None:
    after = {text: JobSpec(command=["true"], stall_after=text).seconds_to_stall for text in ("10m", 2, "off", 0, "0")}
    assert after == {"10m": 600, 2: 120, "off": None, 0: None, "0": None}
