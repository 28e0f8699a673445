"""gridtf report: names of files, errors, and what is loaded for it."""

from __future__ import annotations

import csv
import json
import shutil
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


@pytest.mark.thorough
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
    assert main(["report", "--bundle", "./array"]) == 2
    assert "gridtf report" in capsys.readouterr().err


def test_several_jobs(here: Path, capsys: Captured) -> None:
    for name in "bc":
        recordedruns.make(here / name, minutes=1)
    assert main(["report", "./digits", "./b", "./c"]) == 0
    assert capsys.readouterr().out == "digits-4711-and-2-more.html\n"
    assert "<h1>3 runs</h1>" in (here / "digits-4711-and-2-more.html").read_text()
    assert main(["report", "./digits", "./b", "./gone"]) == 2
    assert capsys.readouterr().err.startswith("gridtf: gone is not a run directory\n")
    assert main(["report", *["./digits"] * 51]) == 2
    assert capsys.readouterr().err == (
        "gridtf: 51 jobs are too many for one page\n  name at most 50; --csv and --json print the table of any number\n"
    )


def test_table_of_jobs(here: Path, capsys: Captured) -> None:
    run = recordedruns.make(here / "other", minutes=1, workers=1, host_count=1, reports=False)
    recordedruns.describe(run, params={"lr": 0.1, "api_key": "hunter22-secret", "text": 'a,"b"'})
    assert main(["report", "./digits", "./other", "--csv"]) == 0
    text = capsys.readouterr().out
    assert not list(here.glob("*.html"))
    head, digits, other = csv.reader(text.splitlines())
    assert dict(zip(head, digits, strict=True)) == {
        "name": "digits",
        "job_id": "4711",
        "scheduler": "local",
        "state": "COMPLETED",
        "run_dir": f"{here}/digits",
        "reason": "all training tasks have exited with 0",
        "submitted": "1764000000.0",
        "started": "1764000030.0",
        "ended": "1764000091.0",
        "cause": "",
        "hosts": "h0",
        "tasks": "1",
        "seconds": "61.0",
        "cpu_seconds": "61.0",
        "gpu_seconds": "0.0",
        "step": "550",
        "params.lr": "",
        "params.api_key": "",
        "params.text": "",
        "commit": "",
        "last.loss": "0.09612",
        "least.loss": "0.09612",
        "most.loss": "2.025",
        **{name: digits[head.index(name)] for name in head if name.endswith(".accuracy")},
    }
    row = dict(zip(head, other, strict=True))
    assert (row["params.lr"], row["params.api_key"], row["params.text"], row["last.loss"]) == ("0.1", MASK, 'a,"b"', "")
    assert main(["report", "./digits", "./other", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["last.loss"], second["params.lr"], "last.loss" in second) == (0.09612, 0.1, False)
    assert main(["report", "./digits", "--csv", "-o", "x.csv"]) == 2
    assert "exclude each other" in capsys.readouterr().err


@pytest.mark.thorough
def test_elements_of_an_array(here: Path, capsys: Captured) -> None:
    array = recordedruns.make(here / "sweep", minutes=1)
    shutil.rmtree(array.attempt(1).path)
    array.elements.mkdir()
    for number in (1, 2, 10, *range(100, 151)):
        recordedruns.make(array.elements / str(number), workers=1, host_count=1, minutes=0.5 + number % 3, interval=20)
    (array.elements / "200").mkdir()  # has not begun
    assert main(["report", "./sweep", "--csv"]) == 0
    names = [row["name"] for row in csv.DictReader(capsys.readouterr().out.splitlines())]
    assert names == ["1", "2", "10", *map(str, range(100, 151))]
    assert main(["report", "./sweep"]) == 0
    assert capsys.readouterr().out == "sweep-4711.html\n"
    text = (here / "sweep-4711.html").read_text()
    assert "These are the first 50 of 54: --by VALUE chooses the best ones." in text
    assert main(["report", "./sweep", "--by", "accuracy:max"]) == 0
    text = (here / "sweep-4711.html").read_text()
    assert "The best first, by the largest accuracy: 50 of 54." in text
    assert text.index(f"{array.elements}/2") < text.index(f"{array.elements}/10") < text.index(f"{array.elements}/102")
    capsys.readouterr()
    recordedruns.make(here / "silent", minutes=1, reports=False)
    assert main(["report", "./silent", "./sweep/array/10", "./sweep/array/2", "--by", "loss", "--csv"]) == 0
    assert [row["name"] for row in csv.DictReader(capsys.readouterr().out.splitlines())] == ["2", "10", "silent"]
    for by, hint in (("los", "did you mean loss?"), ("loss:most", "write --by loss:max")):
        assert main(["report", "./sweep", "--by", by]) == 2
        assert hint in capsys.readouterr().err
    assert main(["report", "./sweep/array/10", "-o", "x.html"]) == 0
    assert "<h1>10 (4711)</h1>" in (here / "x.html").read_text()
