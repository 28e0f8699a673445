"""Fixtures for all tests."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gridtf import schedulers
from tests.support import evidence, units
from tests.support.beds import beds_of
from tests.support.clocks import Clock
from tests.support.fixtures import launch, program
from tests.support.progress import Progress
from tests.support.release import left_to_releases
from tests.support.scheduler import FakeScheduler
from tests.support.spent import Spent
from tests.support.topics import FEATURES, TOPICS, main_topic, topics_of
from tests.support.versions import version_of

__all__ = ["launch", "program"]


# What schedulers, mpirun, gridtf say to a process that the tests may run in.
_OF_A_JOB = ("GRIDTF_", "SLURM_", "SGE_", "TF_CONFIG", "JOB_ID", "PE_HOSTFILE", "PMI_", "OMPI_", "RANK", "WORLD_SIZE")

_SPENT = pytest.StashKey[Spent]()
_OF_COLOURS = ("NO_COLOR", "CLICOLOR_FORCE", "FORCE_COLOR")


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Folders to be made, one for each test; mktemp would look at all that are there already each time."""
    folder = tmp_path_factory.mktemp("homes")
    return (f"{folder}/{number}" for number in count())


@pytest.fixture(autouse=True)
def _own_home(_homes: Iterator[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's configuration and index of runs, nor the job it may run in."""
    home = next(_homes)
    for variable in list(os.environ):
        if variable.startswith(_OF_A_JOB) or variable.endswith("_VISIBLE_DEVICES") or variable in _OF_COLOURS:
            monkeypatch.delenv(variable)
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", f"{home}/config")
    monkeypatch.setenv("XDG_STATE_HOME", f"{home}/state")
    monkeypatch.setenv("XDG_CACHE_HOME", f"{home}/cache")
    os.mkdir(home)  # noqa: PTH102 - 9,000 times, and pathlib takes ten times as long
    os.mkdir(f"{home}/tmp")  # noqa: PTH102
    monkeypatch.setenv("TMPDIR", f"{home}/tmp")  # TensorFlow that is killed leaves files there
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)  # nor answers to the user's commands


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="write tests/durations.json, tests/recorded/tested")
    parser.addoption("--slurm", metavar="24.11", default="", help="the Slurm of test beds (default: this machine's)")
    versions = "also run tests on these versions of Slurm: tests/support/versions.py"
    parser.addoption("--slurm-versions", metavar="20.11,24.11", default="", help=versions)


@pytest.hookimpl(trylast=True)  # after pytest's terminal
def pytest_configure(config: pytest.Config) -> None:
    for topic, about in TOPICS.items():
        config.addinivalue_line("markers", f"{topic}: {about} (scripts/test {topic})")
    for feature in FEATURES:
        config.addinivalue_line("markers", f"{feature}: the tests of a feature (scripts/test {feature})")
    config.addinivalue_line("markers", "release: not for each landing (scripts/test --release)")
    if config.getoption("record") and hasattr(config, "workerinput"):
        config.stash[_SPENT] = Spent()
    if config.getoption("numprocesses", None):
        from tests.support.spread import SideBySide  # pytest-xdist is not everywhere

        plugins, of_tests = config.pluginmanager, units.Units()
        plugins.register(SideBySide(of_tests))
        if config.get_verbosity() == 0:
            terminal: Any = plugins.get_plugin("terminalreporter")
            plugins.register(Progress(terminal, of_tests, keep=config.getoption("record")))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest looks at topics
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Mark each test with its topics; where tests run side by side, tell which ones stay together."""
    items[:] = [item for item in items if not version_of(item) or any("slurm" in bed for bed in beds_of(item))]
    for item in items:
        for topic in topics_of(item):
            item.add_marker(topic)
        if left_to_releases(item):
            item.add_marker("release")
    everything = list(items)
    yield
    process: Any = config
    if hasattr(process, "workerinput"):
        units.arrange(items, process.workerinput["units"])
        process.workeroutput["left_out"] = dict(Counter(map(main_topic, {*everything}.difference(items))))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown" and (spent := item.config.stash.get(_SPENT, None)):
        vars(report)["spent"] = spent.since(bed=bool(beds_of(item)))
    if report.failed and call.when == "call":
        report.sections += evidence.sections(item, call.start)
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    if spent := config.stash.get(_SPENT, None):
        spent.close()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs root, to mount file systems or to make control groups")


@pytest.fixture
def rough_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of the test, in a path that careless quoting does not survive."""
    path = tmp_path / 'it\'s a "rough" $(place) & [more]'
    path.mkdir()
    monkeypatch.chdir(path)
    return path


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeScheduler:
    """A scheduler that takes the place of all others."""
    scheduler = FakeScheduler()
    monkeypatch.setattr(schedulers, "get", lambda name: scheduler)
    return scheduler


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of this process, which advances only while code sleeps."""
    made = Clock()
    monkeypatch.setattr("time.monotonic", lambda: made.now)
    monkeypatch.setattr("time.sleep", made.sleep)
    return made
