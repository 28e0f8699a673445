"""gridtf advise: what it prints of a job, of an array, and of all jobs of a user."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from gridtf import files
from gridtf.cli import main
from gridtf.run import registry
from gridtf.run.rundir import RunDir, write_record
from tests.support import recordedruns

Captured = pytest.CaptureFixture[str]
ME = files.user_name(os.geteuid())
SECRET = "s3cret"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", "")
    return tmp_path


def recorded(path: Path, **more: Any) -> RunDir:
    """A job that is in the index."""
    run = recordedruns.make(path, workers=2, gpus=1)
    env, params = {"TOKEN": SECRET}, {f"{SECRET}_lr": SECRET}
    recordedruns.describe(run, mem_per_task="16G", cpus_per_task=8, time="24:00:00", env=env, params=params, **more)
    registry.add(path, json.loads(run.submitted.read_text()), os.environ)
    return run


def test_advice_as_text_and_as_json(here: Path, capsys: Captured) -> None:
    recorded(here / "digits")
    assert main(["advise", "digits"]) == 0
    assert capsys.readouterr().out == (
        "# digits (4711)\n"
        "cpus_per_task = 4       # 3.6 cores in 95 % of the samples; 8 requested\n"
        'mem_per_task = "2560M"  # 2.0 GiB + 25 %; 16G requested\n'
        'time = "00:13:00"       # 10 min 11 s + 25 %; 1-00:00:00 requested\n'
    )
    bad = recordedruns.make(here / "bad", workers=1, host_count=1, minutes=0.2, state="FAILED")
    write_record(bad.submitted, {"scheduler": "local", "job_id": "4712", "name": "\x1b[2J"})
    assert main(["advise", "digits", "./bad", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert [(one["key"], one["value"], one["asked"], one["right"]) for one in first["advice"]] == [
        ("cpus_per_task", 4, "8", False),
        ("mem_per_task", "2560M", "16G", False),
        ("time", "00:13:00", "1-00:00:00", False),
    ]
    assert (second["advice"], {*second["not_advised"]}) == ([], {"memory and CPUs", "the walltime"})
    assert main(["advise", "./bad"]) == 0
    assert capsys.readouterr().out.startswith("# \\x1b[2J (4712)\n# nothing is advised on memory and CPUs: ")


def test_largest_of_the_elements_of_an_array(here: Path, capsys: Captured) -> None:
    array = recorded(here / "sweep")
    shutil.rmtree(array.attempt(1).path)
    array.elements.mkdir()
    for number in (1, 2, 10):
        recordedruns.make(array.elements / str(number), workers=1, host_count=1, minutes=2.0 + number)
    assert main(["advise", "sweep"]) == 0
    assert 'time = "00:16:00"' in capsys.readouterr().out
    Path("job.toml").write_text('command = ["true"]\n')
    assert main(["render", "--scheduler", "local", "--like", "sweep", "--workers", "1", "job.toml"]) == 0
    assert '= "00:16:00" measured in sweep (4711): 12 min' in " ".join(capsys.readouterr().err.split())


def test_sums_of_a_user_tell_nothing_of_a_single_job(here: Path, capsys: Captured) -> None:
    for number in range(2):
        recorded(here / f"{SECRET}-{number}", command=["python", SECRET], name=SECRET)
    gone = recorded(here / "gone")
    gone.job.write_text("{")
    shutil.rmtree(gone.attempt(1).path)
    gone.attempt(1).path.write_text("in the way")
    assert main(["advise", "--user", ME, "--since", "2020-01-01"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].startswith(f"{ME}: 3 jobs since 2020-01-01: 2 COMPLETED, ")
    table = {line[:20].strip(): line[20:].split() for line in out.splitlines()[3:]}
    assert out.splitlines()[2].split(maxsplit=4) == ["RESOURCE", "ASKED", "USED", "JOBS", "USED, OF ASKED"]
    assert " ".join(table["GPU-hours"]) == "0.7 0.3 2 busy, of GPUs while jobs had them"
    assert " ".join(table["hours of walltime"][3:]) == "with hosts, of walltimes requested"
    assert max(map(len, out.splitlines())) <= 90
    assert main(["advise", "--user", ME, "--since", "2020-01-01", "--json"]) == 0
    found, error = capsys.readouterr()
    record = json.loads(found)["totals"]
    assert {name: one["jobs"] for name, one in record.items()}["core-hours"] == 2
    assert record["core-hours"]["asked"] == pytest.approx(2 * 16 * 611 / 3600)
    assert record["core-hours"]["used"] == pytest.approx(2 * 2 * 2.0 * 600 / 3600, rel=0.1)
    for text in (out, err, found, error):
        assert not {SECRET, str(here), "4711", "digits"} & {
            word for word in (SECRET, str(here), "4711") if word in text
        }
    assert main(["advise", "--user", ME]) == 0  # of the last 30 days
    assert re.fullmatch(rf"{ME}: 0 jobs since [\d-]+\n", capsys.readouterr().out)


def test_errors(here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["advise"], ["advise", "digits", "--user", ME]):
        assert main(words) == 2
        assert "name either a job, or a user" in capsys.readouterr().err
    assert main(["advise", "./nothing"]) == 2
    assert main(["advise", "--user", ME, "--since", "soon"]) == 2
    capsys.readouterr()
    own = here / "config" / "gridtf" / "config.toml"
    own.parent.mkdir(parents=True)
    own.write_text("[limits]\nadvise_users = true\n")  # which counts in the site's file only
    assert main(["advise", "--user", "nobody"]) == 1
    assert "this site does not permit advice on the jobs of other users" in capsys.readouterr().err
    own.write_text("")
    site = here / "site.toml"
    site.write_text('[limits]\nadvise_users = "yes"\n')
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", str(site))
    assert main(["advise", "--user", "nobody"]) == 2
    assert f"{site}:2: limits.advise_users: expected true or false" in capsys.readouterr().err
