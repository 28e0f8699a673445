"""gridtf doctor and gridtf init."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from gridtf.cli import main, output
from gridtf.doctor import login, probe
from gridtf.findings import Examination, Finding, Level, Setting
from gridtf.jobspec.config import Configured
from tests.support.scheduler import FakeScheduler

Captured = pytest.CaptureFixture[str]

OK = Finding(Level.OK, "scheduler", "Slurm answers")
WARNING = Finding(Level.WARNING, "time", "no default\x1b", 'write time = "1:00:00"')
FAILURE = Finding(Level.FAILURE, "run_root.write", "cannot write", "choose another folder")
SILENT = Finding(Level.FAILURE, "scheduler", "Slurm does not answer", "try later")
TIME = Setting("time", "1:00:00", "no default")


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Finding]:
    """The findings of the examination; its only setting is TIME."""
    findings = [OK, WARNING]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(login, "examine", lambda *_: Examination(tuple(findings), (TIME,)))
    return findings


def user_file() -> Path:
    return Path(os.environ["XDG_CONFIG_HOME"], "gridtf/config.toml")


def test_findings_are_lines_with_their_hints_below(found: list[Finding], capsys: Captured) -> None:
    assert main(["doctor"]) == 0
    assert capsys.readouterr() == (
        "ok       scheduler  Slurm answers\n"
        "warning  time       no default\\x1b\n"
        '           write time = "1:00:00"\n'
        "0 failures, 1 warning\n"
        f"gridtf init writes time to {user_file()}\n",
        "",
    )
    assert not user_file().exists()


@pytest.mark.parametrize("columns", [20, 40, 80])
def test_findings_are_broken_and_indented_on_a_terminal(
    columns: int, found: list[Finding], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "width", lambda: columns)
    found[:] = [OK.replace(message="Slurm answers, and says " + "much " * 20)]
    assert main(["doctor", "--color", "always"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("\x1b[32mok\x1b[m")
    findings = lines[:-1] if columns > 20 else lines[:-2]
    assert len(findings) > 1
    assert max(map(len, findings[1:])) <= columns
    assert {line[: len(line) - len(line.lstrip())] for line in findings[1:]} == {" " * {20: 5, 40: 10, 80: 20}[columns]}


def test_failure_is_exit_code_1(found: list[Finding], capsys: Captured) -> None:
    found.append(FAILURE)
    assert main(["doctor"]) == 1
    assert "failure  run_root.write  cannot write\n           choose another folder\n" in capsys.readouterr().out


def test_json(found: list[Finding], capsys: Captured) -> None:
    assert main(["doctor", "--json", "--write", "site.toml"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["findings"][1] == {
        "level": "warning",
        "check": "time",
        "message": "no default\x1b",
        "hint": WARNING.hint,
    }
    assert (shown["settings"][0]["key"], shown["settings"][0]["value"]) == ("time", "1:00:00")
    assert shown["written"] == "site.toml"


def test_init_writes_the_user_s_file(found: list[Finding], capsys: Captured) -> None:
    found.append(FAILURE)
    assert main(["init"]) == 1  # the file is no help against that
    assert capsys.readouterr().err == f"gridtf: {user_file()} is written; it sets time\n"
    text = user_file().read_text()
    assert '\n# no default\ntime = "1:00:00"\n' in text
    assert "[limits]" not in text


def test_doctor_writes_a_site_s_file_anywhere(found: list[Finding]) -> None:
    assert main(["doctor", "--write", "new/site.toml"]) == 0
    assert "# [limits]" in Path("new/site.toml").read_text()


def test_init_is_the_doctor_s_file_at_the_user_s_path(found: list[Finding]) -> None:
    assert main(["init"]) == 0
    text = user_file().read_text()
    user_file().unlink()
    assert main(["doctor", "--write", str(user_file())]) == 0
    assert user_file().read_text() == text


def test_file_that_is_not_complete_is_removed(found: list[Finding], capsys: Captured) -> None:
    with mock.patch.object(Path, "open", lambda path, mode, encoding: open("/dev/full", "w", encoding=encoding)):  # noqa: PTH123
        Path("x.toml").touch()
        with mock.patch("os.path.lexists", lambda path: False):
            assert main(["doctor", "--write", "x.toml"]) == 1
    assert "cannot write x.toml: No space left on device" in capsys.readouterr().err
    assert not Path("x.toml").exists()


@pytest.mark.parametrize("words", [["init"], ["doctor", "--write", "mine.toml"]])
def test_existing_file_is_left_as_it_is(found: list[Finding], words: list[str], capsys: Captured) -> None:
    file = user_file() if words == ["init"] else Path("mine.toml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.symlink_to("nowhere")
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"gridtf: {file} exists, and is left as it is\n  compare with a new one: ")
    assert file.is_symlink()


@pytest.mark.parametrize(
    ("place", "piece"), [("file/x.toml", "a file has that name"), ("/proc/x/y.toml", "cannot write")]
)
def test_file_that_cannot_be_written(found: list[Finding], place: str, piece: str, capsys: Captured) -> None:
    Path("file").touch()
    assert main(["doctor", "--write", place]) == 1
    captured = capsys.readouterr()
    assert piece in captured.err
    assert "ok       scheduler  Slurm answers\n" in captured.out


def test_nothing_is_written_without_an_answer_of_the_scheduler(found: list[Finding], capsys: Captured) -> None:
    found[:] = [SILENT]
    assert main(["init"]) == 1
    assert not user_file().exists()
    assert "is not written: fix the failure of scheduler first" in capsys.readouterr().err


def test_init_needs_a_home(found: list[Finding], monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(Path, "expanduser", lambda path: (_ for _ in ()).throw(RuntimeError("no home")))
    assert main(["init"]) == 2
    assert "gridtf doctor --write FILE" in capsys.readouterr().err


def test_lines_to_write_belong_in_the_user_s_file_once_it_exists(found: list[Finding], capsys: Captured) -> None:
    assert main(["init"]) == 0
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith(f"the lines to write belong in {user_file()}, above its first [table]\n")
    found[:] = [OK]
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("0 failures, 0 warnings\n")


@pytest.mark.thorough
def test_user_s_own_file_does_not_count_for_a_file_of_all_users(
    fake: FakeScheduler, rough_path: Path, capsys: Captured
) -> None:
    user_file().parent.mkdir(parents=True)
    user_file().write_text('time = "1:00"\n')
    main(["doctor", "--json", "--write", "site.toml"])
    captured = capsys.readouterr()
    assert f"gridtf: {user_file()} is left out of account, since site.toml is for all users\n" in captured.err
    assert json.loads(captured.out)["findings"][0]["message"] == "no site's or user's file"
    assert Path("site.toml").exists()
    user_file().write_text("time = 2h\n")  # a site's file does not depend on it
    main(["doctor", "--write", "other.toml"])
    assert Path("other.toml").exists()


def test_init_names_the_line_of_a_file_that_is_not_valid(rough_path: Path, capsys: Captured) -> None:
    user_file().parent.mkdir(parents=True)
    user_file().write_text("nodes = 1\ntime = 2h\n")
    assert main(["init"]) == 2
    first, second, third = capsys.readouterr().err.splitlines()
    assert first == f"gridtf: {user_file()} exists, and is not valid"
    assert second.startswith(f"  {user_file()}:2: ")
    assert third == '  correct that line (write time = "2h"), or move the file away'


@pytest.mark.thorough
@pytest.mark.parametrize("words", [["init"], ["doctor", "--write", "x.toml"]])
def test_scheduler_that_is_named_is_written(rough_path: Path, words: list[str]) -> None:
    assert main([*words, "--scheduler", "local"]) in (0, 1)
    text = (user_file() if words == ["init"] else Path("x.toml")).read_text()
    assert '\nscheduler = "local"\n' in text


# --- the probe


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[Configured]:
    """The probes that are submitted, which find out about the run root."""
    submitted: list[Configured] = []

    def submit(given: Configured, *, end: bool, say: Callable[[str], None]) -> Examination:
        submitted.append(given)
        say("submitted job 7, which measures its end" if end else "submitted job 7")
        setting = Setting("interface", "ib0", "all hosts reach each other over it")
        return Examination((Finding(Level.OK, "run_root.shared", "all hosts see it"),), (setting,))

    monkeypatch.setattr(probe, "probe", submit)
    return submitted


def test_probe_takes_options_of_submit_and_its_findings_replace_others(
    found: list[Finding], probed: list[Configured], capsys: Captured
) -> None:
    found.append(Finding(Level.WARNING, "run_root.shared", "on a disk", "see whether hosts share it"))
    assert (
        main(["doctor", "--probe", "--nodes", "3", "-p", "gpu", "--setup", "module load x", "--write", "f.toml"]) == 0
    )
    (given,) = probed
    assert (given.spec.nodes, given.spec.partition, given.spec.setup) == (3, "gpu", ("module load x",))
    captured = capsys.readouterr()
    assert captured.err.startswith("gridtf: submitted job 7\n")
    assert "ok       run_root.shared  all hosts see it" in captured.out
    assert "on a disk" not in captured.out
    assert 'interface = "ib0"' in Path("f.toml").read_text()


def test_probe_gives_a_result_that_can_be_sent(found: list[Finding], capsys: Captured) -> None:
    found += [Finding(Level.OK, "pe", "pe mpi of alice"), Finding(Level.FAILURE, "pe", "pe x has no slots", "ask")]
    assert main(["doctor", "--probe", "--json", "--scheduler", "local"]) == 1
    answer = json.loads(capsys.readouterr().out)
    result = answer["result"]
    assert (result["scheduler"], result["version"], result["failed"]) == ("the local scheduler", "", ["pe"])
    assert "alice" not in json.dumps(result)
    assert main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["result"] is None


@pytest.mark.parametrize(("check", "kept"), [("probe.job", False), ("probe.submission", True)])
def test_question_that_the_probe_has_answered_is_not_asked_again(
    found: list[Finding], monkeypatch: pytest.MonkeyPatch, capsys: Captured, check: str, kept: bool
) -> None:
    found.append(Finding(Level.WARNING, "run_root.shared", "on a disk", "gridtf doctor --probe shows it"))
    failed = Examination((Finding(Level.FAILURE, check, "n2 does not see the run directory", "choose another"),))
    monkeypatch.setattr(probe, "probe", lambda *_, **__: failed)
    assert main(["doctor", "--probe"]) == 1
    assert ("on a disk" in capsys.readouterr().out) == kept


def test_probe_has_the_settings_that_the_doctor_proposes(
    found: list[Finding], probed: list[Configured], monkeypatch: pytest.MonkeyPatch
) -> None:
    proposed = (
        TIME,
        Setting("pe", "rr", "jobs need one"),
        Setting("native", ["-l a=1", "-l b=2"], "forced"),
        Setting("setup", ["module load x"], "", example=True),
    )
    monkeypatch.setattr(login, "examine", lambda *_: Examination(tuple(found), proposed))
    assert main(["doctor", "--probe", "--entry", "train:main"]) == 0
    (given,) = probed
    assert (given.spec.pe, given.spec.native) == ("rr", ("-l a=1", "-l b=2"))
    assert (given.spec.time, given.spec.setup) == (None, ())


def test_options_of_a_probe_override_settings_and_each_raw_option_is_there_once(
    found: list[Finding], probed: list[Configured], monkeypatch: pytest.MonkeyPatch
) -> None:
    proposed = (Setting("native", ["-V", "-l b=2"], "forced"), Setting("run_root", "/scratch/runs", "a disk"))
    monkeypatch.setattr(login, "examine", lambda *_: Examination(tuple(found), proposed))
    assert main(["doctor", "--probe", "--native=-V", "--run-root", "/data/runs"]) == 0
    (given,) = probed
    assert (given.spec.native, given.spec.run_root) == (("-V", "-l b=2"), "/data/runs")


def test_no_probe_is_submitted_without_the_option_or_with_a_failure(
    found: list[Finding], probed: list[Configured], capsys: Captured
) -> None:
    assert main(["doctor"]) == 0
    found.append(FAILURE)
    assert main(["doctor", "--probe"]) == 1
    assert probed == []
    assert "gridtf: no probe is submitted until the failures are fixed" in capsys.readouterr().err


def test_end_of_a_job_is_measured_by_a_probe_only(
    found: list[Finding], probed: list[Configured], capsys: Captured
) -> None:
    assert main(["doctor", "--probe", "--end"]) == 0
    assert capsys.readouterr().err == "gridtf: submitted job 7, which measures its end\n"
    assert main(["doctor", "--end"]) == 2
    assert capsys.readouterr().err.endswith("gridtf doctor --probe --end\n")
    assert len(probed) == 1


def test_doctor_takes_no_command(found: list[Finding], capsys: Captured) -> None:
    assert main(["doctor", "--", "true"]) == 2
    assert "gridtf: gridtf doctor takes no command" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--nodes", "x"], "gridtf: --nodes: 'x' is not a node count\n"),
        (["--nods", "2"], "gridtf: unknown option --nods\n  did you mean --nodes?\n"),
    ],
)
def test_option_that_is_not_valid_is_wrong_usage(words: list[str], error: str, capsys: Captured) -> None:
    assert main(["doctor", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(error)
