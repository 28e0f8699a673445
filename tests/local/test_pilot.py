"""`gridtf doctor --conformance` on this machine: rows that cannot be tried, rows that fail, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import venv
from pathlib import Path

import pytest

from gridtf.doctor.conformance import ROWS
from gridtf.run import registry
from tests.support.commands import call, started
from tests.support.configuration import write
from tests.support.pilots import levels, result


@pytest.mark.tensorflow
def test_rows_that_the_site_does_not_allow_are_not_tried(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = write(tmp_path / "site.toml", "[limits]\nexec = false\nmax_restarts = 0\nmax_gpus_per_node = 1\n")
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", str(site))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)  # in a folder with brackets in its name TensorFlow does not find its checkpoints
    done = call("doctor", "--conformance", timeout=600)
    seen = levels(done.stdout)
    assert {row for row, level in seen.items() if level == "warning"} == {"restart", "exec"}, done.stdout
    assert f"not tried: the job: restarts: 1 requested, the site allows 0; {site}:3: max_restarts = 0" in done.stdout
    assert f"{site}:2: exec = false" in done.stdout
    sent = result(work)
    assert (sent["failed"], sent["hosts"], sent["tasks"]) == ([], 1, 2)
    assert {*sent["passed"]} == {*seen} - {"restart", "exec"}
    assert os.uname().nodename not in json.dumps(sent)
    assert not list(work.iterdir())
    assert not list(registry.entries(os.environ))


def test_rows_fail_where_there_is_no_tensorflow_and_others_go_on(here: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare")
    python = tmp_path / "bare/bin/python"
    done = call("doctor", "--conformance", "--python", str(python), code=1, timeout=600)
    rows = {"train": "failure", "hosts": "warning", "checkpoint": "failure", "resume": "warning"}
    assert levels(done.stdout) == {**rows, **dict.fromkeys(("first_cause", "restart", "exec", "cancel"), "ok")}
    assert "FAILED, not COMPLETED" in done.stdout
    assert "No module named 'tensorflow'" in done.stdout
    sent = result(here)
    assert (sent["failed"], sent["tensorflow"]) == (["checkpoint", "train"], "")
    assert len(list((here / "gridtf-runs").iterdir())) == 5  # they are kept


@pytest.mark.parametrize("words", [("--python", "/nosuch/python"), ("--setup", "false")], ids=["python", "setup"])
def test_nothing_more_is_tried_where_no_task_can_begin(here: Path, words: tuple[str, str]) -> None:
    done = call("doctor", "--conformance", *words, code=1, timeout=600)
    assert levels(done.stdout) == {"train": "failure", **dict.fromkeys([*ROWS][1:], "warning")}, done.stdout
    assert done.stdout.count("not tried: train has failed") == len(ROWS) - 1
    assert "mend the set-up, and try again, before you send it" in done.stderr
    sent = result(here)
    assert (sent["failed"], sent["passed"]) == (["train"], [])


@pytest.mark.parametrize("numbers", [("SIGINT",), ("SIGHUP", "SIGTERM")], ids=["ctrl_c", "lost"])
def test_what_was_tried_is_shown_after_a_signal_and_nothing_stays(here: Path, numbers: tuple[str, ...]) -> None:
    with started("doctor", "--conformance") as process:
        assert process.stderr is not None
        assert "submitted job" in process.stderr.readline()
        for number in numbers:
            process.send_signal(signal.Signals[number])
        printed, said = process.communicate(timeout=120)
    assert process.returncode == 130, printed + said
    assert levels(printed) == dict.fromkeys(ROWS, "warning")
    assert printed.count("not tried: interrupted") == len(ROWS)
    assert "gridtf-conformance.json is not written" in said
    assert not [path for path in here.rglob("*") if path.name != "gridtf-runs"]
    assert not list(registry.entries(os.environ))


def test_site_that_forbids_everything_is_one_error(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = (
        'max_nodes = 1\nmax_workers = 1\nmax_time = "1m"\nmax_restarts = 0\nexec = false\nmessage = "see the page"\n'
    )
    site = write(tmp_path / "site.toml", f"[limits]\n{limits}")
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", str(site))
    done = call("doctor", "--conformance", code=2)
    assert (done.stdout, list(here.iterdir())) == ("", [])
    what = "gridtf: the job: tasks.worker.count: 2 requested, the site allows 1"
    hint = "  its jobs request two hosts and a walltime of 5m; --nodes and --time request less; see the page"
    assert done.stderr.splitlines() == [what, f"  {site}:3: max_workers = 1", hint]
    done = call("doctor", "--conformance", "--nodes", "1", code=2)
    assert done.stderr.splitlines() == [
        "gridtf: the job: time: 00:05:00 requested, the site allows 00:01:00",
        f"  {site}:4: max_time = 00:01:00",
        hint,
    ]


def test_result_that_cannot_be_written_is_an_error_before_the_jobs(here: Path) -> None:
    (here / "gridtf-conformance.json").mkdir()
    done = call("doctor", "--conformance", code=1, timeout=600)
    assert "cannot write gridtf-conformance.json: Is a directory" in done.stderr
    assert [path.name for path in here.iterdir()] == ["gridtf-conformance.json"], "no run directory"


def test_other_measurements_are_another_command(here: Path) -> None:
    assert "are two commands" in call("doctor", "--conformance", "--probe", code=2).stderr
