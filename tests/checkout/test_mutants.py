"""scripts/mutants: which faults it puts where, and that it sees whether tests notice them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
import mutating

PROGRAM = """\
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
    assert found[("constant changed", 1)] == "def double(number: int, twice: bool = (False)) -> int:"
    assert found[("condition turned round", 3)] == "if (not (number < 0 or not twice)):"
    assert found[("call left out", 4)] == 'print("négative"); (None)'
    assert found[("constant changed", 5)] == "return (3) * number"


@pytest.mark.parametrize(
    ("line", "kind", "result"), [(5, "constant changed", "seen"), (4, "call left out", "survives")]
)
def test_fault_is_tried_with_the_tests_of_its_line_and_taken_back(
    copy: Path, line: int, kind: str, result: str
) -> None:
    places = mutating.places(copy / "gridtf/program.py")
    mutant = next(one for one in places if (one.line, one.kind) == (line, kind))
    name = "test_it.py::test_double"
    chosen = mutating.tests_of(mutant, {"gridtf/program.py": {line: [name, "not of this run"]}}, {name: 0.1})
    assert chosen == [name]
    assert mutating.tried(mutant, copy, chosen) == result
    assert (copy / "gridtf/program.py").read_text(encoding="utf-8") == PROGRAM


def test_recorded_run_knows_the_lines_of_each_test_that_passes(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy / "test_it.py").write_text(f"{TESTS}\ndef test_broken():\n    assert double(3) == 7\n", encoding="utf-8")
    (copy / "records").mkdir()
    (copy / "records/data.vm.pid1.killed").touch()  # as a process leaves it that is killed at its end
    monkeypatch.setattr(mutating, "RECORDED", ["test_it.py"])
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # processes that a test starts have it as the test that runs their lines
    lines, took = mutating.recorded(copy, copy / "records", "not release")
    assert list(took) == ["test_it.py::test_double"]
    assert "test_it.py::test_double" in lines["gridtf/program.py"][5]
    assert 4 not in lines["gridtf/program.py"]


def test_seed_draws_the_same_faults_of_all_folders() -> None:
    drawn = mutating.drawn(1, 40)
    assert drawn == mutating.drawn(1, 40)
    assert drawn != mutating.drawn(2, 40)
    folders = {one.file.split("/")[1] for one in drawn if one.file.count("/") > 1}
    assert folders == {path.name for path in (mutating.ROOT / "gridtf").iterdir() if any(path.glob("*.py"))}
