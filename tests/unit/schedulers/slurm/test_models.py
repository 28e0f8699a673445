"""GPU models, features and host lists on Slurm: how they are requested at different sites, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gridtf.errors import SpecError, UsageError
from gridtf.schedulers.commands import Answer
from gridtf.schedulers.slurm import advice, scheduler
from gridtf.schedulers.slurm.commands import slurm
from gridtf.schedulers.slurm.offers import parse_partitions, show_gpus, spelled
from tests.support.rendering import plan

# recorded on Slurm 22.05.8
SINFO = """\
gpu*|up|7-00:00:00|1-infinite|1|idle|8|16000|gpu:a100:4|n1|ib
gpu*|up|7-00:00:00|1-infinite|1|idle|8|16000|gpu:a100:2,gpu:1g.10gb:2|n2|(null)
gpu*|up|7-00:00:00|1-infinite|1|idle|8|16000|gpu:4|n3|v100,ib
gpu*|up|7-00:00:00|1-infinite|1|idle|8|16000|gpu:4|n4|v100
cpu|up|7-00:00:00|1-infinite|1|idle|8|16000|(null)|c1|h100
"""
SITE = parse_partitions(SINFO)


def directives(**values: Any) -> list[str]:
    lines = scheduler.login.directives(plan("slurm", name="x", **values).replace(site=SITE))
    return [line for line in lines if line.startswith(("--gpus", "--constraint", "hetjob", "--nodelist", "--exclude"))]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"gpus_per_node": "A100:4"}, ["--gpus-per-node=a100:4"]),
        ({"gpus_per_node": "1G.10gb:2"}, ["--gpus-per-node=1g.10gb:2"]),
        ({"gpus_per_node": "V100:4"}, ["--gpus-per-node=4", "--constraint=v100"]),
        ({"gpus_per_node": "v100:4", "constraint": "ib"}, ["--gpus-per-node=4", "--constraint=ib&v100"]),
        ({"gpus_per_node": "v100:4", "constraint": "ib|opa"}, ["--gpus-per-node=4", "--constraint=(ib|opa)&v100"]),
        ({"gpus_per_node": "a100:4", "constraint": "[a|b]"}, ["--gpus-per-node=a100:4", "--constraint=[a|b]"]),
        ({"gpus_per_node": "h100:4"}, ["--gpus-per-node=h100:4"]),  # a feature of nodes without GPUs is no model
        ({"gpus_per_node": "a100:2", "partition": "cpu"}, ["--gpus-per-node=a100:2"]),  # which has none of them
        ({"gpu_model": "v100", "gpus_per_node": 0}, []),
        ({"nodelist": ["n1", "n[3-4]"], "exclude": ["n2"]}, ["--nodelist=n1,n[3-4]", "--exclude=n2"]),
        (
            {"gpus_per_node": "a100:2", "constraint": "ib", "tasks": {"chief": {"gpus": "v100:3"}}, "nodelist": ["n1"]},
            [
                *("--gpus-per-node=a100:2", "--constraint=ib", "--nodelist=n1", "hetjob"),
                *("--gpus-per-node=3", "--constraint=ib&v100"),
            ],
        ),
    ],
)
def test_models_are_requested_as_the_site_counts_them(values: dict[str, Any], expected: list[str]) -> None:
    assert directives(**values) == expected


@pytest.mark.parametrize(
    ("model", "types", "found"),
    [
        ("A100", "nvidia_a100-sxm4-80gb:4,gpu:nvidia_a100_1g.10gb:7", "nvidia_a100-sxm4-80gb"),
        ("1g.10gb", "nvidia_a100-sxm4-80gb:4,gpu:nvidia_a100_1g.10gb:7", "nvidia_a100_1g.10gb"),
        ("a100", "nvidia_a100-sxm4-40gb:4,gpu:nvidia_a100-sxm4-80gb:4", "a100"),  # which one?
        ("a100", "nvidia_a100_1g.10gb:7", "a100"),
        ("a10", "nvidia_a100:4", "a10"),
        ("h100", "nvidia_gh100:4", "h100"),
        ("a100", "a100:4,gpu:nvidia_a100-sxm4-80gb:4", "a100"),
    ],
)
def test_a_word_of_one_type_only_is_its_name(model: str, types: str, found: str) -> None:
    site = parse_partitions(f"gpu*|up|7-00:00:00|1-infinite|1|idle|8|16000|gpu:{types}|n1|ib")
    assert spelled(model, (), site) == (found, "")


def test_unknown_site_has_types() -> None:
    made = plan("slurm", name="x", gpus_per_node="V100:4")
    assert "--gpus-per-node=V100:4" in scheduler.login.directives(made)
    assert spelled("a100", (), ()) == ("a100", "")


@pytest.mark.parametrize(
    ("values", "key", "what"),
    [
        ({"gpus_per_node": "v100:4", "constraint": "[a|b]"}, "constraint", "cannot be joined with the feature v100"),
        ({"gpu_model": "a 100", "gpus_per_node": 4}, "gpu_model", "a directive line cannot contain"),
        ({"constraint": "ib #"}, "constraint", "a directive line cannot contain"),
        ({"nodelist": ["n 1"]}, "nodelist", "a directive line cannot contain"),
        ({"nodelist": ["n[1-3]"], "exclude": ["n4", "n[2-3]"]}, "exclude", "nodelist has n2, n3 as well"),
        ({"nodelist": ["n[1-3]"], "nodes": 2}, "nodelist", "the job must use 3 hosts, but nodes is 2"),
        ({"qos": ""}, "qos", "not a non-empty string"),
        (
            {"gpus_per_node": "a100:2", "tasks": {"chief": {"gpus": "v100:3"}}, "native": ["--array=1-3"]},
            "tasks.chief.gpu_model",
            "the elements of a job array cannot have tasks on another partition, or with another model",
        ),
    ],
)
def test_what_no_line_can_say_is_refused(values: dict[str, Any], key: str, what: str) -> None:
    with pytest.raises(SpecError, match=what.replace("[", r"\[")) as caught:
        directives(**values)
    assert caught.value.key == key


def test_hosts_that_must_be_used_are_the_number_of_nodes() -> None:
    assert plan("slurm", nodelist=["n1", "n[1-2]"]).request.nodes == (2, 2)
    assert plan("slurm", nodelist=["n[1-3]", "n7"]).request.nodes == (4, 4)
    assert plan("slurm", nodelist=["n1"], tasks={"worker": {"count": 4}}, tasks_per_node=2).request.nodes == (2, 2)


@pytest.mark.parametrize(
    ("option", "write"),
    [
        ("--gres=gpu:a100:4", 'write gpus_per_node = "a100:4"'),
        ("--gres=gpu", "write gpus_per_node = 1"),
        ("--gres=lscratch:100,gpu:2,tmp:5", 'write gpus_per_node = 2 and native = ["--gres=lscratch:100,tmp:5"]'),
        ("--gres=gpu:a100:2,gpu:v100:2", "write gpus_per_task and cpus_per_task"),
        ("--gpus-per-node a100:2", 'write gpus_per_node = "a100:2"'),
        ("-G4", "write gpus = 4"),
        ("--gpus-per-task=1", "write gpus_per_task = 1"),
        ("--nodes=4", "write nodes = 4"),
        ("-N 1-4", 'write nodes = "1-4"'),
        ("-n8", "in [tasks.worker] write count = 8"),
        ("--ntasks-per-node=4", "write tasks_per_node = 4"),
        ("-c 4", "write cpus_per_task = 4"),
        ("--cpus-per-gpu=4", "write gpus_per_task and cpus_per_task"),
        ("--tres-per-task=gres/gpu:1", "write gpus_per_task and cpus_per_task"),
    ],
)
def test_native_options_for_the_shape_of_a_job_are_refused(option: str, write: str) -> None:
    with pytest.raises(SpecError, match="is requested by a key") as caught:
        plan("slurm", nodes="2-3", native=[option])
    assert (caught.value.key, caught.value.hint) == ("native", write)


@pytest.mark.parametrize(
    "option",
    [
        *("--nodes=3", "-N2-3", "--gres=tmp:5", "--gres=shard:1", "--gpu-bind=none", "--qos=x", "--mem=0"),
        *("--ntasks-per-core=1", "--ntasks-per-socket=2"),
    ],
)
def test_other_native_options_are_passed_on(option: str) -> None:
    assert option in scheduler.login.directives(plan("slurm", nodes="2-3", native=[option]))


SHAPE = "allocation failure: Requested node configuration is not available\n"


def test_other_hosts_may_join_those_of_nodelist() -> None:
    # seen on 22.05.8: sbatch takes the job that it refuses with --test-only
    made = plan("slurm", nodelist=["n1"], nodes=2).replace(site=SITE)
    (note,) = advice.judge(advice.component_requests(made, {}), 1, SHAPE, SITE)
    assert note == "Slurm does not tell whether other hosts can join those of nodelist"


def refusal(output: str, available: Sequence[str] = (), **values: Any) -> SpecError:
    made = plan("slurm", name="x", **values).replace(site=SITE)
    with pytest.raises(SpecError) as caught:
        advice.judge(advice.component_requests(made, {}), 1, output, SITE, available=available)
    return caught.value


@pytest.mark.parametrize(
    ("values", "key", "what", "hint"),
    [
        ({"gpus_per_node": "h100:1"}, "gpus_per_node", "no node of partition gpu has h100 GPUs", "v100"),
        ({"gpus": "h100:1"}, "gpus", "no node of partition gpu has h100 GPUs", "2 to 4 a100 each"),
        (
            {"gpus": 10},
            "gpus",
            "10 GPUs a node requested",
            "write nodes as well, of at most 4 GPUs each; no partition has enough",
        ),
        (
            {"gpus": "v100:8"},
            "gpus",
            "8 GPUs with v100 a node requested",
            "write nodes as well, of at most 4 GPUs each; no partition has",
        ),
        ({"gpu_model": "h100"}, "gpu_model", "no node of partition gpu has h100 GPUs", "1g.10gb"),
        (
            {"gpus_per_node": "a100:1", "partition": "cpu"},
            "gpus_per_node",
            "no node of partition cpu has a100 GPUs",
            "these partitions have such GPUs: gpu",
        ),
        (
            {"gpus_per_node": "v100:5"},
            "gpus_per_node",
            "5 GPUs with v100 a node requested, nodes of",
            "no partition has enough",
        ),
        (
            {"gpus_per_node": "v100:4", "nodes": 2, "constraint": "ib"},
            "nodes",
            "2 nodes with 4 GPUs with ib&v100, 4 CPUs requested, partition gpu has 1",
            "",
        ),
        (
            {"gpus_per_node": "a100:2", "tasks": {"chief": {"gpus": "v100:5"}}},
            "tasks.chief.gpus",
            "5 GPUs with v100 a node requested, nodes of partition gpu have 4",
            "",
        ),
    ],
)
def test_models_that_the_site_does_not_have_are_refused(values: dict[str, Any], key: str, what: str, hint: str) -> None:
    error = refusal(SHAPE, **values)
    assert error.key == key
    assert what in error.problem
    assert hint in error.hint


FEATURE = ("Invalid feature specification", "this site has: h100, ib, v100")
NODE = ("Invalid node name specified", "this site has: c1, n1, n2, n3, n4")
LICENSE = ("Invalid license specification", "available to you: tensor:4")


@pytest.mark.parametrize(
    ("output", "hint", "values", "name", "why"),
    [
        (*FEATURE, {"constraint": "nosuch"}, "nosuch", ""),
        (*FEATURE, {"constraint": "ibb"}, "ibb", "did you mean ib?"),
        (*FEATURE, {"constraint": "a"}, "a", ""),
        (*FEATURE, {"constraint": "ib&(v100|nosuch)"}, "nosuch", ""),
        (*FEATURE, {"constraint": "[ib*2&opa*1]"}, "opa", ""),
        (*FEATURE, {"constraint": "opa", "gpus_per_node": "v100:1"}, "opa", ""),
        (*NODE, {"nodelist": ["n9"]}, "n9", ""),
        (*NODE, {"exclude": ["n[1-2]", "n17"]}, "n17", "did you mean n1?"),
        (*NODE, {"exclude": ["n9"], "nodelist": ["n1"]}, "n9", ""),
        (*LICENSE, {"licenses": "tensor:2,matlab@db:3"}, "matlab@db", ""),
        (*LICENSE, {"licenses": "tenso:2"}, "tenso", "did you mean tensor?"),
        (*LICENSE, {"licenses": "tensor:9"}, "tensor:9", ""),
        ("Requested reservation is invalid", "scontrol show reservation", {"reservation": "x"}, "x", ""),
        ("Invalid qos specification", "sacctmgr", {"qos": "x"}, "x", ""),
    ],
)
def test_names_that_the_site_does_not_have_are_refused_with_those_that_it_has(
    output: str, values: dict[str, Any], name: str, why: str, hint: str
) -> None:
    available = ["tensor:4"] if "license" in output else []
    error = refusal(f"allocation failure: {output}\n", available, **values)
    assert error.key == next(iter(values))
    assert (error.problem, error.why) == (f"{output}: {name}", why)
    assert hint in error.hint


def test_names_at_an_unknown_site_are_repeated() -> None:
    with pytest.raises(SpecError, match="Invalid node name specified: n9") as caught:
        made = plan("slurm", name="x", exclude=["n9"])
        advice.judge(advice.component_requests(made, {}), 1, "allocation failure: Invalid node name specified\n", [])
    assert caught.value.key == "exclude"


def test_model_of_no_partition_is_an_error_and_not_rows_that_never_start() -> None:
    def foreseen(**values: Any) -> str:
        made = plan("slurm", name="x", **values).replace(site=SITE, sources={"gpus_per_node": "--gpus-per-node"})
        found = advice.foreseen(made, SITE)
        return found.why if found else ""

    assert foreseen(gpus_per_node="a100:2", partition="cpu") == "no node of partition cpu has a100 GPUs"
    assert foreseen(gpus_per_node="v100:2", partition="cpu") == "no node of partition cpu has GPUs with v100"
    assert foreseen(gpus_per_node="v100:2") == ""
    assert foreseen(gpus_per_node="k80:2", time="8-0").startswith("8-00:00:00 is more than partition gpu allows")
    with pytest.raises(UsageError, match="--gpus-per-node: no node of partition gpu has k80 GPUs") as caught:
        foreseen(gpus_per_node="k80:1")
    assert "2 to 4 a100 each" in caught.value.hint


def test_hosts_that_exclude_leaves_are_counted() -> None:
    error = refusal(SHAPE, nodes=2, gpus_per_node="a100:2", exclude=["n1", "n4"])
    assert (error.key, error.problem.partition(" requested, ")[2]) == (
        "exclude",
        "partition gpu has 1 such nodes apart from those of exclude",
    )
    assert "there are: gpu (1), cpu (0)" in error.hint


def test_licenses_and_reservations_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = "LicenseName=tensor Total=4 Used=0 Free=4 Reserved=0 Remote=no\nReservationName=course StartTime=x\n"
    monkeypatch.setattr(slurm, "try_run", lambda *_, **__: printed)
    assert advice._available("Invalid license specification") == ["tensor:4", "course"]


def test_site_is_asked_only_for_models(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run(argv: list[str], **_: object) -> Answer:
        asked.append(argv[0])
        return Answer(0, SINFO, "")

    monkeypatch.setattr(slurm, "run", run)
    monkeypatch.setattr(type(scheduler), "is_available", lambda *_: True)
    assert scheduler.login.with_site(plan("slurm", gpus_per_node=4)).site is None
    made = scheduler.login.with_site(plan("slurm", gpus_per_node="V100:4"))
    assert (asked, made.site) == (["sinfo"], SITE)
    again = scheduler.login.with_site(plan("slurm", gpus_per_node="V100:4").replace(site=SITE))
    assert (asked, again.site) == (["sinfo"], SITE)


def test_partitions_show_models_of_either_way() -> None:
    assert show_gpus(SITE[0]) == "4 each or 2 1g.10gb each or 2 to 4 a100 each, features ib, v100"
