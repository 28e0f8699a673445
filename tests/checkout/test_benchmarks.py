"""The ways of scripts/bench sge, with a stand-in for qrsh: they start their tasks, or say why not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.cluster import CHECKOUT

sys.path.append(str(CHECKOUT / "scripts/benchmarks"))
import rounds
from marks import HOSTS
from sge_ways import EACH_TASK, FANNED, GridEngineWays

# As qrsh, which is called with -inherit -nostdin HOST: a shell of the other host parses the words that follow.
_RUNS = 'shift 3; exec bash -c "$*"'
_REFUSED = "error: executing task of job 7 failed: execution daemon on host n1 didn't accept task"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> rounds.Job:
    folder = tmp_path / "a folder"
    folder.mkdir()
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"n{number} 1 all.q@n{number} UNDEFINED\n" for number in range(HOSTS)))
    monkeypatch.setenv("PE_HOSTFILE", str(hosts))
    monkeypatch.setenv("SGE_BINARY_PATH", str(tmp_path))
    return rounds.Job(GridEngineWays(folder, each=1), settle=lambda: None)


def _qrsh(folder: Path, text: str) -> None:
    program = folder / "qrsh"
    program.write_text(f"#!/bin/bash\n{text}\n")
    program.chmod(0o755)


@pytest.mark.parametrize("way", [FANNED, EACH_TASK])
def test_way_of_qrsh_starts_its_tasks_in_a_folder_with_a_space(job: rounds.Job, tmp_path: Path, way: str) -> None:
    _qrsh(tmp_path, _RUNS)
    job.launch([way], rounds=1)
    assert (tmp_path / "a folder/launch.json").exists()


@pytest.mark.parametrize(
    ("code", "what"), [(1, "it ended with exit code 1"), (0, f"0 of {HOSTS} tasks ran")], ids=["fails", "lies"]
)
def test_way_whose_tasks_do_not_start_is_told_with_what_qrsh_printed(
    job: rounds.Job, tmp_path: Path, code: int, what: str
) -> None:
    _qrsh(tmp_path, f'echo "{_REFUSED}" >&2; exit {code}')
    with pytest.raises(SystemExit) as ended:
        job.launch([FANNED], rounds=1)
    assert str(ended.value).splitlines() == [
        f"{FANNED}: {what}; the last lines of its output:",
        *[f"  {_REFUSED}"] * HOSTS,
    ]
