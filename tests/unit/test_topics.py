"""Every test belongs to a topic of scripts/test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path, PurePath

import pytest

from tests.support.topics import TOPICS, topics

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
        ("tests/unit/jobspec/test_spec.py", [], {"fast"}),
        ("tests/unit/schedulers/sge/test_query.py", [], {"fast", "sge"}),
        ("tests/unit/schedulers/test_local.py", [], {"fast", "local"}),
        ("tests/local/test_gpus.py", [], {"local"}),
        ("tests/faults/test_tasks.py", [], {"local"}),
        ("tests/cluster/test_slurm_jobs.py", [], {"slurm"}),
        ("tests/cluster/test_jobs.py", ["sge"], {"sge"}),
        ("tests/cluster/test_jobs.py", ["constrained_slurm"], {"slurm"}),
    ],
)
def test_topics_of_a_test(path: str, beds: list[str], found: set[str]) -> None:
    assert topics(PurePath(path), beds) == found


def test_unit_test_with_tensorflow_is_not_fast() -> None:
    assert topics(PurePath("tests/unit/bootstrap/test_rendezvous_ports.py"), [], tensorflow=True) == {"local"}


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
