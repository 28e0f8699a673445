"""gridtf doctor and gridtf init on this machine, with the local scheduler."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.commands import PRINTS, as_json, call


def test_doctor_finds_no_failure_and_init_s_file_is_valid(here: Path) -> None:
    found = as_json("doctor")
    assert [finding for finding in found["findings"] if finding["level"] == "failure"] == []
    checks = {finding["check"]: finding["message"] for finding in found["findings"]}
    assert checks["scheduler"].startswith("jobs run on this machine, ")
    assert {"configuration", "run_root.write", "run_root.space", "shell.module"} <= set(checks)
    assert list(here.iterdir()) == []

    file = Path(os.environ["XDG_CONFIG_HOME"], "gridtf", "config.toml")
    assert f"gridtf: {file} is written" in call("init").stderr
    written = file.read_text()
    call("init", code=2)
    assert file.read_text() == written
    assert f"{file} is valid" in call("doctor").stdout
    assert ": COMPLETED after " in call("submit", "--workers", "1", "--wait", *PRINTS).stdout


def test_scheduler_that_hangs_is_one_failure(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name in ("sbatch", "scontrol"):
        (bin_folder / name).write_text("#!/bin/sh\nsleep 600\n")
        (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("GRIDTF_SUBMIT_SCHEDULER", "slurm")
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    done = call("doctor", code=1)  # the stand-ins sleep longer than call waits
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("failure  scheduler "))
    assert "scontrol has not answered within 3 s" in line
