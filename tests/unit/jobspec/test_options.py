"""Flags, and the table of options."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridtf import schedulers
from gridtf.jobspec.options import MERGED, aliases, by_variable, flag
from gridtf.jobspec.spec import JobSpec, TaskSpec
from gridtf.jobspec.tasktypes import TASK_TYPES
from gridtf.values import fields
from tests.support.configuration import read, refused


def test_every_option_has_a_key_of_the_job_file() -> None:
    job, task = ({*fields(kind)} for kind in (JobSpec, TaskSpec))
    known = job | {f"tasks.{kind}.{name}" for kind in TASK_TYPES for name in task}
    assert {option.key for option in schedulers.job_options()} <= known | {*MERGED}


def test_every_jobspec_field_except_tables_and_command_has_an_option() -> None:
    keys = {option.key.partition(".")[0] for option in schedulers.job_options()} | {"command", "options"}
    assert keys - {*MERGED} == set(fields(JobSpec))


def test_no_two_options_share_a_flag() -> None:
    flags = [flag for option in schedulers.job_options() for flag in option.flags]
    assert len(flags) == len(set(flags))
    assert {"GRIDTF_SUBMIT_WORKERS", "GRIDTF_SUBMIT_QUEUE", "GRIDTF_SUBMIT_GPUS_PER_NODE"} <= by_variable(
        schedulers.job_options()
    ).keys()


def test_aliases_map_further_flags_to_keys() -> None:
    names = {
        "queue": "partition",
        "project": "account",
        "continue": "continuations",
        "mpi_type": "mpi",
        "set": "params",
    }
    assert aliases(schedulers.job_options()) == names


# --- flags


def test_every_flag_sets_its_key(tmp_path: Path) -> None:
    words = (
        "--scheduler slurm --name n --nodes 2-4 --gpus-per-node 4 --tasks-per-node 2 --gpus-per-task 2 "
        "--cpus-per-task 8 --mem 16G --time 1:30:00 --partition p --pe mpi --slots 8 --gpu-resource g --account a "
        "--gpu-variable V -x n3,n7 "
        "--workers 3 --ps 2 --chief --evaluator --serve ps --success-policy chief --env A=1=2 --env B= "
        "--setup a --setup b --python py --chdir c --template t --native --exclusive --native -l "
        "--address {short}-ib --run-dir d --run-root r --kill-grace 1 --start-timeout 2 --heartbeat-timeout 3.5 "
        "--evaluator-wait 4 -- cmd --wait -- --nodes 9"
    )
    assert read(words, tmp_path).spec == JobSpec(
        command=("cmd", "--wait", "--", "--nodes", "9"),
        scheduler="slurm",
        name="n",
        nodes="2-4",
        gpus_per_node=4,
        tasks_per_node=2,
        gpus_per_task=2,
        cpus_per_task=8,
        mem="16G",
        time="1:30:00",
        partition="p",
        pe="mpi",
        slots=8,
        gpu_resource="g",
        gpu_variable="V",
        exclude=("n3", "n7"),
        account="a",
        tasks={
            "worker": TaskSpec(count=3),
            "ps": TaskSpec(count=2),
            "chief": TaskSpec(count=1),
            "evaluator": TaskSpec(count=1),
        },
        serve=("ps",),
        success_policy="chief",
        env={"A": "1=2", "B": ""},
        setup=("a", "b"),
        python="py",
        chdir=str(tmp_path / "c"),
        template=str(tmp_path / "t"),
        native=("--exclusive", "-l"),
        address="{short}-ib",
        run_dir=str(tmp_path / "d"),
        run_root=str(tmp_path / "r"),
        kill_grace=1.0,
        start_timeout=2.0,
        heartbeat_timeout=3.5,
        evaluator_wait=4.0,
    )


@pytest.mark.parametrize(
    ("words", "key", "value", "source"),
    [
        ("-N 2", "nodes", 2, "-N"),
        ("-N2", "nodes", 2, "-N"),
        ("--nodes=2", "nodes", 2, "--nodes"),
        ("--nodes 1 --nodes 2", "nodes", 2, "--nodes"),
        ("-J x", "name", "x", "-J"),
        ("-t 90m", "time", "90m", "-t"),
        ("-c 4", "cpus_per_task", 4, "-c"),
        ("-q all.q", "partition", "all.q", "-q"),
        ("--queue all.q", "partition", "all.q", "--queue"),
        ("--project p", "account", "p", "--project"),
        ("--ps-builtin --ps 1", "serve", ("ps",), "--ps-builtin"),
        ("--serve ps,worker --chief", "serve", ("ps", "worker"), "--serve"),
        ("--chief --serve worker --ps-builtin", "serve", ("worker", "ps"), "--ps-builtin"),
        ("--chief --serve worker --serve ps", "serve", ("worker", "ps"), "--serve"),
        ("--no-setup --setup a", "setup", ("a",), "--setup"),
        ("--native a --native a", "native", ("a", "a"), "--native"),
    ],
)
def test_flag_spellings_and_their_sources(words: str, key: str, value: object, source: str, tmp_path: Path) -> None:
    made = read(f"{words} -- x", tmp_path)
    assert (getattr(made.spec, key), made.sources.get(key) or made.sources[f"{key}.1"]) == (value, source)


def test_env_flag_with_a_name_alone_copies_the_variable(tmp_path: Path) -> None:
    assert read("--env TOKEN -- x", tmp_path, {"TOKEN": "t=1"}).spec.env == {"TOKEN": "t=1"}
    assert str(refused("--env TOKEN -- x", tmp_path)).startswith("--env: TOKEN is not set")


@pytest.mark.parametrize(
    ("words", "what", "hint"),
    [
        ("--nods 2 -- x", "unknown option --nods", "did you mean --nodes?"),
        ("--gpus-per-nod=2 -- x", "unknown option --gpus-per-nod", "did you mean --gpus-per-node"),
        ("--part p -- x", "unknown option --part", "did you mean --partition"),
        ("--ngpus 2 -- x", "unknown option --ngpus", "write --gpus-per-node 2 (on each host) or --gpus-per-task 2"),
        ("--cpus=2 -- x", "unknown option --cpus", "write --cpus-per-task 2"),
        ("--ntasks 2 -- x", "unknown option --ntasks", "write --workers 2"),
        ("--wckey=long -- x", "unknown option --wckey", "--native=--wckey=long"),
        ("-l gpu=1 -- x", "unknown option -l", "write --gpus-per-task 1"),
        ("--zeta=.5 -- x", "unknown option --zeta", "options of your program go after it: "),
        ("--nodes -- x", "--nodes lacks its value", "write --nodes N[-M]"),
        ("--nodes 0 -- x", "--nodes: '0' is not a node count", "write a number, or a range such as 2-4"),
        ("--workers ٣ -- x", "--workers: '٣' is not a whole number of 0 or more", ""),
        ("--workers 1_0 -- x", "--workers: '1_0' is not a whole number of 0 or more", ""),
        ("--workers +3 -- x", "--workers: '+3' is not a whole number of 0 or more", ""),
        ("--workers -3 -- x", "--workers: -3 is not a whole number of 0 or more", ""),
        ("--kill-grace 1_0 -- x", "--kill-grace: '1_0' is not a number of seconds", ""),
        ("--workers two -- x", "--workers: 'two' is not a whole number of 0 or more", ""),
        ("--kill-grace soon -- x", "--kill-grace: 'soon' is not a number of seconds", ""),
        ("-t soon -- x", "-t: 'soon' is not a walltime", "90m"),
        ("--env A-B=1 -- x", "--env: 'A-B' is not a name that a shell can export", ""),
        ("--workers 0 -- x", "--workers: no worker and no chief: nothing would train", ""),
        ("--entry a:b -- x", "--entry: both a command and an entry function are given", "keep one of them"),
        ("--address hosti -- x", "--address: 'hosti' is the same on every host", 'as {host}, such as "{host}i"'),
        ("--address {hots}i -- x", "--address: there is no placeholder {hots}", "write {host}, "),
        (
            "--address {host}i --interface ib0 -- x",
            "--interface: both an address and an interface are given, '{host}i' and 'ib0'",
            "choose one of them",
        ),
        ("--workers 2", "nothing to run", "give a command after --"),
        ("--workers 2 --", "there is no command after --", ""),
        (
            "python train.py --nodes 2",
            "python is not a job file",
            "write: gridtf_run --nodes 2 -- python train",
        ),
        ("python train.py --epochs 2", "python is not a job file", "write: gridtf_run -- python train.py --ep"),
    ],
)
def test_invalid_flag_is_reported_with_a_hint(words: str, what: str, hint: str, tmp_path: Path) -> None:
    error = refused(words, tmp_path)
    assert error.what == what
    assert hint in error.hint
    assert error.exit_code == 2


def test_flag_of_a_key_as_messages_show_it() -> None:
    keys = ("time", "native", "tasks.ps.cpus", "SBATCH_TIMELIMIT")
    assert [flag(key) for key in keys] == ["--time", "--native", "tasks.ps.cpus", "SBATCH_TIMELIMIT"]
