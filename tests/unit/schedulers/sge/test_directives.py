"""What gridtf requests of qsub. The forms were tried on Son of Grid Engine 8.1.9."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gridtf import schedulers
from gridtf.errors import SpecError
from gridtf.schedulers.sge import directives as sge
from gridtf.schedulers.sge import scheduler
from gridtf.schedulers.sge.directives import array_elements, parse_native
from tests.support.rendering import of_sweep, plan

HEAD = ["-N x", "-S /bin/bash", "-j y", "-r y", "-notify"]


def directives(**values: Any) -> list[str]:
    return list(scheduler.login.directives(plan("sge", **{"name": "x", **values})))


def workers(count: int, **more: Any) -> dict[str, Any]:
    return {"worker": {"count": count}, **more}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, []),  # one slot needs no parallel environment
        ({"pe": "mpi"}, ["-pe mpi 1"]),
        ({"pe": "mpi", "tasks": workers(8)}, ["-pe mpi 8"]),
        ({"pe": "mpi*", "nodes": 2, "tasks_per_node": 4}, ["-pe mpi* 8"]),
        ({"pe": "mpi", "nodes": "2-4", "tasks_per_node": 4}, ["-pe mpi 8-16"]),
        ({"pe": "mpi", "nodes": "2-4", "tasks_per_node": 4, "tasks": workers(6)}, ["-pe mpi 6"]),
        ({"pe": "mpi", "tasks": workers(8), "cpus_per_task": 2}, ["-pe mpi 16"]),
        ({"pe": "mpi", "tasks": workers(8, ps={"count": 2, "cpus": 3})}, ["-pe mpi 14"]),
        ({"pe": "mpi", "tasks": workers(8, ps={"count": 2})}, ["-pe mpi 8"]),
        ({"pe": "mpi", "slots": "8-16"}, ["-pe mpi 8-16"]),
        ({"pe": "mpi", "tasks": workers(8), "gpus_per_task": 2}, ["-pe mpi 8", "-l gpu=2"]),
        (  # eight slots with a GPU each, of which the chief has two
            {"pe": "four", "tasks": workers(6, chief={"gpus": 2}), "gpus_per_task": 1, "nodes": 2, "gpus_per_node": 4},
            ["-pe four 8", "-l gpu=1"],
        ),
        (
            {"pe": "four", "tasks": workers(6, chief={"gpus": 2}), "gpus_per_task": 1, "cpus_per_task": 2},
            ["-pe four 16", "-l gpu=0.5"],
        ),
        ({"pe": "mpi", "tasks": workers(2), "gpus_per_task": 4, "slots": 8}, ["-pe mpi 8", "-l gpu=1"]),
        ({"pe": "mpi", "slots": "4-8", "gpus_per_task": 1}, ["-pe mpi 4-8", "-l gpu=1"]),
        ({"pe": "mpi", "tasks": workers(2), "gpus_per_task": 1, "cpus_per_task": 4}, ["-pe mpi 8", "-l gpu=0.25"]),
        ({"pe": "mpi", "tasks": workers(2), "gpus_per_task": 1, "cpus_per_task": 3}, ["-pe mpi 6", "-l gpu=0.333333"]),
        ({"pe": "mpi", "tasks": workers(2), "gpus_per_task": 4, "cpus_per_task": 2}, ["-pe mpi 4", "-l gpu=2"]),
        ({"pe": "mpi", "nodes": "2-4", "gpus_per_node": 2, "cpus_per_task": 4}, ["-pe mpi 16-32", "-l gpu=0.25"]),
        (  # a ps shares the slots of the workers
            {"pe": "mpi", "tasks": workers(2, ps={"count": 1}), "gpus_per_task": 1, "cpus_per_task": 4},
            ["-pe mpi 12", "-l gpu=0.166666"],
        ),
        # slots that the user has chosen: of the tasks' CPUs, else shared
        ({"pe": "mpi", "tasks": workers(2), "gpus_per_task": 1, "slots": 8}, ["-pe mpi 8", "-l gpu=0.25"]),
        (
            {"pe": "mpi", "tasks": workers(3), "gpus_per_task": 1, "cpus_per_task": 4, "slots": 16},
            ["-pe mpi 16", "-l gpu=0.25"],
        ),
        (
            {"pe": "mpi", "tasks": workers(2), "gpus_per_task": 1, "cpus_per_task": 4, "slots": 2},
            ["-pe mpi 2", "-l gpu=1"],
        ),
        ({"pe": "mpi", "gpus_per_task": 1, "cpus_per_task": 4, "slots": "8-16"}, ["-pe mpi 8-16", "-l gpu=0.25"]),
        ({"exclude": ["n3", "n7*"]}, ["-l h=!(n3|n7*)"]),
        ({"exclude": ["n3"], "native": ["-q all.q@n1"]}, ["-l h=!(n3)", "-q all.q@n1"]),
        ({"notify": "mail"}, ["-m ea"]),
        ({"notify": "mail:ann@example.org"}, ["-m ea", "-M ann@example.org"]),
        ({"notify": "mail:ann@example.org", "native": ["-m bes -M bob"]}, ["-m bes -M bob"]),
        ({"gpus_per_task": 1, "gpu_resource": "ngpus"}, ["-l ngpus=1"]),
        (
            {"pe": "mpi", "tasks": workers(2), "gpus_per_task": 1, "cpus_per_task": 4, "native": ["-l x=1,gpu=1"]},
            ["-pe mpi 8", "-l x=1,gpu=1"],
        ),
        ({"mem": "8G"}, ["-l mem_free=8192M"]),
        (
            {"mem": "8G", "pe": "mpi", "tasks": workers(4), "tasks_per_node": 2, "cpus_per_task": 3},
            ["-pe mpi 12", "-l mem_free=1366M"],
        ),
        ({"mem": "8G", "native": ["-l mem_free=2G"]}, ["-l mem_free=2G"]),
        ({"time": "2d"}, ["-l h_rt=48:00:00"]),
        ({"time": "90"}, ["-l h_rt=1:30:00"]),
        ({"partition": "all.q@@gpu,b.q", "account": "ml"}, ["-q all.q@@gpu,b.q", "-P ml"]),
        (  # the job's own queue, not another one
            {"pe": "mpi", "partition": "a.q", "tasks": workers(2, ps={"count": 1, "partition": "a.q"})},
            ["-pe mpi 2", "-q a.q"],
        ),
        # Grid Engine takes -soft for the rest of its line in a script
        ({"native": ["-l arch=x", "-soft", "-l big=1", "-hard"]}, ["-l arch=x -soft -l big=1 -hard"]),
        ({"native": ["-ac a=1,b=-soft", "-hard", "-l big=1"]}, ["-ac a=1,b=-soft", "-hard", "-l big=1"]),
    ],
)
def test_directives(values: dict[str, Any], expected: list[str]) -> None:
    assert directives(**values) == [*HEAD, *expected]


@pytest.mark.parametrize(
    ("values", "key", "piece"),
    [
        ({"tasks": workers(4)}, "pe", "4 slots need a parallel environment"),
        ({"nodes": 2}, "pe", "2 slots"),
        ({"name": "3d"}, "name", "begins with a digit"),
        ({"name": None, "command": ["3d.py"]}, "name", "'3d' begins with a digit"),
        ({"pe": "mpi", "slots": "8-4"}, "slots", "empty range"),
        ({"pe": "mpi", "slots": "2-16", "tasks": workers(6)}, "slots", "2 slots for 6 training tasks"),
        ({"exclude": ["n[3-7]"]}, "exclude", "'n[3-7]' is not the name of a host"),
        ({"exclude": ["@gpu"]}, "exclude", "'@gpu' is not the name of a host"),
        ({"exclude": ["n3"], "native": ["-l hostname=n1"]}, "exclude", "native requests hosts as well"),
        ({"gpu_variable": "$SGE_GPU"}, "gpu_variable", "'$SGE_GPU' is not the name of a variable"),
        ({"gpus_per_task": 1, "gpu_resource": "gpu,x"}, "gpu_resource", "not the name of a resource"),
        (
            {"pe": "mpi", "partition": "gpu.q", "tasks": workers(2, ps={"count": 1, "partition": "cpu.q"})},
            "tasks.ps.partition",
            "cannot request other hosts",
        ),
        ({"pe": "mpi 99 -V"}, "pe", "a directive line cannot contain"),
        ({"partition": "-V"}, "partition", "a directive line cannot contain"),
        ({"account": "a\u00a0b"}, "account", "a directive line cannot contain"),
    ],
)
def test_impossible_requests_are_refused(values: dict[str, Any], key: str, piece: str) -> None:
    with pytest.raises(SpecError) as caught:
        directives(**values)
    assert caught.value.key == key
    assert piece in caught.value.what
    assert caught.value.hint


@pytest.mark.parametrize(
    ("consumable", "values", "amount"),
    [
        ("JOB", {}, "4"),
        ("JOB", {"nodes": 1}, "4"),
        ("HOST", {}, "4"),
        ("HOST", {"nodes": 2}, "2"),
        ("HOST", {"gpus_per_node": 2}, "2"),
        ("HOST", {"tasks": {}, "nodes": "2-3", "tasks_per_node": 2}, "2"),
        ("JOB", {"tasks": {}, "slots": 8}, "2"),
        ("NO", {}, "1"),
        ("YES", {}, "0.25"),
    ],
)
def test_amount_of_gpus_follows_how_they_are_counted(consumable: str, values: dict[str, Any], amount: str) -> None:
    made = plan("sge", name="x", **{"pe": "smp", "tasks": workers(4), "gpus_per_task": 1, "cpus_per_task": 4, **values})
    assert f"-l gpu={amount}" in sge.directives(
        made.replace(site=sge.Site([sge.Resource("gpu", "gpu", consumable, "INT")]))
    )


def test_gpus_that_count_per_job_are_all_on_one_host() -> None:
    made = plan("sge", name="x", pe="mpi", nodes=2, gpus_per_node=2)
    with pytest.raises(SpecError, match="2 hosts, but gpu counts per job") as caught:
        sge.directives(made.replace(site=sge.Site([sge.Resource("gpu", "gpu", "JOB", "INT")])))
    assert caught.value.key == "nodes"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("values", "key", "hint", "then"),
    [
        ({"tasks": workers(2)}, "cpus_per_task", "write slots = 2: ", {"slots": 2}),
        ({"tasks": workers(2), "slots": 8}, "slots", "write slots = 2: ", {"slots": 2}),
        ({"slots": 16}, "slots", "leave out cpus_per_task, and write slots = 4: ", {"slots": 4, "cpus_per_task": None}),
        (
            {"nodes": "2-4", "tasks_per_node": 1},
            "cpus_per_task",
            'leave out cpus_per_task, and write slots = "2-4": ',
            {"slots": "2-4", "cpus_per_task": None},
        ),
    ],
)
def test_whole_gpus_per_slot_are_explained(values: dict[str, Any], key: str, hint: str, then: dict[str, Any]) -> None:
    whole = sge.Resource("gpu", "gpu", "YES", "RSMAP")
    values = {"name": "x", "pe": "mpi", "gpus_per_task": 1, "cpus_per_task": 4, **values}
    with pytest.raises(SpecError, match=r"1 GPU for 4 slots would be gpu=0\.25 per slot") as caught:
        sge.directives(plan("sge", **values).replace(site=sge.Site([whole])))
    assert caught.value.key == key
    assert caught.value.hint.startswith(hint)
    assert "-l gpu=1" in sge.directives(
        plan("sge", **{**values, **then}).replace(site=sge.Site([whole]))
    )  # it is what works


def test_submit_command_has_the_paths_in_the_run_directory() -> None:
    command = scheduler.login.submit_command(plan("sge", run_dir="/runs/it's x"))
    assert command == ("qsub", "-terse", "-w", "n", "-o", "/runs/it's x/job.log")


def test_array_elements_have_logs_of_their_own() -> None:
    command = scheduler.login.submit_command(plan("sge", run_dir="/runs/x", native=("-t 1-3",)))
    assert command == ("qsub", "-terse", "-w", "n", "-o", "/runs/x/array/$TASK_ID/job.log")


@pytest.mark.parametrize("name", ["a,b", "a:b", "a$b", "a\nb"])
def test_paths_that_qsub_would_misread_are_refused(name: str) -> None:
    with pytest.raises(SpecError, match="run_dir") as caught:
        scheduler.login.submit_command(plan("sge", run_dir=f"/runs/{name}"))
    assert caught.value.hint


def test_is_available_needs_sge_root_and_qsub(tmp_path: Path) -> None:
    (tmp_path / "qsub").touch(mode=0o755)
    assert scheduler.is_available({"SGE_ROOT": "/sge", "PATH": str(tmp_path)})
    assert not scheduler.is_available({"PATH": str(tmp_path)})
    assert not scheduler.is_available({"SGE_ROOT": "/sge", "PATH": "/nowhere"})


def test_is_current_needs_variables_and_spool_folder() -> None:
    assert scheduler.is_current({"SGE_TASK_ID": "undefined", "JOB_ID": "3"})
    assert not scheduler.is_current({"SGE_TASK_ID": "undefined"})
    # the variables of a job that has submitted this one, elsewhere
    assert not scheduler.is_current({"SGE_TASK_ID": "undefined", "JOB_ID": "3", "SGE_JOB_SPOOL_DIR": "/nowhere/3.1"})
    carried = {"SGE_TASK_ID": "undefined", "JOB_ID": "3", "SGE_JOB_SPOOL_DIR": "/", "SLURM_JOB_ID": "7"}
    assert schedulers.around_this_process(carried) == "sge"
    assert schedulers.around_this_process({**carried, "SGE_JOB_SPOOL_DIR": "/nowhere/3.1"}) == "slurm"
    assert not scheduler.is_current({"SGE_ROOT": "/sge", "JOB_ID": "3"})


# --- the user's raw options


@pytest.mark.parametrize(
    ("native", "expected"),
    [
        ([], {}),
        (["-pe mpi 8", "-q a.q,b.q", "-P x"], {"pe": "mpi 8", "q": "a.q,b.q", "P": "x"}),
        (["-l gpu=1,arch=lx-amd64", "-l big"], {"l gpu": "1", "l arch": "lx-amd64", "l big": "1"}),
        (
            ["-soft -l gpu=1 -q b.q", "-t 1-3", "-hard -l x=2"],
            {"soft l gpu": "1", "soft q": "b.q", "t": "1-3", "l x": "2"},
        ),
        (["-notify", "-p -100", "-q a.q", "-q b.q"], {"notify": "", "p": "-100", "q": "b.q"}),
        (["-", "x", "-l", "-l ,=1"], {}),
    ],
)
def test_native_options_are_parsed(native: list[str], expected: dict[str, str]) -> None:
    assert parse_native(native) == expected


def test_request_has_native_options_and_elements() -> None:
    request = plan("sge", native=["-t 1-5:2", "-l gpu=1"], gpus_per_task=1).request
    assert (request.native, request.elements) == ({"t": "1-5:2", "l gpu": "1"}, ("1", "3", "5"))


@pytest.mark.parametrize(
    ("native", "expected"),
    [
        ([], ""),
        (["-l gpu=1", "-tc 4"], ""),
        (["-t 5"], "5"),
        (["-t 1-4"], "1 2 3 4"),
        (["-t 3-9:2 -tc 2"], "3 5 7 9"),
        (["-t 1,3"], "1 3"),
        (["-t 1-4", "-t 7-8"], "7 8"),  # the last one counts
    ],
)
def test_array_elements_are_parsed(native: list[str], expected: str) -> None:
    assert array_elements(parse_native(native)) == tuple(expected.split())


@pytest.mark.parametrize("text", ["0-3", "4-1", "a", "1-4:0", "1-", "1-99999999"])
def test_invalid_array_elements_are_refused(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        array_elements(parse_native([f"-t {text}"]))
    assert caught.value.key == "native"
    assert caught.value.hint


def test_spare_hosts_have_the_slots_of_others() -> None:
    spare = {"pe": "mpi", "restarts": 1, "spare_nodes": 2}
    assert directives(**spare, nodes=2, tasks_per_node=4) == [*HEAD, "-pe mpi 16"]
    assert directives(**spare, nodes=2, tasks_per_node=4, cpus_per_task=2) == [*HEAD, "-pe mpi 32"]
    assert directives(**spare, tasks=workers(8), tasks_per_node=4) == [*HEAD, "-pe mpi 16"]
    assert directives(**spare, tasks=workers(4), gpus_per_task=2, tasks_per_node=2) == [*HEAD, "-pe mpi 8", "-l gpu=2"]


def test_sweep_is_an_array_with_a_limit() -> None:
    swept = of_sweep(plan("sge", nodes=1), 12, 4)
    assert {"-t 1-12", "-tc 4"} <= {*sge.directives(swept)}
    packed = of_sweep(plan("sge", nodes=1, cpus_per_task=2, pe="smp"), 12, 4, pack=3)
    assert {"-t 1-12:3", "-pe smp 6"} <= {*sge.directives(packed)}
    with pytest.raises(SpecError, match="it counts those of one job"):
        of_sweep(plan("sge", nodes=1, pe="smp", slots=2), 12, 4, pack=3)
