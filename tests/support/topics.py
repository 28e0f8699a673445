"""The topics of scripts/test that a test belongs to. Each topic is a marker as well: ``pytest -m sge``."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

import pytest

from tests.support.beds import beds_of
from tests.support.versions import version_of

TOPICS = {
    "fast": "unit tests that start no TensorFlow and take little time, with some of the inputs of those with many",
    "smoke": "with fast, what a plain scripts/test runs: SMOKE in tests/support/topics.py",
    "local": "real jobs of the local scheduler",
    "slurm": "Slurm: unit tests and a real cluster",
    "sge": "Grid Engine: unit tests and a real cluster",
    "checkout": "the checkout: its scripts, documents, locks, wheel, site and imports",
    "thorough": "unit tests that take an eighth of a second or more, and more inputs for others",
}
# Topic -> words in the paths of the tests of a feature, wherever they are.
FEATURES = {
    "advise": {"advise", "advice"},
    "chains": {"chains"},
    "checkpoints": {"checkpoints", "checkpointfolder", "walltime", "resume", "save"},
    "compare": {"compare", "difference", "diff"},
    "containers": {"containers"},
    "doctor": {"doctor", "probe", "examine", "pilot"},
    "exec": {"exec", "shell"},
    "fence": {"fence"},
    "hooks": {"hooks", "trackers"},
    "hostcheck": {"hostcheck", "badhosts", "bad"},
    "join": {"join"},
    "metrics": {"metrics"},
    "monitor": {"monitor"},
    "mpi": {"mpi"},
    "report": {"report", "charts"},
    "rerun": {"rerun", "like"},
    "restarts": {"restarts", "attempts", "reduced", "membership"},
    "snapshot": {"snapshot"},
    "stage": {"stage", "staging"},
    "stalls": {"stalls", "stacks", "straggler", "slow"},
    "sweeps": {"sweeps", "sweep"},
    "tensorboard": {"tensorboard"},
    "training": {"training", "averaging", "roles"},
    "upgrade": {"upgrade"},
    "when": {"when"},
}
# What a plain scripts/test runs besides the fast tests: files, or tests with all or one of their parameters.
SMOKE = (
    "tests/checkout/test_architecture.py",
    "tests/checkout/test_docs.py",
    # jobs on this machine: a program with flags, a strategy, a worker that fails
    "tests/local/test_examples.py::test_example_reaches_its_accuracy[ps_flags]",
    "tests/local/test_examples.py::test_example_reaches_its_accuracy[multiworker]",
    "tests/local/test_first_cause.py::test_first_cause_of_a_training_that_fails[raises]",
    # on a real Slurm and a real Grid Engine
    "tests/cluster/test_jobs.py::test_submit_wait_status_list_and_logs",
    "tests/cluster/test_jobs.py::test_killed_task_on_another_host_fails_the_job",
    "tests/cluster/test_jobs.py::test_cancel_ends_tasks_that_ignore_sigterm",
    "tests/cluster/test_scripts.py::test_several_gridtf_run_in_one_script",
    "tests/cluster/test_training.py::test_multi_worker_mirrored_strategy_over_several_hosts",
)


def fast(count: int, *inputs: Any) -> list[Any]:
    """Inputs of a test, of which the first few are fast and the others thorough."""
    return [*inputs[:count], *(pytest.param(one, marks=pytest.mark.thorough) for one in inputs[count:])]


def topics_of(item: pytest.Item) -> set[str]:
    """Topics of a test, by its folder and by schedulers named in its path and beds: test_sge_jobs.py, laggy_sge."""
    if version_of(item):
        return {"versions"}
    path = item.path.relative_to(item.config.rootpath)
    marks = {mark.name for mark in item.iter_markers()}
    return topics(path, beds_of(item), marks) | ({"smoke"} if is_smoke(f"{path}::{item.name}") else set())


def topics(path: PurePath, beds: list[str], marks: set[str]) -> set[str]:
    """The topics of tests, from their folder, features and schedulers in its path and beds (laggy_sge), and marks."""
    folder = path.parts[1]  # tests/FOLDER/…
    words = set(re.findall("[a-z]+", " ".join([*path.parts[1:], *beds])))
    found = words & {"local", "slurm", "sge", "checkout"}
    found |= {feature for feature, own in FEATURES.items() if words & own}
    if folder == "unit" or path.parts[0] == "examples":
        found.add("local" if "tensorflow" in marks else "thorough" if "thorough" in marks else "fast")
    elif folder == "faults":
        found.add("local")
    return found


def main_topic(item: pytest.Item) -> str:
    """The topic by which a test is counted that was left out."""
    marks = {mark.name for mark in item.iter_markers()}
    topics = ("thorough", "checkout", "slurm", "sge", "local", "fast", "versions")
    return next(topic for topic in topics if topic in marks)


def is_smoke(name: str) -> bool:
    """Whether SMOKE has a test, its file, or it with any parameters."""
    return not {name, name.partition("::")[0], name.partition("[")[0]}.isdisjoint(SMOKE)
