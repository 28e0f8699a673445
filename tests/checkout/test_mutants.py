"""scripts/mutants: which faults it puts where, and that it sees whether tests notice them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
import mutating

PROGRAM = """\
\"\"\"Numbers.\"\"\"
def double(number: int, twice: bool = True) -> int:
    \"\"\"The double.\"\"\"
    if number < 0 or not twice:
        print("négative"); print(f"{number + 1}")
    return 2 * number
"""
TESTS = "from gridtf.program import double\n\ndef test_double():\n    assert double(3) == 6\n"


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "gridtf").mkdir()
    (tmp_path / "gridtf/__init__.py").touch()
    (tmp_path / "gridtf/program.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "test_it.py").write_text(TESTS)
    monkeypatch.setattr(mutating, "ROOT", tmp_path)
    return tmp_path


def test_faults_of_a_file(copy: Path) -> None:
    found = {
        (one.kind, one.line): one.text().splitlines()[one.line - 1].strip()
        for one in mutating.places(copy / "gridtf/program.py")
        if one.is_one()
    }
    assert found[("constant changed", 2)] == "def double(number: int, twice: bool = (False)) -> int:"
    assert found[("condition turned round", 4)] == "if (not (number < 0 or not twice)):"
    assert found[("call left out", 5)] == 'print("négative"); (None)'
    assert found[("constant changed", 6)] == "return (3) * number"


@pytest.mark.parametrize(
    ("line", "kind", "result"), [(6, "constant changed", "seen"), (5, "call left out", "survives")]
)
def test_fault_is_tried_with_the_tests_of_its_line_and_taken_back(
    copy: Path, line: int, kind: str, result: str
) -> None:
    places = mutating.places(copy / "gridtf/program.py")
    mutant = next(one for one in places if (one.line, one.kind) == (line, kind))
    name = "test_it.py::test_double"
    chosen = mutating.tests_of(mutant, {mutant.name: [name, "not of this run"]}, {name: 0.1})
    assert chosen == [name]
    assert mutating.tried(mutant, copy, chosen) == result
    assert (copy / "gridtf/program.py").read_text(encoding="utf-8") == PROGRAM


def test_recorded_run_knows_the_tests_that_pass_of_each_fault(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of processes that a test starts; a default is evaluated once, for all tests of its functions."""
    asks = "import subprocess, sys\n\ndef test_asks():\n"
    asks += (
        "    subprocess.run([sys.executable, '-c', 'import gridtf.program; gridtf.program.double(-2)'], check=True)\n"
    )
    broken = "\ndef test_broken():\n    assert double(3) == 7\n"
    (copy / "test_it.py").write_text(f"{asks}{TESTS}{broken}", encoding="utf-8")
    (copy / "records").mkdir()
    monkeypatch.setattr(mutating, "RECORDED", ["test_it.py"])
    faults = mutating.places(copy / "gridtf/program.py")
    reached, took = mutating.recorded(copy, copy / "records", "not release", faults)
    assert took.keys() == {"test_it.py::test_double", "test_it.py::test_asks"}
    known = {(fault.line, fault.kind): [*map(_test, reached[fault.name])] for fault in faults}
    assert known[2, "constant changed"] == known[6, "constant changed"] == ["test_asks", "test_broken", "test_double"]
    assert known[5, "call left out"] == ["test_asks"]
    assert (copy / "gridtf/program.py").read_text(encoding="utf-8") == PROGRAM


def _test(name: str) -> str:
    return name.rpartition("::")[2]


def test_seed_draws_the_same_faults_of_all_folders() -> None:
    drawn = mutating.drawn(1, 40)
    assert drawn == mutating.drawn(1, 40)
    assert drawn != mutating.drawn(2, 40)
    folders = {one.file.split("/")[1] for one in drawn if one.file.count("/") > 1}
    assert folders == {path.name for path in (mutating.ROOT / "gridtf").iterdir() if any(path.glob("*.py"))}
