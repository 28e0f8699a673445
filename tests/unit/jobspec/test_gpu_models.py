"""GPU models in numbers of GPUs, all GPUs of a job, and leaders with GPUs of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gridtf.errors import SpecError, UsageError
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.units import split_gpus
from tests.support.configuration import read
from tests.support.rendering import plan


@pytest.mark.parametrize(
    ("value", "number", "model"),
    [
        ("a100:4", 4, "a100"),
        ("gpu:4", 4, None),
        ("gpu:a100:4", 4, "a100"),
        ("gres/gpu:A100-SXM4:4", 4, "A100-SXM4"),
        ("1g.10gb:2", 2, "1g.10gb"),
        ("2080ti:2", 2, "2080ti"),
        ("gpu:a100:4(S:0-1)", 4, "a100"),  # as sinfo shows it
    ],
)
def test_number_and_model_are_split(value: str, number: int, model: str | None) -> None:
    expected = {"gpus_per_node": number, **({"gpu_model": model} if model else {})}
    assert split_gpus({"gpus_per_node": value}) == expected
    made = JobSpec(command=["x"], gpus_per_node=value)  # type: ignore[arg-type]
    assert (made.gpus_per_node, made.gpu_model) == (number, model)


@pytest.mark.parametrize("value", ["4", 4, None, "a100", "4:2", "a100:", ":4", "a100:x", "a b:4", "a100:4:2", "x;y:1"])
def test_other_values_stay_as_they_are(value: object) -> None:
    assert split_gpus({"gpus_per_node": value}) == {}


def test_two_models_of_one_job_are_refused() -> None:
    with pytest.raises(SpecError, match="gpu_model: a100 and v100 are two models of GPUs") as caught:
        JobSpec(command=["x"], gpus_per_node="a100:4", gpus_per_task="v100:1")  # type: ignore[arg-type]
    assert "[tasks.chief]" in caught.value.hint
    with pytest.raises(SpecError, match="k80 and a100"):
        JobSpec(command=["x"], gpu_model="k80", gpus_per_node="a100:4")  # type: ignore[arg-type]
    assert JobSpec(command=["x"], gpu_model="A100", gpus_per_node="a100:4").gpu_model  # type: ignore[arg-type]


def test_layers_change_the_number_or_the_model(tmp_path: Path) -> None:
    file = tmp_path / "j.toml"
    file.write_text(
        'command = ["x"]\ngpus_per_node = "v100:4"\nparams = { gpus = "a:1" }\ntasks.chief.gpus = "k80:2"\n'
    )
    made = read(f"{file} --gpus-per-node 2", tmp_path)
    assert (made.spec.gpus_per_node, made.spec.gpu_model) == (2, "v100")
    assert made.sources["gpu_model"] == f"{file}:2"
    assert (made.spec.task("chief").gpus, made.spec.task("chief").gpu_model) == (2, "k80")
    assert made.spec.params == {"gpus": "a:1"}
    made = read(f"{file} --gres gpu:a100:8", tmp_path)
    assert (made.spec.gpus_per_node, made.spec.gpu_model, made.sources["gpu_model"]) == (8, "a100", "--gres")
    assert read(f"{file} --gpu-model h100", tmp_path).spec.gpu_model == "h100"
    assert read("--gres gpu:1g.10gb -- x", tmp_path).spec.gpus_per_node == 1
    file.write_text('command = ["x"]\ngpus_per_node = "v100:4"\ngpu_model = "a100"\n')
    with pytest.raises(UsageError, match="2: a100 and v100 are two models"):
        read(str(file), tmp_path)
    for wrong, what in (("gpu:2,tmp:1", "--native=--gres=tmp:1"), ("tmp:1", "--native=--gres=tmp:1")):
        with pytest.raises(UsageError, match="not only GPUs of one model") as caught:
            read(f"--gres {wrong} -- x", tmp_path)
        assert what in caught.value.hint


@pytest.mark.parametrize(
    ("values", "shape"),
    [
        ({"gpus": 8}, ((1, 1), 8, 8)),
        ({"gpus": "a100:8", "nodes": 2}, ((2, 2), 4, 4)),
        ({"gpus": 8, "gpus_per_node": 4}, ((2, 2), 4, 4)),
        ({"gpus": 8, "gpus_per_node": 4, "nodes": 2, "gpus_per_task": 2}, ((2, 2), 4, 2)),
        ({"gpus": 0}, ((1, 1), 0, 1)),
    ],
)
def test_gpus_of_the_whole_job(values: dict[str, Any], shape: tuple[object, ...]) -> None:
    request = plan("slurm", **values).request
    assert (request.nodes, request.gpus_per_node, request.tasks_per_node) == shape


@pytest.mark.parametrize(
    "values",
    [
        {"gpus": 7, "nodes": 2},
        {"gpus": 8, "nodes": "2-4"},
        {"gpus": 8, "nodes": 2, "gpus_per_node": 8},
        {"gpus": 6, "gpus_per_node": 4},
        {"gpus": 6, "gpus_per_node": 0},
    ],
)
def test_gpus_of_the_whole_job_that_fit_no_hosts_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="GPUs in all do not fit"):
        JobSpec(command=["x"], **values)


def test_gpus_of_the_whole_job_are_shared_by_its_workers() -> None:
    """Where neither hosts nor their GPUs are given, as on Grid Engine, which chooses the hosts."""
    request = plan("sge", gpus="a100:4", pe="rr", tasks={"worker": {"count": 4}}).request
    assert (request.gpus_per_task, request.components[0].gpu_model) == (1, "a100")
    assert request.left_open >= {"nodes", "gpus_per_node"}


def test_limit_of_the_site_counts_all_gpus(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text("[limits]\nmax_gpus_per_node = 4\n")
    with pytest.raises(UsageError, match="--gpus: 8 requested, the site allows 4"):
        read("--gpus 8 -- x", tmp_path, {"GRIDTF_SITE_CONFIG": str(site)})


def leader(**values: Any) -> dict[str, Any]:
    return {"tasks": {"worker": {"count": 4}, "chief": {"count": 1, **values}}}


def test_leader_with_gpus_of_another_model_is_a_component() -> None:
    tasks = {"worker": {"count": 4}, "chief": {"gpus": "v100:2", "partition": "old"}, "ps": {"count": 1}}
    request = plan("slurm", gpus_per_node="a100:2", partition="new", tasks=tasks).request
    own, other = request.components
    assert (own.partition, own.types, own.gpu_model) == ("new", ("worker", "ps"), "a100")
    assert (other.partition, other.types, other.count, other.gpus, other.gpu_model) == ("old", ("chief",), 1, 2, "v100")
    assert (request.nodes, request.gpus_per_node, request.gpus_per_task, request.training) == ((2, 2), 2, 1, 4)
    assert [role.component for role in request.roles] == [1, 0, 0]


def test_leader_with_the_job_s_own_model_shares_its_hosts() -> None:
    for values in ({"gpu_model": "a100"}, {}):
        request = plan("slurm", gpus_per_node="a100:5", **leader(**values)).request
        assert (len(request.components), request.nodes, request.training) == (1, (1, 1), 5)
    # the workers' own model is that of the job
    tasks = {"worker": {"count": 2, "gpus": "a100:1"}, "chief": {"count": 1}}
    first, second = plan("slurm", gpu_model="v100", tasks={**tasks, "chief": {"gpu_model": "v100"}}).request.components
    assert (first.gpu_model, second.gpu_model, second.gpus) == ("a100", "v100", 1)
    alone = plan("slurm", tasks={"worker": {"count": 0}, "chief": {"gpus": "v100:2"}}).request
    assert ([part.gpu_model for part in alone.components], alone.gpus_per_node) == (["v100"], 2)


@pytest.mark.parametrize(
    ("tasks", "key"),
    [
        ({"ps": {"gpu_model": "a100"}}, "tasks.ps.gpu_model"),
        ({"evaluator": {"gpu_model": "a100"}}, "tasks.evaluator.gpu_model"),
        ({"chief": {"gpu_model": "a100", "gpus": 0}}, "tasks.chief.gpu_model"),
        ({"chief": {"partition": "old"}}, "tasks.chief.partition"),
        ({"worker": {"gpu_model": ""}}, "tasks.worker.gpu_model"),
    ],
)
def test_model_of_a_type_without_gpus_is_refused(tasks: dict[str, Any], key: str) -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec(command=["x"], gpus_per_node=2, tasks=tasks)
    assert caught.value.key == key


def test_ranks_have_gpus_of_one_model() -> None:
    with pytest.raises(SpecError, match="all ranks have GPUs of one model"):
        JobSpec(command=["x"], gpu_model="a100", mpi=True, **leader(gpu_model="v100"))


@pytest.mark.parametrize(
    ("value", "write"),
    [
        ("v100", "v100:2"),
        ("2080ti", "2080ti:2"),
        ("4:v100", "a100:2"),
        ("v100:4:2", "a100:2"),
        ("k80:2,v100:2", "a100:2"),
    ],
)
def test_wrong_number_with_a_model_says_what_to_write(value: str, write: str) -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec(command=["x"], gpus_per_node=value)  # type: ignore[arg-type]
    assert caught.value.hint == f'write one model and a number, such as "{write}"'


def test_model_alone_requests_a_gpu_for_each_task() -> None:
    request = plan("slurm", gpu_model="a100", tasks={"worker": {"count": 2}}).request
    assert (request.gpus_per_node, request.gpus_per_task) == (2, 1)


def test_one_machine_has_any_model() -> None:
    request = plan("local", gpus_per_node="a100:6", **leader(gpus="v100:2", partition="old")).request
    assert ([part.types for part in request.components], request.training) == ([("chief", "worker")], 5)
