"""The examination of this host and its scheduler, and of the files that jobs take their defaults from."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gridtf import schedulers
from gridtf.doctor import login
from gridtf.errors import SchedulerError, UsageError
from gridtf.findings import Examination, Finding, Level, Setting, collect, missing
from tests.support.scheduler import FakeScheduler


def user_file(text: str) -> Path:
    path = Path(os.environ["XDG_CONFIG_HOME"], "gridtf/config.toml")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_files_that_are_valid_are_named() -> None:
    path = user_file('partition = "gpu"\n')
    given, findings = login.configuration(os.environ, Path())
    assert given.spec.partition == "gpu"
    assert findings == (Finding(Level.OK, "configuration", f"{path} is valid"),)


def test_variables_count_and_a_job_file_does_not(rough_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (rough_path / "gridtf.toml").write_text("nodes = 3\n")
    monkeypatch.setenv("GRIDTF_SUBMIT_PARTITION", "gpu")
    given, (finding,) = login.configuration(os.environ, rough_path)
    assert (given.spec.partition, given.spec.nodes, finding.level) == ("gpu", None, "ok")
    assert given.source("partition") == "GRIDTF_SUBMIT_PARTITION"


def test_entry_function_of_an_option_is_no_error(rough_path: Path) -> None:
    (entry,) = (option for option in schedulers.job_options() if option.key == "entry")
    given, (finding,) = login.configuration(os.environ, rough_path, [(entry, "--entry", "train:main")])
    assert (given.spec.entry, given.spec.command, finding.level) == ("train:main", (), "ok")


def test_no_file_is_ok() -> None:
    _, findings = login.configuration(os.environ, Path())
    assert findings == (Finding(Level.OK, "configuration", "no site's or user's file"),)


@pytest.mark.parametrize(
    ("text", "level", "piece", "hint"),
    [
        ("time = 2h\n", "failure", "config.toml:1: ", 'write time = "2h"'),
        ("nodes = -1\n", "failure", "config.toml:1: nodes: ", ""),
        (
            "gpus_per_nod = 1\n",
            "warning",
            "config.toml:1: gpus_per_nod: unknown key, left out; did you mean",
            "correct",
        ),
    ],
)
def test_file_that_is_not_valid_is_one_finding(text: str, level: str, piece: str, hint: str) -> None:
    user_file(text)
    _, (finding,) = login.configuration(os.environ, Path())
    assert (finding.level, finding.check) == (level, "configuration")
    assert piece in finding.message
    assert hint in finding.hint


def test_key_that_the_site_requires_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site.toml"
    site.write_text('nodes = 1\n[limits]\nrequire = ["account"]\n')
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", str(site))
    given, (valid, finding) = login.configuration(os.environ, Path())
    assert given.spec.nodes == 1
    assert (valid.level, finding.level, finding.check) == ("ok", "failure", "configuration.limits")
    assert login.look(os.environ, Path()).valid  # what else is amiss is told as well
    assert finding.hint == "write account = …"
    assert "site.toml:3: require" in finding.message


@pytest.mark.parametrize(
    ("words", "value", "hint"),
    [
        (
            "nodes = 32\n",
            "config.toml:1: nodes: 32 requested, the site allows 16 (",
            "choose a value that the site allows",
        ),
        ("", "--nodes: 32 requested, the site allows 16 (", "choose a value that the site allows; see the wiki"),
    ],
)
def test_value_beyond_a_limit_is_a_failure_with_its_source(
    words: str, value: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site.toml"
    site.write_text("[limits]\nmax_nodes = 16\n" + ("" if words else 'message = "see the wiki"\n'))
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", str(site))
    user_file(words)
    (nodes,) = (option for option in schedulers.job_options() if option.key == "nodes")
    _, (_, finding) = login.configuration(os.environ, Path(), [] if words else [(nodes, "--nodes", "32")])
    assert (finding.level, finding.check, finding.hint) == ("failure", "configuration.limits", hint)
    assert value in finding.message


def test_scheduler_that_is_not_set_up_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(environ: object) -> str:
        raise SchedulerError("no cluster can be used", why="SGE_ROOT is not set", hint="--scheduler local")

    monkeypatch.setattr(schedulers, "to_submit_to", none)
    site = login.look(os.environ, Path())
    assert site.scheduler is None
    assert site.findings[1] == Finding(
        Level.FAILURE, "scheduler", "no cluster can be used; SGE_ROOT is not set", "--scheduler local"
    )


@pytest.mark.thorough
def test_examination_asks_the_scheduler_and_this_host(fake: FakeScheduler, rough_path: Path) -> None:
    found = login.examine(os.environ, rough_path)
    checks = [finding.check for finding in found.findings]
    assert {"configuration", "scheduler", "run_root.write", "shell.module"} < set(checks)
    failures = {finding.check for finding in found.findings if finding.level == Level.FAILURE}
    assert failures <= {"chdir.shared", "job"}  # tests may run below /tmp
    assert "jobs go to Slurm, which says no more" in next(
        one.message for one in found.findings if one.check == "scheduler"
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (SchedulerError("Slurm does not answer", hint="try later"), "Slurm does not answer", "try later"),
        (KeyError("x"), "KeyError: 'x'", "this is a bug in gridtf, or in the plugin of the scheduler"),
    ],
)
def test_error_of_a_scheduler_is_its_finding(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str, hint: str
) -> None:
    def fail(*_: object) -> Examination:
        raise error

    monkeypatch.setattr(fake, "examine", fail)
    (finding,) = (item for item in login.examine(os.environ, rough_path).findings if item.check == "scheduler")
    assert finding == Finding(Level.FAILURE, "scheduler", message, hint)


@pytest.mark.thorough
def test_scheduler_that_is_silent_is_a_finding(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "_EXAMINE_LIMIT", 0.3)
    monkeypatch.setattr(fake, "examine", lambda *_: time.sleep(60))
    found = login.examine(os.environ, rough_path).findings
    (finding,) = (item for item in found if item.check == "scheduler")
    assert (finding.level, finding.message) == ("failure", "Slurm has not answered all questions within 0.3 s")


@pytest.mark.thorough
def test_invalid_file_hides_what_it_may_have_set(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_file("time = 2h\n")
    items = [*missing("time", "no default", Setting("time", "1:00:00", "x")), Finding(Level.OK, "gpus", "four")]
    monkeypatch.setattr(fake, "examine", lambda *_: collect(items))
    found = login.examine(os.environ, rough_path)
    assert found.settings == ()
    checks = [finding.check for finding in found.findings]
    assert ("configuration" in checks, "gpus" in checks, "time" in checks) == (True, True, False)


def test_file_that_is_not_valid_may_name_a_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(environ: object) -> str:
        raise SchedulerError("no cluster can be used")

    user_file('time = 2h\nscheduler = "local"\n')
    monkeypatch.setattr(schedulers, "to_submit_to", none)
    assert [finding.check for finding in login.look(os.environ, Path()).findings] == ["configuration"]


def test_unknown_scheduler_is_wrong_usage_as_an_option_and_a_failure_in_a_file(rough_path: Path) -> None:
    option = next(one for one in schedulers.job_options() if one.key == "scheduler")
    with pytest.raises(UsageError, match="--scheduler: 'pbs' is not one of slurm, sge, local"):
        login.look(os.environ, rough_path.parent, [(option, "--scheduler", "pbs")])
    user_file('scheduler = "pbs"')
    site = login.look(os.environ, rough_path.parent)
    assert [finding.check for finding in site.findings if finding.level == Level.FAILURE] == ["scheduler"]


def test_machine_without_a_scheduler_is_a_warning_unless_it_is_named(
    rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (rough_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(rough_path / "bin"))
    finding = login.look(os.environ, rough_path).findings[-1]
    assert (finding.level, finding.check) == ("warning", "scheduler.found")
    assert finding.hint.endswith('write scheduler = "local"')
    user_file('scheduler = "local"\n')
    assert [finding.level for finding in login.look(os.environ, rough_path).findings] == ["ok"]


def test_grid_engine_whose_commands_are_not_on_the_path_is_a_failure(
    rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (rough_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(rough_path / "bin"))
    monkeypatch.setenv("SGE_ROOT", "/opt/sge")
    finding = login.look(os.environ, rough_path).findings[-1]
    assert (finding.level, finding.check) == ("failure", "scheduler")
    assert "SGE_ROOT is set, but qsub is not on the PATH" in finding.message
    assert finding.hint == "source /opt/sge/default/common/settings.sh, or load Grid Engine's module"


def test_empty_path_is_no_fault_of_a_program_that_nobody_has_named(
    rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (rough_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(rough_path / "bin"))
    assert "job" not in [finding.check for finding in login.examine(os.environ, rough_path).findings]
