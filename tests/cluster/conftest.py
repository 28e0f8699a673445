"""Test beds for the tests on clusters: one of each kind per session, tidied after each test that uses it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.beds import UP, beds_of
from tests.support.cluster import Bed
from tests.support.sgebed import GridEngineBed

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker("cluster")


@contextmanager
def bed_for_tests(kind: type[Bed] = Bed, **options: object) -> Iterator[Bed]:
    """A test bed with its own state folder; it is taken down and removed at the end, whatever happens."""
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
        UP.append(bed)
        try:
            yield bed
        finally:
            UP.remove(bed)


@contextmanager
def _taken_down(bed: Bed, folder: str) -> Iterator[None]:
    """Take the bed down from a separate process at the end of its input, so that this also happens when this process is
    killed, as pytest-xdist does with its workers when it is interrupted."""
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
    """The test bed that the parameter names: see on_every_scheduler in tests/support/beds.py."""
    named: Bed = request.getfixturevalue(request.param)
    return named


@pytest.fixture(scope="session")
def slurm() -> Iterator[Bed]:
    """A Slurm cluster with a shared folder that no host caches."""
    with bed_for_tests() as bed:
        yield bed


@pytest.fixture(scope="session")
def laggy_slurm() -> Iterator[Bed]:
    """A Slurm cluster whose hosts cache the shared folder."""
    with bed_for_tests(shared="laggy") as bed:
        yield bed


@pytest.fixture(scope="session")
def remote_slurm() -> Iterator[Bed]:
    """A Slurm cluster whose hosts reach the shared folder over their links, and that gives up a host which it does
    not reach after 45 s (at most sites it is 300 s)."""
    with bed_for_tests(shared="remote", options=["SlurmdTimeout=45"]) as bed:
        yield bed


@pytest.fixture(scope="session")
def constrained_slurm() -> Iterator[Bed]:
    """A Slurm cluster of a strict site: control groups limit a job to its own devices and the memory that it requests,
    and srun ends tasks one second after the first task has ended."""
    with bed_for_tests(cgroups=True, options=["WaitTime=1"]) as bed:
        yield bed


@pytest.fixture(scope="session")
def sge() -> Iterator[Bed]:
    """A Grid Engine cluster with a shared folder that no host caches."""
    with bed_for_tests(GridEngineBed) as bed:
        yield bed


@pytest.fixture(scope="session")
def laggy_sge() -> Iterator[Bed]:
    """A Grid Engine cluster whose hosts cache the shared folder."""
    with bed_for_tests(GridEngineBed, shared="laggy") as bed:
        yield bed


@pytest.fixture(scope="session")
def remote_sge() -> Iterator[Bed]:
    """A Grid Engine cluster whose hosts reach the shared folder over their links."""
    with bed_for_tests(GridEngineBed, shared="remote") as bed:
        yield bed


@pytest.fixture(scope="session")
def two_network_slurm() -> Iterator[Bed]:
    """A Slurm cluster with a second network, whose srun listens on ports that no task has."""
    with bed_for_tests(second_network=True, options=["SrunPortRange=61001-62000"]) as bed:
        yield bed


@pytest.fixture(scope="session")
def two_network_sge() -> Iterator[Bed]:
    """A Grid Engine cluster with a second network."""
    with bed_for_tests(GridEngineBed, second_network=True) as bed:
        yield bed


@pytest.fixture(autouse=True)
def _tidy(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make sure that the next test finds all hosts idle and no job."""
    beds = [request.getfixturevalue(name) for name in beds_of(request.node)]
    yield
    for bed in beds:
        bed.tidy()
