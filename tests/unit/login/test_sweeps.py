"""Sweeps on the login side: what is refused, what is submitted, and the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from gridtf.cli import main
from gridtf.errors import GridtfError, NotFoundError, RunDirError
from gridtf.jobspec.config import Typed
from gridtf.login import rerun, submission, sweeps
from gridtf.login.job import Job, find
from gridtf.run import recordtypes, rundir
from gridtf.run.rundir import RunDir, write_record
from gridtf.schedulers.api import JobStatus
from tests.support.scheduler import FakeScheduler
from tests.support.states import UNKNOWN

Captured = pytest.CaptureFixture[str]

HEAD = 'name = "swept"\nscheduler = "slurm"\ncommand = ["train"]\n'
PARAMS = "[params]\nlr = 0.1\nlayers = 4\nname = 'a'\n"


def write(text: str, head: str = HEAD) -> None:
    Path("job.toml").write_text(head + PARAMS + text)


def swept(capsys: Captured, text: str, *words: str) -> dict[str, Any]:
    write(text)
    assert main(["sweep", "job.toml", "--json", *words]) == 0
    return dict(json.loads(capsys.readouterr().out))


def end(run: RunDir, element: str, state: str, **values: float) -> None:
    """What an element leaves that has ended."""
    verdict = {"state": state, "reason": "why", "started": 10.0, "ended": 46.0}
    told = {name: {"last": value, "least": value, "most": value, "step": 1} for name, value in values.items()}
    had = {"hosts": 1, "cpus": 2, "gpus": 0}
    record = {"attempt": 1, "verdict": verdict, "params": {}, "values": told, "had": had, "hosts": ["n1"], "tasks": 1}
    write_record(run.elements / element / run.result.name, record)


def rerun_failed(job: Job) -> Job:
    made, some = rerun.failed(job, Typed())
    return submission.submit(made.spec, made.sources, made.trusted, origin=made.origin, sweep=some)


def test_rows_and_limits_are_recorded_and_folders_made(fake: FakeScheduler, rough_path: Path, capsys: Captured) -> None:
    answer = swept(capsys, "[sweep]\nlr = [0.1, 0.2]\nat_once = 3\n")
    run = RunDir(answer["run_dir"])
    record = json.loads(run.sweep.read_text())
    assert record == {"rows": [{"lr": 0.1}, {"lr": 0.2}], "at_once": 3, "pack": 1, "numbers": []}
    assert run.sweep.stat().st_mode & 0o777 == 0o600
    assert json.loads(run.submitted.read_text())["elements"] == ["1", "2"]
    assert sorted(path.name for path in run.elements.iterdir()) == ["1", "2"]
    assert not run.output.exists()
    assert (
        json.loads(Path(swept(capsys, "[sweep]\nlr = [1]\n", "--at-once", "7")["run_dir"], "sweep.json").read_text())[
            "at_once"
        ]
        == 7
    )
    assert json.loads(Path(swept(capsys, "[sweep]\nlr = [1]\n")["run_dir"], "sweep.json").read_text())["at_once"] == 10


def test_table_of_elements_in_all_states(fake: FakeScheduler, rough_path: Path, capsys: Captured) -> None:
    run = RunDir(swept(capsys, "[sweep]\nlr = [0.1, 0.2, 0.3]\n")["run_dir"])
    end(run, "2", "FAILED", loss=0.5)
    rows = sweeps.rows(run)
    assert [row.state for row in rows] == ["PENDING", "FAILED", "PENDING"]
    assert (rows[1].reason, rows[1].seconds) == ("why", 36.0)
    assert rows[1].cost == {"host_seconds": 36.0, "cpu_seconds": 72.0}
    fake.states = [JobStatus(UNKNOWN, purged=True)]
    assert [row.state for row in sweeps.rows(run)] == ["UNKNOWN", "FAILED", "UNKNOWN"]
    write_record(run.cancelled, {"user": "alice"})
    assert [row.reason for row in sweeps.rows(run)] == [
        "cancelled by alice before it began", "why", "cancelled by alice before it began",
    ]  # fmt: skip
    assert main(["list", "swept"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[2].split()[:6] == ["2", "101_2", "0.2", "FAILED", "0.5", "36"]
    assert shown[-1] == "3 elements: 2 CANCELLED, 1 FAILED"


def test_only_those_that_have_not_completed_run_again(fake: FakeScheduler, rough_path: Path, capsys: Captured) -> None:
    run = RunDir(swept(capsys, "[sweep]\nlr = [0.1, 0.2, 0.3, 0.4]\n", "--at-once", "2")["run_dir"])
    for element, state in (("1", "COMPLETED"), ("2", "FAILED"), ("4", "CANCELLED")):
        end(run, element, state)
    again = rerun_failed(find("swept"))
    made = json.loads(again.run.sweep.read_text())
    assert made == {"rows": [{"lr": 0.2}, {"lr": 0.4}], "at_once": 2, "pack": 1, "numbers": [2, 4]}
    assert again.run_dir == run.path / "rerun-1"
    assert (find("swept").run_dir, find("swept-rerun-1").run_dir) == (run.path, again.run_dir)
    assert sweeps.element_spec(Job(again.run.elements / "1")).title == "swept-2"
    assert json.loads(again.run.job.read_text())["origin"] == {"rerun_of": str(run.path)}
    end(again.run, "1", "COMPLETED")
    end(again.run, "2", "FAILED")
    assert [row.state for row in sweeps.rows(run)] == ["COMPLETED", "COMPLETED", "PENDING", "FAILED"]
    for job in ("swept_4", f"{again.id}_2"):
        write_record(again.run.elements / "2" / "job.json", {"spec": {"command": ["x"]}})
        assert find(job).run_dir == again.run.elements / "2", "by name the table's number, by id the array's"
    write_record(run.elements / "2" / "job.json", {"spec": {"command": ["x"]}})
    assert find("101_2").run_dir == find("swept_2").run_dir == run.elements / "2"
    with pytest.raises(NotFoundError, match="element 3 of job swept has not begun"):
        find("swept_3")
    third = rerun_failed(again)
    assert third.run_dir == run.path / "rerun-2"
    assert json.loads(third.run.sweep.read_text())["numbers"] == [4]
    assert [row.job_id for row in sweeps.rows(run)] == ["101_1", "102_1", "101_3", "103_1"]
    assert main(["list", third.id, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 4


def test_failed_elements_run_again_with_changes(fake: FakeScheduler, rough_path: Path, capsys: Captured) -> None:
    run = RunDir(swept(capsys, "[sweep]\nlr = [0.1, 0.2, 0.3]\n", "--time", "10m", "--mem", "2G")["run_dir"])
    for element, state in (("1", "COMPLETED"), ("2", "FAILED"), ("3", "FAILED")):
        end(run, element, state)
    words = ("rerun", "--failed", "swept", "--mem", "4G", "--set", "layers=5")
    for wrong in (("--set", "lr=1"), ("--name", "x"), ("--run-dir", "x"), ("--run-root", "x"), ("--scheduler", "sge")):
        assert main([*words, *wrong]) == 2
        key = "lr" if wrong[0] == "--set" else wrong[0][2:].replace("-", "_")
        said = f"gridtf: {wrong[0]}: elements that --failed runs again keep the {key} of the sweep\n"
        assert capsys.readouterr().err.startswith(said)
    assert main([*words, "--dry-run"]) == 0
    shown = capsys.readouterr().err
    assert "sweep          2 elements, 10 at once\n  2: lr=0.2\n  3: lr=0.3\n" in shown
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert {'time = "10m" from swept (101)', 'mem = "4G" --mem'} <= {*lines}
    assert not (run.path / "rerun-1").exists()
    assert main([*words, "--json", "--", "mended"]) == 0
    again = RunDir(json.loads(capsys.readouterr().out)["run_dir"])
    spec = json.loads(again.job.read_text())["spec"]
    assert (spec["time"], spec["mem"], spec["params"]["layers"], spec["command"]) == ("10m", "4G", 5, ["mended"])
    assert json.loads(again.sweep.read_text())["numbers"] == [2, 3]


def test_failed_elements_that_run_again_keep_folders_of_their_own(
    fake: FakeScheduler, rough_path: Path, capsys: Captured
) -> None:
    run = RunDir(swept(capsys, "[sweep]\nlr = [0.1, 0.2]\n")["run_dir"])
    for element in "12":
        end(run, element, "FAILED")
    words = ("rerun", "--failed", "swept", "--env")
    assert main([*words, "OUTPUT_DIR=out"]) == 2
    assert capsys.readouterr().err.startswith("gridtf: --env: elements of the sweep would write into one folder\n")
    assert main([*words, "OUTPUT_DIR=out-{params.lr}"]) == 0


def test_failed_elements_run_the_snapshot_of_the_sweep_unless_the_code_is_to_be_that_of_now(
    fake: FakeScheduler, rough_path: Path, capsys: Captured
) -> None:
    def snapshot(run_dir: str) -> Path:
        return Path(json.loads(RunDir(run_dir).job.read_text())["origin"]["snapshot"])

    (rough_path / "train.py").write_text("old")
    run = RunDir(swept(capsys, "[sweep]\nlr = [0.1, 0.2]\n", "--snapshot")["run_dir"])
    (rough_path / "train.py").write_text("mended")
    found = []
    for number, words in enumerate(((), ("--code", "now"), ()), 1):
        for element in "12":
            end(run, element, "FAILED")
        assert main(["rerun", "--failed", "swept", "--json", *words]) == 0
        made = json.loads(capsys.readouterr().out)
        assert Path(made["run_dir"]).name == f"rerun-{number}"
        found.append(snapshot(made["run_dir"]))
        run = RunDir(made["run_dir"])
    assert [path.joinpath("train.py").read_text() for path in found] == ["old", "mended", "old"]
    assert found[0] == found[2] != found[1]
    for element in "12":
        end(run, element, "FAILED")
    found[0].rename(found[0].with_name("gone"))
    assert main(["rerun", "--failed", "swept"]) == 1
    assert "the snapshot that swept has run is gone" in capsys.readouterr().err


def test_sweep_that_goes_on_has_nothing_to_run_again(fake: FakeScheduler, rough_path: Path, capsys: Captured) -> None:
    job = find(swept(capsys, "[sweep]\nlr = [0.1, 0.2]\n")["job_id"])
    with pytest.raises(GridtfError, match="no element of the sweep is to be run again: 2 have not ended"):
        rerun_failed(job)
    with pytest.raises(NotFoundError, match="is no element of a sweep"):
        sweeps.element_spec(job)


def test_job_that_is_no_sweep(fake: FakeScheduler, rough_path: Path, capsys: Captured) -> None:
    write("")
    assert main(["submit", "job.toml"]) == 0
    assert main(["list", "swept"]) == 2
    assert capsys.readouterr().err.startswith("gridtf: job swept is no sweep\n")
    with pytest.raises(NotFoundError):
        rerun_failed(find("swept"))


def test_sweep_of_another_user_is_not_run_again(
    fake: FakeScheduler, rough_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = find(swept(capsys, "[sweep]\nlr = [0.1]\n")["run_dir"])
    monkeypatch.setattr("gridtf.login.resume.is_ours", lambda path: False)
    with pytest.raises(RunDirError, match="belongs to user"):
        rerun_failed(job)


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("", [], "gridtf: sweep: the job file has no sweep\n  write [sweep], and lr = [0.1, 0.01] below it; gridtf"),
        ("[sweep]\nrl = [1]\n", [], "gridtf: job.toml:9: sweep.rl: there is no parameter 'rl'\n  did you mean lr?"),
        ("[sweep]\nlr = []\n", [], "gridtf: job.toml:9: sweep.lr: it has no values\n"),
        ("[sweep]\nlayers = {from=1, to=10001}\n", [], "gridtf: sweep: it has 10001 elements, at most 10000 are allo"),
        ("[sweep]\nlr = [1]\nat_once = 0\n", [], "gridtf: job.toml:10: sweep.at_once: 0 is not a whole number above 0"),
        ("[sweep]\nlr = [1]\n", ["--at-once", "0"], "gridtf: --at-once: 0 is not a whole number above 0"),
        ("[sweep]\nlr = [1]\n", ["--pack", "0"], "gridtf: --pack: 0 is not a whole number above 0"),
        ("[sweep]\nlr = [1]\n", ["--pack", "2", "--nodes", "2"], "gridtf: pack: only jobs of one host can share it"),
        *(
            ("[sweep]\nlr = [1, 2]\n", ["--env", f"OUTPUT_DIR={name}"], "gridtf: --env: elements of the sweep would w")
            for name in ("x", "x/{params.layers}", "${run_dir}")
        ),
        ("[sweep]\nname = ['a', '" + 200_000 * "b" + "']\n", [], "gridtf: params: 200"),
        ("[sweep]\nlr = [1]\n", ["--set", "lr=2"], "gridtf: --set: the sweep has its own values of lr, and --set "),
        ("[sweep]\nlr = [1]\n", ["--dry-run"], "gridtf: --dry-run prints the job script, not JSON\n"),
        ('[sweep]\nfile = "no.csv"\n', [], "gridtf: job.toml:9: sweep.file: cannot read no.csv: No such file or direc"),
        ("[sweep]\nfile = 1\n", [], "gridtf: job.toml:9: sweep.file: 1 is not the name of a file\n"),
    ],
)  # fmt: skip
def test_sweeps_that_are_refused(
    text: str, words: list[str], said: str, fake: FakeScheduler, rough_path: Path, capsys: Captured
) -> None:
    write(text)
    assert main(["sweep", "job.toml", "--json", *words]) == 2
    assert capsys.readouterr().err.startswith(said)
    assert not Path("gridtf-runs").exists()
    assert not fake.count


@pytest.mark.parametrize("folder", ["x/{params.lr}", "x/{{ lr }}", "{run_dir}/x", "x/{job_id}"])
def test_elements_with_folders_of_their_own(
    folder: str, fake: FakeScheduler, rough_path: Path, capsys: Captured
) -> None:
    assert swept(capsys, "[sweep]\nlr = [1, 2]\n", "--env", f"OUTPUT_DIR={folder}")["job_id"] == "101"


def test_elements_are_not_run_again_twice(fake: FakeScheduler, rough_path: Path, capsys: Captured) -> None:
    """Another command has made the folder, and has not submitted yet."""
    run = RunDir(swept(capsys, "[sweep]\nlr = [0.1, 0.2]\n")["run_dir"])
    end(run, "1", "FAILED")
    (run.path / "rerun-1").mkdir()
    with pytest.raises(GridtfError, match=r"are being run again at this moment, in .*/rerun-1"):
        rerun_failed(find("swept"))
    assert fake.count == 1


def test_conditions_that_were_met_do_not_count_again(fake: FakeScheduler, rough_path: Path, capsys: Captured) -> None:
    assert main(["submit", "--name", "first", "--scheduler", "slurm", "--", "true"]) == 0
    capsys.readouterr()
    run = RunDir(swept(capsys, "[sweep]\nlr = [0.1, 0.2]\n", "--after", "first")["run_dir"])
    end(run, "2", "FAILED")
    find("first").run_dir.rename("removed")
    again = rerun_failed(find("swept"))
    assert "after" not in json.loads(again.run.job.read_text())["spec"]


def test_submit_refuses_a_sweep(fake: FakeScheduler, rough_path: Path, capsys: Captured) -> None:
    write("[sweep]\nlr = [1]\n")
    assert main(["submit", "job.toml"]) == 2
    said = "gridtf: job.toml has a [sweep]: it is more than one job\n  write: gridtf sweep job.toml\n"
    assert capsys.readouterr().err == said


@pytest.mark.thorough
def test_site_limits_the_elements(
    fake: FakeScheduler, rough_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = tmp_path / "site.toml"
    site.write_text("[limits]\nmax_sweep = 2\n")
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", str(site))
    write("[sweep]\nlr = [1, 2, 3]\n")
    assert main(["sweep", "job.toml"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("gridtf: sweep: it has 3 elements, at most 2 are allowed\n")
    assert f"{site}:2: max_sweep = 2" in err
    site.write_text("[limits]\nmax_at_once = 4\nmessage = 'be kind'\n")
    assert main(["sweep", "job.toml", "--at-once", "5"]) == 2
    err = capsys.readouterr().err
    assert err == f"gridtf: --at-once: 5 requested, the site allows 4\n  {site}:2: max_at_once = 4\n  be kind\n"
    write("[sweep]\nat_once = 5\nlr = [1, 2, 3]\n")
    assert main(["sweep", "job.toml"]) == 2
    assert "sweep.at_once: 5 requested, the site allows 4" in capsys.readouterr().err
    write("[sweep]\nlr = [1, 2, 3, 4, 5, 6]\n")  # without a wish as many as are allowed
    capsys.readouterr()
    assert main(["sweep", "job.toml", "--json"]) == 0
    submitted = json.loads(capsys.readouterr().out)
    assert json.loads(Path(submitted["run_dir"], "sweep.json").read_text())["at_once"] == 4
    site.write_text("[limits]\nmax_sweep = 20000\n")
    write("[sweep]\nlayers = {from = 1, to = 10001}\n")
    assert main(["sweep", "job.toml", "--dry-run"]) == 0


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        ("rows.csv", "lr,name\n0.1,b\n2,1e3\n\n", [{"lr": 0.1, "name": "b"}, {"lr": 2.0, "name": "1e3"}]),
        ("rows.csv", '\N{BOM}name\n"a, b"\n', [{"name": "a, b"}]),
        ("rows.csv", "lr,name\r\n0.1,TRUE\r\n,\r\n", [{"lr": 0.1, "name": "TRUE"}]),
        ("rows.jsonl", '{"lr": 1, "layers": 2}\n\n{"layers": 3, "lr": 0.5}\n', [
            {"lr": 1.0, "layers": 2}, {"layers": 3, "lr": 0.5},
        ]),
    ],
)  # fmt: skip
def test_rows_of_a_file(
    name: str, text: str, rows: list[dict[str, Any]], fake: FakeScheduler, rough_path: Path, capsys: Captured
) -> None:
    Path(name).write_text(text)
    answer = swept(capsys, f'[sweep]\nfile = "{name}"\n')
    assert json.loads(Path(answer["run_dir"], "sweep.json").read_text())["rows"] == rows


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("rows.csv", "lr,name\n0.1\n", "rows.csv:2: 1 values, and the first line has 2 names"),
        ("rows.csv", "lr\n0.1\nfast\n", "rows.csv:3: 'fast' is not a number"),
        ("rows.csv", "rate\n0.1\n", "rows.csv:2: there is no parameter 'rate'"),
        ("rows.csv", "lr,lr\n1,2\n", "rows.csv:1: there are several columns 'lr'"),
        ("rows.csv", 'name\n"a\nb"\n', "sweep.name: 'a\\nb' contains a control character"),
        ("rows.csv", "lr\n", "sweep: it has no elements"),
        ("rows.jsonl", "{\n", "rows.jsonl:1: it is no JSON object"),
        ("rows.jsonl", "[1]\n", "rows.jsonl:1: it is no JSON object"),
        ("rows.jsonl", '{"lr": 1}\n{"layers": 1}\n', "rows.jsonl:2: the rows above have other columns: layers, lr"),
        ("rows.jsonl", '{"lr": null}\n', "rows.jsonl:1: "),
        ("rows.jsonl", '{"layers": 1.5}\n', "rows.jsonl:1: 1.5 is not a whole number"),
    ],
)
def test_wrong_files_of_rows(
    name: str, text: str, said: str, fake: FakeScheduler, rough_path: Path, capsys: Captured
) -> None:
    Path(name).write_text(text)
    write(f'[sweep]\nfile = "{name}"\n')
    assert main(["sweep", "job.toml"]) == 2
    assert capsys.readouterr().err.startswith(f"gridtf: {said}")


def test_dry_run_shows_the_first_rows_and_the_last(rough_path: Path, capsys: Captured) -> None:
    write("[sweep]\nlayers = {from = 1, to = 12}\nlr = [0.5]\n")
    assert main(["sweep", "job.toml", "--dry-run", "--at-once", "4"]) == 0
    shown = capsys.readouterr()
    at = shown.err.splitlines().index("sweep          12 elements, 4 at once")
    lines = [line.strip() for line in shown.err.splitlines()[at + 1 : at + 6]]
    assert lines == [f"{number}: layers={number}, lr=0.5" for number in (1, 2, 3)] + ["…", "12: layers=12, lr=0.5"]
    assert "#SBATCH --array=1-12%4\n" in shown.out
    assert "no command uses" in shown.err
    assert not Path("gridtf-runs").exists()


def test_element_that_has_not_begun_is_told(fake: FakeScheduler, rough_path: Path, capsys: Captured) -> None:
    swept(capsys, "[sweep]\nlr = [0.1, 0.2]\n")
    for name in ("101_2", "swept_2", "101.2"):
        with pytest.raises(NotFoundError, match=f"element 2 of job {name[:-2]} has not begun"):
            find(name)
    with pytest.raises(NotFoundError, match="no job is called 101_3"):
        find("101_3")


def test_table_reads_one_file_of_each_element(
    fake: FakeScheduler, rough_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(swept(capsys, "[sweep]\nlayers = {from = 1, to = 50}\n")["run_dir"])
    for number in range(1, 51):
        end(run, str(number), "COMPLETED", loss=1.0)
    opened: list[Path] = []
    plain = rundir.open_plain

    def counted(path: Path, *, own: bool = False) -> BinaryIO:
        opened.append(path)
        return plain(path, own=own)

    monkeypatch.setattr(rundir, "open_plain", counted)
    assert len(sweeps.rows(run)) == 50
    assert len([path for path in opened if run.elements in path.parents]) == 50
    assert len(opened) < 55
    assert not fake.queried, "a sweep that has ended is not asked for"


def test_result_of_any_sign_is_valid() -> None:
    values = {"loss": {"last": -1.5, "least": -2, "most": 0.0, "step": None}}
    record = {"attempt": 1, "verdict": {"state": "COMPLETED"}, "params": {}, "values": values}
    assert (
        recordtypes.check(recordtypes.Result)(
            {**record, "had": {"hosts": 1, "cpus": 0, "gpus": 0}, "hosts": ["n1"], "tasks": 1}
        )
        == ""
    )
    progress = {"step": 1, "values": {"loss": -1.5}, "time": 1.0, "ranges": {"loss": [-2.5, -1.5]}}
    assert recordtypes.check(recordtypes.Progress)(progress) == ""
    assert recordtypes.check(recordtypes.Progress)({**progress, "ranges": {"loss": [float("nan"), 1]}})


def test_table_of_elements_in_some_states(fake: FakeScheduler, rough_path: Path, capsys: Captured) -> None:
    run = RunDir(swept(capsys, "[sweep]\nlr = [0.1, 0.2, 0.3]\n")["run_dir"])
    end(run, "2", "FAILED")
    assert main(["list", "swept", "--state", "FAILED", "--json"]) == 0
    assert [row["element"] for row in json.loads(capsys.readouterr().out)] == [2]
