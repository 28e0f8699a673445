"""Words from elsewhere: the tables agree with the commands, options and keys that exist. What users see of them is in
tests/golden/wrong-commands.txt."""

from __future__ import annotations

import re

import pytest

from gridtf import schedulers
from gridtf.cli import COMMANDS
from gridtf.cli.common import find_command
from gridtf.jobspec import synonyms
from gridtf.jobspec.spec import TaskSpec
from gridtf.jobspec.tasktypes import TASK_TYPES
from gridtf.values import fields
from tests.support.configuration import read

FLAGS = {flag: option.metavar for option in schedulers.job_options() for flag in option.flags}


def test_every_row_leads_to_something_that_exists() -> None:
    submit = {flag for action in find_command("submit").parser()._actions for flag in action.option_strings}
    lines = [*synonyms.rows("commands").values(), *synonyms.rows("no_commands").values()]
    assert {name for line in lines for name in re.findall(r"gridtf (\w+)", line)} <= set(COMMANDS)
    assert {command for commands, _, _ in synonyms.rows("of_commands") for command in commands.split()} <= set(COMMANDS)
    assert {f"--{name.replace('_', '-')}" for row in synonyms.rows("options") for name in row.split()} <= {
        *submit,
        "--command",
    }
    assert set(synonyms.rows("task_keys")) <= set(fields(TaskSpec))
    assert set(synonyms.rows("task_types")) <= set(TASK_TYPES)


def test_no_word_stands_in_two_rows() -> None:
    by_target = [synonyms.rows(name).values() for name in ("options", "task_keys", "task_types")]
    by_words = [synonyms.rows(name) for name in ("commands", "no_commands", "items", "typed", "answers")]
    for found in (*by_target, *by_words):
        words = [word for row in found for word in row.split()]
        assert len(words) == len(set(words))


@pytest.mark.parametrize(
    ("flag", "value", "line"),
    [
        ("--num-ps", "2", "--ps 2"),
        ("--gres", "gpu:2", "--gpus-per-node 2"),
        ("--gres", "gpu", "--gpus-per-node 1"),
        ("--gres", "shard:2", "--native=--gres=shard:2"),
        ("--gres", "gpu:a100:2,tmp:5", "--gpus-per-node a100:2 --native=--gres=tmp:5"),
        ("--gres", "gpu:a100:2,gpu:v100:2", "--native=--gres=gpu:a100:2,gpu:v100:2"),
        ("--comment", "two words", "--native='--comment=two words'"),
        ("--requeue", None, "--native=--requeue"),
        ("-l", "h_rt=3600", "--time 01:00:00"),
        ("-l", "arch=lx-amd64,mem_free=1G", "--native='-l arch=lx-amd64' --native='-l mem_free=1G'"),
        ("-d", "afterok:3", "--after 3"),
        ("--export", "A=1,B", "--env A=1 --env B"),
        ("--modules", "cuda", "--setup 'module load cuda'"),
        ("--workdir", "a b", "--chdir 'a b'"),
        ("--image", "tf.sif", "--container tf.sif"),
        ("--container-image", "nvcr.io#nvidia/tf:1", "--container docker://nvcr.io/nvidia/tf:1"),
        ("--container-mounts", "/data:/d", "--container-binds /data:/d"),
    ],
)
def test_line_to_write_carries_the_user_s_value(flag: str, value: str | None, line: str) -> None:
    assert synonyms.option(flag, value, "gridtf submit", FLAGS) == f"write {line}"


def test_line_to_write_is_accepted(tmp_path: object) -> None:
    import shlex
    from pathlib import Path

    hint = synonyms.option("-l", "h_rt=3600,gpu=1,mem_free=2G", "gridtf submit", FLAGS)
    words = shlex.split(hint.removeprefix("write "))
    made = synonyms.option("--mail", "a@b", "gridtf submit", FLAGS)
    assert shlex.split(made) == ["write", "--notify", "mail:a@b"]
    spec = read(" ".join([*words[:4], "--native=-l", "-- x"]), Path(str(tmp_path))).spec
    assert (spec.walltime, spec.gpus_per_task) == (3600, 1)
    assert words[4:] == ["--native=-l mem_free=2G"]


@pytest.mark.parametrize(
    ("name", "text", "items"),
    [
        ("command", "python train.py 'a b'", ["python", "train.py", "a b"]),
        ("command", "train.py --x", ["python", "train.py", "--x"]),
        ("command", "it's", ["it's"]),
        ("setup", "module load a\nmodule load b\n", ["module load a", "module load b"]),
        ("serve", "ps, worker", ["ps", "worker"]),
        ("native", "--qos=long", ["--qos=long"]),
        ("container_command", "ch-run {image} --", ["ch-run", "{image}", "--"]),
    ],
)
def test_string_in_place_of_a_list(name: str, text: str, items: list[str]) -> None:
    assert synonyms.as_list(name, text) == items
