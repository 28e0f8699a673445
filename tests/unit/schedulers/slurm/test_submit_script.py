"""Directives and the sbatch command. Their forms were tried on Slurm 22.05."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gridtf.errors import SpecError
from gridtf.schedulers.slurm import advice, scheduler, submit
from tests.support.rendering import of_sweep, plan


def directives(**values: Any) -> list[str]:
    return list(scheduler.login.directives(plan("slurm", name="x", **values)))


def with_name(*options: str) -> list[str]:
    return ["--job-name=x", *options, "--open-mode=append"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ["--nodes=1", "--ntasks-per-node=1"]),
        ({"nodes": 3}, ["--nodes=3", "--ntasks-per-node=1"]),
        ({"nodes": "2-4", "tasks_per_node": 8}, ["--nodes=2-4", "--ntasks-per-node=8"]),
        ({"tasks": {"worker": {"count": 5}}, "nodes": 2}, ["--nodes=2", "--ntasks-per-node=3"]),
        ({"nodes": 2, "gpus_per_node": 4}, ["--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4"]),
        (
            {"nodes": 2, "gpus_per_node": 4, "gpus_per_task": 2, "cpus_per_task": 8},
            ["--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=8", "--gpus-per-node=4"],
        ),
        ({"gpus_per_node": 0}, ["--nodes=1", "--ntasks-per-node=1"]),
        ({"mem": "1.5G"}, ["--nodes=1", "--ntasks-per-node=1", "--mem=1536M"]),
        ({"time": 90}, ["--nodes=1", "--ntasks-per-node=1", "--time=01:30:00"]),
        ({"time": "2d"}, ["--nodes=1", "--ntasks-per-node=1", "--time=2-00:00:00"]),
        (
            {"time": "8h", "time_min": 60},
            ["--nodes=1", "--ntasks-per-node=1", "--time=08:00:00", "--time-min=01:00:00"],
        ),
        (
            {"partition": "gpu,long", "account": "ml-1"},
            ["--nodes=1", "--ntasks-per-node=1", "--partition=gpu,long", "--account=ml-1"],
        ),
        ({"exclude": ["n3", "n[5-7]"]}, ["--nodes=1", "--ntasks-per-node=1", "--exclude=n3,n[5-7]"]),
    ],
)
def test_directives_of_each_request(values: dict[str, Any], expected: list[str]) -> None:
    assert directives(**values) == with_name(*expected)


@pytest.mark.parametrize(
    ("tasks", "more", "cpus"),
    [
        # 4 training tasks a node on 2 nodes; non-training tasks must have their CPUs on the fullest node
        ({"worker": {"count": 8}}, {}, None),
        ({"worker": {"count": 8}}, {"cpus_per_task": 6}, 6),
        ({"worker": {"count": 8}, "ps": {"count": 2}}, {"cpus_per_task": 6}, 8),  # (4 x 6 + 6) / 4, rounded up
        ({"worker": {"count": 8}, "ps": {"count": 3, "cpus": 2}}, {"cpus_per_task": 6}, 7),  # (4 x 6 + 2 x 2) / 4
        ({"worker": {"count": 8, "cpus": 3}, "evaluator": {"count": 1, "cpus": 1}}, {}, 4),
        ({"worker": {"count": 8}, "ps": {"count": 1, "cpus": 4}}, {}, 2),  # 1 CPU a worker, Slurm's default
        ({"chief": {"count": 1, "cpus": 5}, "worker": {"count": 7, "cpus": 3}}, {}, 5),
    ],
)
def test_cpus_per_task_includes_non_training_tasks(
    tasks: dict[str, Any], more: dict[str, Any], cpus: int | None
) -> None:
    lines = directives(nodes=2, tasks_per_node=4, tasks=tasks, **more)
    assert [line for line in lines if "cpus" in line] == ([] if cpus is None else [f"--cpus-per-task={cpus}"])


def test_hosts_are_excluded_from_every_component() -> None:
    lines = directives(partition="gpu", tasks=on_cpu(), exclude=["n3"])
    assert [line for line in lines if "exclude" in line or line == "hetjob"] == [
        "--exclude=n3",
        "hetjob",
        "--exclude=n3",
    ]
    with pytest.raises(SpecError, match="exclude: a directive line cannot contain"):
        directives(exclude=["n3 -x"])


@pytest.mark.parametrize(
    ("notify", "native", "expected"),
    [
        ("mail", [], ["--mail-type=END,FAIL,REQUEUE"]),
        ("mail:ann@example.org", [], ["--mail-type=END,FAIL,REQUEUE", "--mail-user=ann@example.org"]),
        ("mail", ["--mail-user=bob"], ["--mail-type=END,FAIL,REQUEUE", "--mail-user=bob"]),
        ("mail:ann", ["--mail-type ALL", "--mail-user=bob"], ["--mail-type ALL", "--mail-user=bob"]),
    ],
)
def test_mail_is_requested_except_what_the_user_s_own_options_say(
    notify: str, native: list[str], expected: list[str]
) -> None:
    assert [line for line in directives(notify=notify, native=native) if "mail" in line] == expected


def test_memory_is_the_sum_of_all_tasks_and_required_of_each() -> None:
    tasks = {"worker": {"count": 8, "mem": "4G"}, "ps": {"count": 2, "mem": "1G"}}
    assert "--mem=17408M" in directives(nodes=2, tasks=tasks)  # 4 x 4G + 1G
    assert "--mem=20480M" in directives(nodes=2, tasks=tasks, mem="20G")
    del tasks["ps"]["mem"]
    assert "--mem=18432M" in directives(nodes=2, tasks=tasks, mem_per_task="2G")  # 4 x 4G + 2G
    with pytest.raises(SpecError) as caught:
        directives(nodes=2, tasks=tasks)
    assert caught.value.key == "tasks.ps.mem"


# --- tasks with a partition of their own


def on_cpu(**more: Any) -> dict[str, Any]:
    return {"worker": {"count": 8}, "ps": {"count": 2, "partition": "cpu", **more}}


def second(lines: list[str]) -> list[str]:
    return lines[lines.index("hetjob") + 1 :]


def test_tasks_with_another_partition_are_a_heterogeneous_component() -> None:
    lines = directives(nodes=2, gpus_per_node=4, partition="gpu", native=["--qos=high"], tasks=on_cpu(cpus=3))
    assert lines == [
        *with_name("--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4", "--partition=gpu"),
        "--qos=high",  # the user's own options are the first component's
        "hetjob",
        "--partition=cpu",
        "--nodes=1-2",
        "--ntasks=2",
        "--cpus-per-task=3",
    ]


def test_component_of_one_task_requests_one_node_and_no_more() -> None:
    tasks = {"worker": {"count": 1}, "evaluator": {"partition": "cpu"}}
    assert second(directives(tasks=tasks)) == ["--partition=cpu", "--nodes=1", "--ntasks=1"]


def test_task_types_share_a_component_if_their_partition_is_equal() -> None:
    tasks = {**on_cpu(cpus=2), "evaluator": {"partition": "cpu", "cpus": 5}}
    assert second(directives(tasks=tasks)) == ["--partition=cpu", "--nodes=1-3", "--ntasks=3", "--cpus-per-task=5"]
    tasks["evaluator"] = {"partition": "big", "mem": "9G"}
    assert second(directives(tasks=tasks)) == [
        *["--partition=cpu", "--nodes=1-2", "--ntasks=2", "--cpus-per-task=2", "hetjob"],
        *["--partition=big", "--nodes=1", "--ntasks=1", "--mem-per-cpu=9216M"],
    ]


@pytest.mark.parametrize(
    "tables",
    [{"ps": {"count": 2, "partition": "gpu"}}, {"ps": {"count": 0, "partition": "cpu"}}],
    ids=["the job's own", "no task"],
)
def test_no_second_component_for_the_same_partition_or_no_task(tables: dict[str, Any]) -> None:
    lines = directives(partition="gpu", tasks={"worker": {"count": 8}, **tables})
    assert lines == with_name("--nodes=1", "--ntasks-per-node=8", "--partition=gpu")


def test_first_component_has_no_resources_of_other_components() -> None:
    lines = directives(nodes=2, tasks_per_node=4, cpus_per_task=6, mem_per_task="6G", tasks=on_cpu())
    assert lines == [
        *with_name("--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=6", "--mem-per-cpu=1024M"),
        *["hetjob", "--partition=cpu", "--nodes=1-2", "--ntasks=2", "--cpus-per-task=6", "--mem-per-cpu=1024M"],
    ]


@pytest.mark.parametrize(
    ("values", "first", "other"),
    [
        # sbatch would copy --mem to the second component, where it conflicts with --mem-per-cpu
        ({"gpus_per_node": 3, "mem": "10G"}, "--mem-per-gpu=3414M", None),
        ({"tasks_per_node": 3, "mem": "10G"}, "--mem-per-cpu=3414M", None),
        ({"tasks_per_node": 3, "mem": "10G", "cpus_per_task": 2}, "--mem-per-cpu=1707M", None),
        ({"tasks_per_node": 3, "mem": "10G", "ps": {"mem": "8G", "cpus": 3}}, "--mem-per-cpu=3414M", "2731M"),
        ({"tasks_per_node": 3, "ps": {"mem": "8G"}}, None, "8192M"),  # the workers have the site's default
        ({"gpus_per_node": 2, "mem_per_task": "6G", "ps": {"mem": "1G"}}, "--mem-per-gpu=6144M", "1024M"),
    ],
)
def test_memory_of_a_heterogeneous_job(values: dict[str, Any], first: str | None, other: str | None) -> None:
    tasks = {"ps": {"count": 2, "partition": "cpu", **values.pop("ps", {})}}
    lines = directives(tasks=tasks, **values)
    mem = [line for line in lines[: lines.index("hetjob")] if line.startswith("--mem")]
    assert mem == ([] if first is None else [first])
    mem = [line for line in second(lines) if line.startswith("--mem")]
    assert mem == ([] if other is None else [f"--mem-per-cpu={other}"])


def test_component_memory_is_required_of_all_task_types() -> None:
    with pytest.raises(SpecError) as caught:
        directives(tasks={**on_cpu(mem="2G"), "evaluator": {"partition": "cpu"}})
    assert caught.value.key == "tasks.evaluator.mem"


def test_unsafe_partition_of_tasks_is_refused_with_its_key() -> None:
    with pytest.raises(SpecError) as caught:
        directives(tasks={"ps": {"count": 1, "partition": "a b"}})
    assert caught.value.key == "tasks.ps.partition"


def test_array_of_heterogeneous_jobs_is_refused() -> None:
    with pytest.raises(SpecError, match="job array") as caught:
        directives(native=["--array=1-2"], tasks=on_cpu())
    assert caught.value.key == "tasks.ps.partition"
    assert "hetjob" not in directives(native=["--array=1-2"], tasks={"ps": {"count": 2}})


def test_native_options_come_last_and_unchanged() -> None:
    native = ["--qos=high", '--comment="two words"', "--exclusive"]
    assert directives(native=native)[-4:] == ["--open-mode=append", *native]


def test_job_that_is_to_go_on_may_be_requeued_unless_the_user_forbids_it() -> None:
    values = {"time": "1h", "checkpoint_before": "5m", "native": ["--no-requeue"]}
    assert directives(**values, continuations=2)[-2:] == ["--requeue", "--no-requeue"]
    assert "--requeue" not in directives(**values)


@pytest.mark.parametrize(("before", "seconds"), [("5m", 300), ("2-00:00:00", 65535)])
def test_slurm_requests_the_checkpoint_unless_the_user_has_a_signal(before: str, seconds: int) -> None:
    values = {"time": "7-00:00:00", "checkpoint_before": before}
    assert directives(**values)[-1] == f"--signal=B:USR1@{seconds}"
    own = directives(**values, native=["--signal=USR2@60"])
    assert [line for line in own if "signal" in line] == ["--signal=USR2@60"]
    assert not [line for line in directives(time="1h") if "signal" in line]


@pytest.mark.parametrize("native", ["qos=high", "", " --qos=x", "--qos=x\t"])
def test_native_that_is_no_option_is_refused(native: str) -> None:
    with pytest.raises(SpecError, match="is not an option"):
        directives(native=[native])


@pytest.mark.parametrize("key", ["partition", "account"])
@pytest.mark.parametrize("value", ["a b", 'a"b', "a'b", "p#1", "a\\b", "-x", "`x`", "a\u2028b"])
def test_unsafe_characters_in_directives_are_refused(key: str, value: str) -> None:
    with pytest.raises(SpecError) as caught:
        directives(**{key: value})
    assert caught.value.key == key
    assert caught.value.why
    assert caught.value.hint


def test_more_workers_than_slots_are_refused() -> None:
    with pytest.raises(SpecError, match="9 training tasks do not fit"):
        directives(nodes=2, tasks_per_node=4, tasks={"worker": {"count": 9}})


def test_submit_command_has_the_options_with_the_run_directory() -> None:
    command = scheduler.login.submit_command(plan("slurm", run_dir="/runs/it's 100%j"))
    assert command == ("sbatch", "--parsable", "--output=/runs/it's 100%%j/job.log")
    with pytest.raises(SpecError, match="run_dir"):
        scheduler.login.submit_command(plan("slurm", run_dir="/runs/a\\b"))


def test_is_available_where_sbatch_is_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not scheduler.is_available({})
    assert not scheduler.is_available({"PATH": str(tmp_path)})
    sbatch = tmp_path / "sbatch"
    sbatch.touch(mode=0o755)
    path = f"/nowhere::{tmp_path}"
    assert scheduler.is_available({"PATH": path, "SLURM_CONF": "/site/slurm.conf"})
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for code in (1, 0):
        sbatch.write_text(f"#!/bin/sh\nexit {code}\n")
        assert scheduler.is_available({"PATH": path}) == (code == 0 or Path("/etc/slurm/slurm.conf").exists())


def test_is_current_with_slurm_job_id() -> None:
    assert scheduler.is_current({"SLURM_JOB_ID": "4711"})
    assert not scheduler.is_current({"PATH": "/bin"})


@pytest.mark.parametrize(
    ("option", "note"),
    [
        ("--output=/o", "native --output=/o has no effect: the output of the script goes to /runs/x/job.log"),
        ("-o /o", "native --output=/o has no effect: the output of the script goes to /runs/x/job.log"),
        ("--open-mode=truncate", None),
    ],
)
def test_note_on_native_output_option_without_effect(
    option: str, note: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "check", lambda plan: ())
    assert scheduler.login.check(plan("slurm", native=[option], run_dir="/runs/x")) == (() if note is None else (note,))


@pytest.mark.parametrize(
    ("native", "options"),
    [
        (["--qos=high", "-p gpu", "-t2:00", "-N=2"], {"qos": "high", "partition": "gpu", "time": "2:00", "nodes": "2"}),
        (['--comment="see --array=3"  # a note'], {"comment": "see --array=3"}),
        (["--exclusive", "--mem 4G"], {"exclusive": "", "mem": "4G"}),
        (["--nodes=1", "--nodes=2"], {"nodes": "2"}),
        (["--comment='a b", "-n4"], {"comment": "'a", "ntasks": "4"}),
    ],
)
def test_native_options_are_parsed_as_sbatch_reads_them(native: list[str], options: dict[str, str]) -> None:
    assert submit.parse_native(native) == options


def test_restarts_outlive_lost_nodes_and_spare_ones_are_requested() -> None:
    once = with_name("--nodes=2", "--ntasks-per-node=1")
    assert directives(nodes=2, restarts=1) == [*once, "--no-kill"]
    assert directives(nodes=1, restarts=1) == with_name("--nodes=1", "--ntasks-per-node=1")
    assert directives(nodes=2, restarts=1, spare_nodes=2)[1] == "--nodes=4"
    assert directives(nodes="2-3", restarts=1, spare_nodes=1)[1] == "--nodes=3-4"
    assert directives(tasks={"worker": {"count": 4}}, tasks_per_node=2, restarts=1, spare_nodes=1)[1] == "--nodes=3"


def test_spare_node_of_a_job_of_one_node_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        directives(nodes=1, restarts=1, spare_nodes=1)
    assert (caught.value.key, caught.value.hint) == ("spare_nodes", "leave it out, or request more nodes or workers")


def test_sweep_is_an_array_with_a_limit() -> None:
    swept = of_sweep(plan("slurm", nodes=1), 12, 4)
    assert "--array=1-12%4" in submit.directives(swept)
    assert "/array/%a/job.log" in submit.submit_command(swept)[-1]


def test_packed_elements_request_the_sum_on_one_host() -> None:
    one: dict[str, Any] = {
        "nodes": 1,
        "gpus_per_node": 1,
        "cpus_per_task": 2,
        "mem_per_task": "1G",
        "tasks": {"ps": {"count": 1}},
    }
    plain = [*submit.directives(plan("slurm", **one))]
    packed = submit.directives(of_sweep(plan("slurm", **one), 12, 4, pack=3))
    assert "--array=1-12:3%4" in packed
    for option in ("ntasks-per-node", "gpus-per-node", "mem"):
        alone = next(line for line in plain if line.startswith(f"--{option}="))
        number = int(alone.partition("=")[2].rstrip("M"))
        assert alone.replace(str(number), str(3 * number)) in packed
    cpus = next(line for line in plain if line.startswith("--cpus-per-task="))
    assert cpus in packed


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"native": ["--array=1-3"]}, "native"),
        ({"nodes": 2}, "pack"),
        ({"nodes": 1, "tasks": {"ps": {"count": 1, "partition": "cpu"}}}, "pack"),
    ],
)
def test_sweeps_that_slurm_cannot_pack(values: dict[str, Any], key: str) -> None:
    with pytest.raises(SpecError) as caught:
        of_sweep(plan("slurm", **values), 4, 2, pack=2)
    assert caught.value.key == key
