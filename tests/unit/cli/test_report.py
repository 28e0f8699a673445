"""gridtf report: names of files, errors, and what is loaded for it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from gridtf.cli import main
from gridtf.run.rundir import write_record
from gridtf.secrets import MASK
from tests.support import recordedruns

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    recordedruns.make(tmp_path / "digits", workers=1, host_count=1, minutes=1)
    return tmp_path


def test_file_is_named_after_the_job(here: Path, capsys: Captured) -> None:
    assert main(["report", "./digits"]) == 0
    assert capsys.readouterr().out == "digits-4711.html\n"
    assert "<h1>digits (4711)</h1>" in (here / "digits-4711.html").read_text()
    assert main(["report", "./digits"]) == 0  # a report is replaced


def test_two_jobs(here: Path, capsys: Captured) -> None:
    run = recordedruns.make(here / "other", minutes=1)
    write_record(run.submitted, {"scheduler": "local", "job_id": "12[3]", "name": "../a b"})
    assert main(["report", "digits/", "./other"]) == 0
    assert capsys.readouterr().out == "digits-4711-a-b-12-3-.html\n"


def test_output_to_a_file_and_to_stdout(here: Path, capsys: Captured) -> None:
    assert main(["report", "./digits", "-o", "x.html"]) == 0
    assert capsys.readouterr().out == "x.html\n"
    assert main(["report", "./digits", "-o", "-"]) == 0
    assert capsys.readouterr().out.endswith("</html>")
    assert not (here / "digits-4711.html").exists()


def test_archive_for_a_support_ticket(here: Path, capsys: Captured) -> None:
    assert main(["report", "--bundle", "./digits"]) == 0
    assert capsys.readouterr().out == "digits-4711.tar.gz\n"
    path = here / "digits-4711.tar.gz"
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        doctor = archive.extractfile("digits/doctor.json")
        assert doctor is not None
        examined = json.load(doctor)
        assert {"findings", "settings"} <= set(examined)
        assert MASK not in str(examined)
    before = path.read_bytes()
    assert main(["report", "--bundle", "./digits"]) == 2
    assert capsys.readouterr().err.startswith("gridtf: digits-4711.tar.gz exists\n  name another file with -o")
    assert path.read_bytes() == before
    (here / "notes.txt").write_text("mine")
    assert main(["report", "--bundle", "./digits", "-o", "notes.txt", "--force", "--anonymous"]) == 0
    assert tarfile.is_tarfile(here / "notes.txt")
    for words in (["--anonymous", "./digits"], ["--bundle", "./digits", "./digits"]):
        assert main(["report", *words]) == 2


def test_errors(here: Path, capsys: Captured) -> None:
    (here / "notes.txt").write_text("mine")
    (here / "empty").mkdir()
    assert main(["report", "./digits", "-o", "notes.txt"]) == 2
    assert "notes.txt exists, and is not a report of gridtf" in capsys.readouterr().err
    assert main(["report", "./empty"]) == 2
    assert "is not a run directory" in capsys.readouterr().err
    assert main(["report", "./digits", "./empty"]) == 2
    assert main(["report"]) == 2
    (here / "array" / "array" / "1").mkdir(parents=True)
    (here / "array" / "job.json").write_text('{"spec": {}}')
    capsys.readouterr()
    assert main(["report", "./array"]) == 2
    assert "gridtf report" in capsys.readouterr().err
