"""The topics of scripts/test that a test belongs to. Each topic is a marker as well: ``pytest -m sge``."""

from __future__ import annotations

import re
from pathlib import PurePath

import pytest

from tests.support.beds import beds_of

TOPICS = {
    "fast": "unit tests that start no TensorFlow",
    "local": "real jobs of the local scheduler",
    "slurm": "Slurm: unit tests and a real cluster",
    "sge": "Grid Engine: unit tests and a real cluster",
}


def topics_of(item: pytest.Item) -> set[str]:
    """Topics of a test, by its folder and by schedulers named in its path and beds: test_sge_jobs.py, laggy_sge."""
    path = item.path.relative_to(item.config.rootpath)
    return topics(path, beds_of(item), tensorflow=item.get_closest_marker("tensorflow") is not None)


def topics(path: PurePath, beds: list[str], *, tensorflow: bool = False) -> set[str]:
    """The topics of tests in a file, from its folder and the scheduler names in its path and beds (laggy_sge)."""
    folder = path.parts[1]  # tests/FOLDER/…
    found = set(re.findall("[a-z]+", " ".join([*path.parts[1:], *beds]))) & {"local", "slurm", "sge"}
    if folder == "unit" or path.parts[0] == "examples":
        found.add("local" if tensorflow else "fast")
    elif folder == "faults":
        found.add("local")
    return found
