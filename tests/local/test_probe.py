"""The probe of `gridtf doctor` on this machine: real jobs of the local scheduler."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from gridtf.doctor.probe import configured, probe
from gridtf.findings import Examination, Level
from gridtf.login.job import Job
from gridtf.run import registry
from tests.support.jobs import until


def faults(found: Examination) -> dict[str, str]:
    return {one.check: one.message for one in found.findings if one.level != Level.OK}


def probed(*words: str, end: bool = False, said: list[str] | None = None) -> Examination:
    return probe(configured(["--kill-grace", "1", *words]), end=end, say=(said if said is not None else []).append)


def fake_python(folder: Path, body: str) -> str:
    """A user's Python that prints what `body` prints."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_probe_of_this_machine_has_no_fault_and_leaves_nothing(here: Path, tmp_path: Path) -> None:
    said: list[str] = []
    answer = '{"version": "3.11.2", "path": "/env/bin/python", "tensorflow": "2.21.0"}'
    found = probed("--python", fake_python(tmp_path, f"echo '{answer}'"), end=True, said=said)
    assert faults(found) == {}
    assert {one.check for one in found.findings} == {
        "probe.hosts", "python.tensorflow", "limits", "ptrace", "proxies", "cpus", "end.warning",
    }  # fmt: skip
    assert said[0].startswith("submitted job ")
    assert not (here / "gridtf-runs").exists()
    assert not list(registry.entries(os.environ))


def test_probe_measures_after_the_set_up_lines_and_shows_limits_that_are_too_low(here: Path, tmp_path: Path) -> None:
    differs = fake_python(
        tmp_path, 'echo "{\\"version\\": \\"3.$GRIDTF_TASK_INDEX\\", \\"tensorflow\\": \\"2.21.0\\"}"'
    )
    found = faults(probed("--setup", "ulimit -n 512; export http_proxy=http://u:secret@p:1", "--python", differs))
    assert "allows a task 512 open files" in found.pop("limits")
    assert "hosts differ: TensorFlow 2.21.0 with Python 3.0 on worker:0 on " in found.pop("python.tensorflow")
    assert found == {}


def test_probe_runs_in_no_container_and_finds_that_its_program_is_missing(here: Path) -> None:
    words = ("--container", "docker://i", "--container-command", "nosuch {image}")
    host = os.uname().nodename
    what = f"host {host} has no program nosuch, with which container_command begins"
    assert faults(probed(*words)) == {"container": what}


def test_probe_whose_set_up_fails_is_a_finding_and_keeps_the_run_directory(here: Path) -> None:
    said: list[str] = []
    found = faults(probed("--setup", "module load nothing", said=said))
    assert list(found) == ["probe.job"]
    assert "set-up line 1 (--setup) failed with exit code 127" in found["probe.job"]
    (kept,) = (here / "gridtf-runs").iterdir()
    assert said[-1].endswith(str(kept))


# Ctrl-C may come between the opening of a file and its with statement: Python closes such a file, and says so.
@pytest.mark.filterwarnings("ignore:.*unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore:.*:pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_ends_the_job_of_a_probe(here: Path) -> None:
    said: list[str] = []

    def interrupt() -> None:
        until(lambda: any("has started" in line for line in said), "the job to start")
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            probed("--setup", "sleep 600", said=said)
            raise AssertionError("not interrupted")
        except KeyboardInterrupt:
            pass
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    (run,) = registry.runs(os.environ)
    view = Job(run).status()
    assert (view.state, view.in_queue) == ("CANCELLED", False)
