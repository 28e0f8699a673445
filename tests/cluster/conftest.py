"""Test beds for the tests here: one of a kind for all of them, tidied after each test that has used it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.beds import beds_of
from tests.support.cluster import Bed
from tests.support.sgebed import GridEngineBed

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker("cluster")


@contextmanager
def bed_for_tests(kind: type[Bed] = Bed, **options: object) -> Iterator[Bed]:
    """A test bed with a state folder of its own, that is gone at the end whatever happens."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to bring up hosts")
    folder = tempfile.mkdtemp(prefix="tb-", dir="/tmp")  # short: sockets lie below it
    bed = kind(Path(folder) / "b")
    with _taken_down(bed, folder):
        try:
            bed.up(**options)  # type: ignore[arg-type]
        except AssertionError as error:
            if "cannot be installed" in str(error) or "missing here" in str(error):
                pytest.skip(str(error))
            raise
        yield bed


@contextmanager
def _taken_down(bed: Bed, folder: str) -> Iterator[None]:
    """By a process that learns from the end of its input that it is time: also when this one is killed, as pytest-xdist
    does with its workers when it is interrupted."""
    down = ["sh", "-c", 'cat; "$@"; code=$?; rm -rf "$0"; exit $code', folder, *bed.own_command("down")]
    guard = subprocess.Popen(down, env=bed.environ(), stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        assert guard.wait(120) == 0


@pytest.fixture
def bed(request: pytest.FixtureRequest) -> Bed:
    """The test bed whose name is the parameter: see tests/support/beds.py, on_every_scheduler."""
    found: Bed = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def slurm() -> Iterator[Bed]:
    """A Slurm cluster whose hosts all see the shared folder as it is."""
    with bed_for_tests() as bed:
        yield bed


@pytest.fixture(scope="session")
def laggy_slurm() -> Iterator[Bed]:
    """A Slurm cluster with a caching view of the shared folder on every host."""
    with bed_for_tests(shared="laggy") as bed:
        yield bed


@pytest.fixture(scope="session")
def constrained_slurm() -> Iterator[Bed]:
    """A Slurm cluster of a strict site: control groups keep the devices of others and more memory than it has asked for
    from a job, and srun ends tasks that outlive the first one by a second."""
    with bed_for_tests(cgroups=True, options=["WaitTime=1"]) as bed:
        yield bed


@pytest.fixture(scope="session")
def sge() -> Iterator[Bed]:
    """A Grid Engine cluster whose hosts all see the shared folder as it is."""
    with bed_for_tests(GridEngineBed) as bed:
        yield bed


@pytest.fixture(scope="session")
def laggy_sge() -> Iterator[Bed]:
    """A Grid Engine cluster with a caching view of the shared folder on every host."""
    with bed_for_tests(GridEngineBed, shared="laggy") as bed:
        yield bed


@pytest.fixture(autouse=True)
def _tidy(request: pytest.FixtureRequest) -> Iterator[None]:
    """The next test finds all hosts idle and no job."""
    beds = [request.getfixturevalue(name) for name in beds_of(request.node)]
    yield
    for bed in beds:
        bed.tidy()
