"""Fixtures that start real jobs; tests/conftest.py imports them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import LaunchedJob

Launch = Callable[..., LaunchedJob]
Program = Callable[[str, str], str]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """launch(command, **spec): start a job in tmp_path; it is ended with the test."""
    jobs: list[LaunchedJob] = []

    def start(
        *command: str,
        hosts: Any = (),
        folder: Path = tmp_path,
        prefix: Any = (),
        seen_as: Path | None = None,
        env: Any = None,
        **spec: Any,
    ) -> LaunchedJob:
        whole = {"command": list(command), **spec}
        jobs.append(LaunchedJob(folder, whole, hosts, prefix, seen_as, **(env or {})))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """program(name, text): write a shell script that a task can run; returns its path."""
    bash = shutil.which("bash") or "bash"

    def write(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_text(f"#!{bash}\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return write
