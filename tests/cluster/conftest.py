"""Test beds for the tests on clusters: one of each kind per session, tidied after each test that uses it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.beds import BEDS, UP, beds_of, of_version
from tests.support.cluster import Bed
from tests.support.mpi import need_open_mpi
from tests.support.sgebed import GridEngineBed, installed
from tests.support.versions import repeat

_HERE = Path(__file__).parent


_of_slurm = ""  # the version of the beds, where it is not that of this machine


def pytest_configure(config: pytest.Config) -> None:
    global _of_slurm  # for tests that have a bed of their own
    _of_slurm = config.getoption("slurm")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker("cluster")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    repeat(metafunc, tuple(BEDS))


@contextmanager
def bed_for_tests(kind: type[Bed] = Bed, **options: object) -> Iterator[Bed]:
    """A test bed with its own state folder; it is taken down and removed at the end, whatever happens."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to bring up hosts")
    need_open_mpi()  # before the hosts get a copy of /etc, through which its links lead
    folder = tempfile.mkdtemp(prefix="tb-", dir="/tmp")  # short: sockets lie below it
    bed = kind(Path(folder) / "b")
    with _taken_down(bed, folder):
        if bed.kind == "slurm":
            options["version"] = options.get("version") or _of_slurm
        bed.up(**options)  # type: ignore[arg-type]
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


@contextmanager
def _elsewhere() -> Iterator[Bed]:
    """A Grid Engine cluster of a folder other than Debian's, whose qrsh passes newlines as Open Cluster Scheduler's."""
    if not Path("/usr/lib/gridengine/sge_qmaster").exists():
        with bed_for_tests(GridEngineBed):
            pass  # it installs the packages
    with tempfile.TemporaryDirectory(prefix="sge-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        more = ["--root", str(installed(Path(folder) / "root")), "--qrsh-newlines"]
        with bed_for_tests(GridEngineBed, more=more) as bed:
            yield bed


@pytest.fixture(scope="session")
def beds() -> Iterator[Callable[[str], Bed]]:
    """The bed of this name, which is brought up at its first use and taken down at the end; see beds_of."""
    known: dict[str, Bed | BaseException] = {}  # or why it cannot be: it is tried once
    with ExitStack() as stack:

        def brought_up(name: str) -> Bed:
            if name not in known:
                kind, _, version = name.partition("-")
                of_kind = GridEngineBed if "sge" in kind else Bed
                made = _elsewhere() if kind == "other_sge" else bed_for_tests(of_kind, version=version, **BEDS[kind])
                try:
                    known[name] = stack.enter_context(made)
                except (AssertionError, pytest.skip.Exception) as error:
                    known[name] = error
            found = known[name]
            if isinstance(found, BaseException):
                raise found
            return found

        yield brought_up


def _fixture(name: str) -> object:
    """The fixture of a bed that all tests share; in a test of the matrix it may have another version of Slurm."""

    @pytest.fixture(name=name)
    def fixture(request: pytest.FixtureRequest, beds: Callable[[str], Bed]) -> Bed:
        return beds(of_version(name, request.node))

    return fixture


globals().update({f"_{name}": _fixture(name) for name in BEDS})


@pytest.fixture
def bed(request: pytest.FixtureRequest) -> Bed:
    """The test bed that the parameter names: see on_every_scheduler in tests/support/beds.py."""
    named: Bed = request.getfixturevalue(request.param)
    return named


@pytest.fixture(autouse=True)
def _tidy(request: pytest.FixtureRequest, beds: Callable[[str], Bed]) -> Iterator[None]:
    """Make sure that a test finds all hosts idle and no job, and leaves none: what one before has done to a host may
    show only later."""
    used = [beds(name) for name in beds_of(request.node)]
    for bed in used:
        bed.idle()
    yield
    for bed in used:
        bed.tidy()
