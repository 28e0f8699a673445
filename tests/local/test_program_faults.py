"""Every fault of a program has the right first line; with the local scheduler."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gridtf.run.rundir import RunDir, read_record
from gridtf.states import exit_code
from tests.faults.programs import FAULTS, PROGRAM, Fault
from tests.support.commands import command


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_first_line_is_right(fault: Fault, here: Path) -> None:
    (here / "faults.py").write_text(PROGRAM)
    done = subprocess.run(
        command(*fault.words_of(here, "--tasks-per-node", "3")), capture_output=True, errors="replace", timeout=180
    )
    assert done.returncode == exit_code(fault.state), done.stderr
    verdict = read_record(RunDir(here / fault.name).attempt(1).verdict)
    assert verdict is not None
    assert fault.fits(verdict), verdict["reason"]
