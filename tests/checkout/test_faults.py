"""docs/reference.md shows the tables of faults that are tested, and they are large enough. After a change of these,
``python scripts/faulttables.py`` writes them anew."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.faults.firstlines import fits
from tests.faults.hosts import OF_HOSTS, OF_JOBS, SCHEDULERS
from tests.faults.programs import FAULTS, PROGRAM

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
import faulttables

MPICH = "/dev/shm/mpich_shm_6addf31a_{} (2 MiB of memory, made by this or another job of yours)"


def test_tables_of_faults_are_up_to_date() -> None:
    text = faulttables.PAGE.read_text(encoding="utf-8")
    assert text == faulttables.page(text)


def test_names_of_faults_are_unique_and_there_are_60_of_each_scheduler() -> None:
    for faults in (FAULTS, (*OF_JOBS, *OF_HOSTS)):
        names = [fault.name for fault in faults]
        assert len(set(names)) == len(names)
    for scheduler in SCHEDULERS:
        assert len(FAULTS) + sum(scheduler in fault.lines for fault in (*OF_JOBS, *OF_HOSTS)) >= 60


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_without_a_command_of_its_own_is_in_the_program(fault: object) -> None:
    assert fault.command or f'    "{fault.name}": ' in PROGRAM  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("expected", "line", "same"),
    [
        ("worker:N on HOST: exit code 1", "worker:2 on n-1.b: exit code 1", True),
        ("worker:N on HOST: exit code 1", "worker:2 on n1: exit code 12", False),
        ("worker:1 on HOST: exit code 1", "worker:2 on n1: exit code 1", False),
        ("for N s (…)", "for 12 s (x (y))", True),
        ("for N s (…)", "for 12 s", False),
        ("No module [Errno N]", "No module [Errno 2]", True),
        ("NODE", "5ODE", False),
        ("HOSTS", "n1S", False),
        ("killed by SIGABRT", f"killed by SIGABRT (left on vm: {MPICH.format(1)}, {MPICH.format(2)})", True),
        ("killed by SIGABRT", f"killed by SIGABRT (left on vm: {MPICH.format(1)}, /dev/shm/mine (1 MiB))", False),
    ],
)
def test_words_of_an_expected_line_stand_for_others(expected: str, line: str, same: bool) -> None:
    assert fits(expected, line) is same
