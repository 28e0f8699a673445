"""Grid Engine's commands, and a qmaster that does not answer. Messages were recorded on Son of Grid Engine 8.1.9."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridtf.errors import SchedulerError
from gridtf.schedulers.commands import Answer, run_command
from gridtf.schedulers.sge.commands import sge

SELECT = "error: commlib error: got select error ({})\n"
SEND = 'unable to send message to qmaster using port 6444 on host "ctl": {}\n'


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cell whose commands are scripts of the test."""
    (tmp_path / "bin/lx-amd64").mkdir(parents=True)
    (tmp_path / "default/common").mkdir(parents=True)
    (tmp_path / "default/common/act_qmaster").write_text("ctl\n")
    monkeypatch.setenv("SGE_ROOT", str(tmp_path))
    monkeypatch.delenv("SGE_CELL", raising=False)
    monkeypatch.delenv("SGE_BINARY_PATH", raising=False)
    return tmp_path


def command(root: Path, name: str, script: str) -> None:
    path = root / "bin/lx-amd64" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_commands_below_sge_root_come_before_path(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command(root, "qstat", 'echo $LC_ALL "$*"')
    assert sge.run(["qstat", "-u", "*"], limit=5).out == "C -u *\n"
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "qstat").touch(mode=0o755)
    monkeypatch.setenv("SGE_BINARY_PATH", str(inside))
    assert sge.locate("qstat") == str(inside / "qstat")
    monkeypatch.delenv("SGE_BINARY_PATH")
    monkeypatch.delenv("SGE_ROOT")
    assert sge.locate("qstat") == "qstat"


@pytest.mark.parametrize(
    "output",
    [
        SELECT.format("Connection refused") + "error: " + SEND.format("got send error"),
        SELECT.format("No route to host") + "Unable to run job: " + SEND.format("got send error") + "Exiting.\n",
        "error: " + SEND.format("can't resolve host name"),
        # from users' reports on Sun Grid Engine 6.2 and Univa's
        "ERROR: failed receiving gdi request response for mid=1 (got syncron message receive timeout error).\n",
        'error: unable to contact qmaster using port 6444 on host "ctl"\n',
    ],
)
def test_unreachable_qmaster_is_reported(output: str, root: Path) -> None:
    (root / "output").write_text(output)
    command(root, "qstat", f"cat {root}/output >&2; exit 1")
    with pytest.raises(SchedulerError) as caught:
        sge.run(["qstat"], limit=5)
    assert caught.value.what.startswith("Grid Engine's qmaster on ctl does not answer: ")
    assert "\n" not in caught.value.what
    assert "error:" not in caught.value.what
    assert "try again later" in caught.value.hint


def test_command_that_hangs_is_reported(root: Path) -> None:
    command(root, "qstat", "exec sleep 20")
    with pytest.raises(SchedulerError, match=r"qmaster on ctl does not answer: qstat has not answered within 0\.2 s"):
        sge.run(["qstat"], limit=0.2)


@pytest.mark.parametrize(
    "output",
    [
        "critical error: Please set the environment variable SGE_ROOT.",
        'error: SGE_ROOT directory "/nowhere" doesn\'t exist',
        'error: fopen("/sge/default/common/bootstrap") failed: No such file or directory',
    ],
)
def test_missing_cell_is_reported(output: str, root: Path) -> None:
    (root / "output").write_text(output)
    command(root, "qstat", f"cat {root}/output >&2; exit 1")
    with pytest.raises(SchedulerError, match="do not find their cell") as caught:
        sge.run(["qstat"], limit=5)
    assert "settings.sh" in caught.value.hint


def test_refusal_is_returned_as_an_answer(root: Path) -> None:
    command(root, "qsub", "printf 'Unable to run job: unknown resource \"ngpus\"\\nExiting.\\n' >&2; exit 1")
    answer = sge.run(["qsub"], limit=5)
    assert answer.code == 1
    assert sge.message(answer) == 'unknown resource "ngpus"'
    assert sge.message(Answer(3, "", "")) == "exit code 3"


def test_unknown_host_of_the_qmaster_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGE_ROOT", str(tmp_path))
    assert sge.no_answer("x").what == "Grid Engine's qmaster does not answer: x"
    monkeypatch.delenv("SGE_ROOT")
    assert sge.no_answer("x").what == "Grid Engine's qmaster does not answer: x"


def test_commands_ignore_warning_signals_of_a_job() -> None:
    """Grid Engine sends them to every process of the job; after one, the launcher runs qstat."""
    answer = run_command(["bash", "-c", "kill -USR1 $$; kill -USR2 $$; echo there"], limit=30)
    assert (answer.code, answer.out) == (0, "there\n")
