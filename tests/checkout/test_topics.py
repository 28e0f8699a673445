"""Which tests scripts/test runs: the topics, the smoke tests; and how it runs them side by side."""

from __future__ import annotations

import fnmatch
import json
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path, PurePath

import pytest

from tests.support import evidence
from tests.support.progress import Progress
from tests.support.release import BEDS_OF_LANDINGS, ROWS_OF_RELEASES
from tests.support.topics import SMOKE, TOPICS, is_smoke, topics
from tests.support.units import expected
from tests.support.versions import LANDING, LONG, MATRIX

ROOT = Path(__file__).resolve().parents[2]

_LIST = """
import json, pathlib, sys, pytest

class List:
    def pytest_collection_finish(self, session):
        found = {item.nodeid: [mark.name for mark in item.iter_markers()] for item in session.items}
        pathlib.Path(sys.argv[1]).write_text(json.dumps(found))

sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *sys.argv[2:]], plugins=[List()]))
"""


@pytest.mark.parametrize(
    ("path", "beds", "found"),
    [
        ("tests/checkout/test_docs.py", [], {"checkout"}),
        ("tests/unit/jobspec/test_spec.py", [], {"fast"}),
        ("tests/unit/schedulers/sge/test_query.py", [], {"fast", "sge"}),
        ("tests/unit/schedulers/test_local.py", [], {"fast", "local"}),
        ("tests/local/test_gpus.py", [], {"local"}),
        ("tests/faults/test_tasks.py", [], {"local"}),
        ("tests/cluster/test_slurm_jobs.py", [], {"slurm"}),
        ("tests/cluster/test_jobs.py", ["sge"], {"sge"}),
        ("tests/cluster/test_mpi.py", ["sge"], {"sge", "mpi"}),
        ("tests/unit/cli/test_shell.py", [], {"fast", "exec"}),
        ("tests/cluster/test_jobs.py", ["constrained_slurm"], {"slurm"}),
    ],
)
def test_topics_of_a_test(path: str, beds: list[str], found: set[str]) -> None:
    assert topics(PurePath(path), beds, set()) == found


@pytest.mark.parametrize(("mark", "topic"), [("tensorflow", "local"), ("thorough", "thorough")])
def test_unit_test_that_takes_long_is_not_fast(mark: str, topic: str) -> None:
    assert topics(PurePath("tests/unit/bootstrap/test_rendezvous_ports.py"), [], {mark}) == {topic}


def test_every_test_has_a_topic_and_every_cluster_test_a_scheduler(tmp_path: Path) -> None:
    """Unit tests are left out: they are always fast or local, and there are thousands of them."""
    listed = tmp_path / "tests.json"
    folders = [str(path) for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "unit"]
    command = [sys.executable, "-c", _LIST, str(listed), *folders]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    marks: dict[str, list[str]] = json.loads(listed.read_text())
    assert [test for test, names in marks.items() if not set(TOPICS) & set(names)] == []
    on_clusters = {test: names for test, names in marks.items() if "cluster" in names}
    assert on_clusters
    assert [test for test, names in on_clusters.items() if not {"slurm", "sge"} & set(names)] == []
    assert [test for test, names in marks.items() if test.startswith("tests/cluster/") and "cluster" not in names] == []
    assert [test for test, names in marks.items() if "fast" in names] == []
    smoke = {test for test, names in marks.items() if "smoke" in names}
    assert [entry for entry in SMOKE if not any(is_smoke(test) and test.startswith(entry) for test in smoke)] == []
    for scheduler in ("slurm", "sge"):
        assert len({test for test in smoke if scheduler in marks[test]}) >= 5


def test_matrix_of_versions_runs_tests_that_there_are(tmp_path: Path) -> None:
    """Only Slurm's; all of them by scripts/test --versions, and by --all one of each step of a job."""
    found: dict[str, list[str]] = {}
    for selection in ("versions", LANDING):
        marks = _listed(tmp_path, "--slurm-versions", "26.05", "-m", selection)
        tests = [test for test, names in marks.items() if "versions" in names]
        assert all("26.05" in test and "sge" not in test.partition("[")[2] for test in tests)
        assert [test for test in tests if set(TOPICS).intersection(marks[test])] == []
        found[selection] = tests
    for versions, entries in (("versions", MATRIX + LONG), (LANDING, MATRIX)):
        assert [entry for entry in entries if not any(test.startswith(entry) for test in found[versions])] == []
    assert len(found["versions"]) > len(found[LANDING])


_DIFFERENTIAL = "tests/checkout/test_differential.py"


def test_what_a_landing_leaves_to_a_release_has_rows_that_it_runs(tmp_path: Path) -> None:
    """Each entry of tests/support/release.py leaves out something, and but for whole tests not everything."""
    marks = _listed(tmp_path)
    left = {test for test, names in marks.items() if "release" in names}
    assert [row for row in ROWS_OF_RELEASES if not fnmatch.filter(left, row)] == []
    for entry in BEDS_OF_LANDINGS:
        own = {test for test in marks if test.startswith((f"{entry}::", f"{entry}["))}
        exception = entry.partition("::")[0] != entry and entry.partition("::")[0] in BEDS_OF_LANDINGS
        assert exception or own & left, entry
        assert own - left, entry
    rows = {row.partition("[")[0] for row in ROWS_OF_RELEASES if "[" in row}
    assert [test for test in rows if not any(run.startswith(f"{test}[") for run in marks.keys() - left)] == []


def _listed(folder: Path, *selection: str) -> dict[str, list[str]]:
    """The tests on clusters, and of scripts/differential, that pytest chooses, with their marks."""
    listed = folder / "tests.json"
    command = [sys.executable, "-c", _LIST, str(listed), *selection, "tests/cluster", _DIFFERENTIAL]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    return dict(json.loads(listed.read_text()))


@pytest.mark.parametrize(
    ("name", "smoke"),
    [
        ("tests/checkout/test_docs.py::test_links_have_targets[README.md]", True),
        ("tests/cluster/test_jobs.py::test_submit_wait_status_list_and_logs[sge-drmaa]", True),
        ("tests/cluster/test_jobs.py::test_each_array_element_has_its_own_status_and_log[sge]", False),
        ("tests/local/test_examples.py::test_example_reaches_its_accuracy[multiworker]", True),
        ("tests/local/test_examples.py::test_example_reaches_its_accuracy[hello]", False),
    ],
)
def test_smoke_tests_are_named_by_file_test_or_parameters(name: str, smoke: bool) -> None:
    assert is_smoke(name) is smoke


# --- side by side

_CONFTEST = """
import sys
sys.path[:0] = [{root!r}]
from tests.conftest import pytest_addoption, pytest_collection_modifyitems, pytest_configure, pytest_runtest_makereport
import pytest

@pytest.fixture(scope="session")
def slurm():
    return "slurm"
"""


@pytest.fixture
def side_by_side(tmp_path: Path) -> Callable[..., str]:
    """side_by_side(*arguments, name=text): the output of pytest in several processes on files of these names."""

    def run(*arguments: str, **files: str) -> str:
        (tmp_path / "conftest.py").write_text(_CONFTEST.format(root=str(ROOT)))
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = tensorflow:\n thorough:\n")
        for name, text in files.items():
            path = tmp_path / "tests" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                f"import os, pathlib, time\nimport pytest\nHERE = pathlib.Path({str(tmp_path)!r})\n{text}\n"
            )
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--import-mode=importlib", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        return done.stdout + done.stderr

    return run


_NOTES = """
@pytest.mark.parametrize("number", range(6))
def test_it(number, FIXTURE):
    with open(HERE / "ran", "a") as ran:
        print(__file__.rpartition("/")[2], os.getpid(), file=ran)
    time.sleep(0.1)
"""


def test_tests_of_a_file_stay_together_and_two_processes_at_most_share_a_kind_of_bed(
    side_by_side: Callable[..., str], tmp_path: Path
) -> None:
    files = {f"cluster/test_{letter}": _NOTES.replace("FIXTURE", "slurm") for letter in "abcd"}
    others = {f"unit/test_{letter}": _NOTES.replace("FIXTURE", "tmp_path") for letter in "efgh"}
    output = side_by_side("-n", "4", **files, **others)
    assert "48 passed" in output, output
    processes: dict[str, set[str]] = {}
    for line in (tmp_path / "ran").read_text().splitlines():
        file, process = line.split()
        processes.setdefault(file, set()).add(process)
    assert len(processes) == 8
    assert {len(used) for used in processes.values()} == {1}
    assert len(set().union(*(processes[f"test_{letter}.py"] for letter in "abcd"))) == 2


def test_failure_is_told_at_once_and_what_is_left_out_at_the_end(side_by_side: Callable[..., str]) -> None:
    text = "def test_good(): pass\ndef test_bad(): raise ValueError('so')\n"
    text += "@pytest.mark.thorough\ndef test_more(): pass"
    output = side_by_side("-n", "2", "-m", "fast", **{"unit/test_it": text})
    told, _, rest = output.partition("= FAILURES =")
    assert "\nfailed: tests/unit/test_it.py::test_bad\n    ValueError: so\n" in told, output
    assert "ValueError: so" in rest
    assert "\ntests left out: 1 of thorough\n" in rest
    assert "\nFAILED tests/unit/test_it.py::test_bad - ValueError: so\n" in rest
    assert "1 failed, 1 passed" in rest


def test_line_on_progress() -> None:
    ids = ["tests/unit/test_a.py::test_x", "tests/cluster/test_b.py::test_y[sge]"]
    units = types.SimpleNamespace(of=lambda test: test.partition("::")[0])
    progress = Progress(None, units, keep=False, now=100.0)  # type: ignore[arg-type]
    progress.expect(ids)
    progress.pytest_runtest_logstart(ids[0])
    progress.pytest_runtest_logfinish(ids[0])
    progress.pytest_runtest_logstart(ids[1])
    shares = expected({"tests/unit/test_a.py": 1, "tests/cluster/test_b.py": 1})
    part = shares["tests/unit/test_a.py"] / sum(shares.values())
    assert progress.line(165.0).startswith(f"  1:05 {part:4.0%}; 1 of 2 tests; now cluster/b: y[sge] ")


def test_failed_test_shows_its_job_status_and_logs(side_by_side: Callable[..., str], tmp_path: Path) -> None:
    text = """
import subprocess, sys
def test_job(tmp_path):
    run = [sys.executable, "-m", "gridtf", "run", "--run-dir", str(tmp_path / "mine"), "--workers", "1", "--"]
    subprocess.run([*run, "sh", "-c", "echo no data; exit 3"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": ROOT})
    assert False
"""
    output = side_by_side(**{"local/test_it": text.replace("ROOT", repr(str(ROOT)))})
    assert "- gridtf status mine -" in output
    assert "worker:0 on " in output
    assert "- mine/attempt-1/logs/worker-0.log -" in output
    assert "\nno data\n" in output


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError(2, "No such file or directory", "job.json"), pytest.fail.Exception("Timeout (>600.0s)")],
    ids=["folder-vanishes", "limit-of-the-test"],
)
def test_error_while_a_failure_is_reported_does_not_end_the_run(
    error: BaseException, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path, begun: float) -> None:
        raise error

    monkeypatch.setattr(evidence, "_runs", fail)
    ((title, text),) = evidence.sections(request.node, 0.0)
    assert title == "no more could be found out"
    assert text == f"{type(error).__name__}: {error}"


def test_questions_about_a_failure_are_bounded_in_all(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "job.json").write_text("{}")
    monkeypatch.setattr(evidence, "_ALL", 0.0)
    found = dict(evidence.sections(request.node, 0.0))
    assert found["gridtf status mine"] == "not asked: the questions before have taken 0 s"
