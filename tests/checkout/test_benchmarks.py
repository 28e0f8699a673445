"""The ways of scripts/bench sge, with a stand-in for qrsh: they start their tasks, or say why not; what scripts/bench
soak takes for a wrong end of a job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gridtf.run.rundir import RunDir
from tests.support.cluster import CHECKOUT, Bed

sys.path.append(str(CHECKOUT / "scripts/benchmarks"))
import rounds
import soak
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


@pytest.mark.parametrize(
    ("number", "state", "reason", "done", "lost", "right"),
    [
        (0, "COMPLETED", "all training tasks have exited with 0", 1, (), True),
        (0, "COMPLETED", "all training tasks have exited with 0", 0, (), False),
        (0, "COMPLETED", "all training tasks have exited with 0", 0, ("n2",), False),
        (0, "NODE_FAIL", "no heartbeat from host n2 for 30 s", 0, ("n2",), True),
        (0, "NODE_FAIL", "no heartbeat from host n2 for 30 s", 0, (), False),
        (0, "CANCELLED", "cancelled with scancel; host n2 is lost", 0, ("n2",), False),
        (1, "FAILED", "worker:0 on n1: exit code 3", 0, (), True),
        (1, "FAILED", "worker:0 on n1: killed by SIGTERM", 0, ("n2",), False),
        (15, "CANCELLED", "cancelled with scancel; the launcher on n1 was killed", 0, ("n1",), True),
        (15, "RUNNING", "", 0, (), False),
    ],
)
def test_soak_knows_how_a_job_has_to_end(
    tmp_path: Path, number: int, state: str, reason: str, done: int, lost: tuple[str, ...], right: bool
) -> None:
    job = soak.Job(Bed(tmp_path), "alice", number)
    job.run, job.lost, job.view = RunDir(tmp_path), list(lost), {"state": state, "reason": reason}
    job.run.output.mkdir()
    for rank in range(done):
        (job.run.output / f"done-{rank}").touch()
    assert (job.wrong() == "") is right
