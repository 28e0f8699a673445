"""The index of runs."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from gridtf.errors import NotFoundError, ReplacedError, RunDirError
from gridtf.jobspec.spec import JobSpec
from gridtf.login.job import Job
from gridtf.observe import jobs
from gridtf.run import registry
from gridtf.run.registry import Entry
from gridtf.run.rundir import RunDir, read_record, write_record
from gridtf.schedulers.api import JobIdentity


def add(run_dir: Path, *, job_id: str = "7", name: str = "digits", now: float = 1_700_000_000.5) -> Path:
    run_dir.mkdir(parents=True)
    (run_dir / "job.json").write_text("{}")
    registry.add(run_dir, {"scheduler": "slurm", "job_id": job_id, "name": name, "time": now}, os.environ)
    return run_dir


def find(job: str, cwd: Path) -> Path:
    return registry.find(job, os.environ, cwd).path


def runs() -> list[Path]:
    return [run.path for run in registry.runs(os.environ)]


def test_a_run_is_found_by_directory_id_and_name(rough_path: Path) -> None:
    run = add(rough_path / "runs" / "a,b", job_id="4711_3", name="digits+1")
    assert find(str(run), rough_path) == run
    assert find("runs/a,b", rough_path) == run
    assert find(".", run) == run
    assert find("4711_3", rough_path) == run
    assert find("digits+1", rough_path) == run


def test_a_name_means_the_newest_and_an_id_goes_before_a_name(tmp_path: Path) -> None:
    add(tmp_path / "a", job_id="1", now=100.0)
    newest = add(tmp_path / "b", job_id="2", now=100.2)
    add(tmp_path / "c", job_id="3", now=99.0)
    named = add(tmp_path / "d", job_id="4", name="1", now=500.0)
    assert find("digits", tmp_path) == newest
    assert find("1", tmp_path) == tmp_path / "a"
    assert find("4", tmp_path) == named


def test_newest_first(tmp_path: Path) -> None:
    for number, now in enumerate((3.0, 1.0, 2.000001, 2.0)):
        add(tmp_path / str(number), job_id=str(number), now=now)
    assert [entry.job_id for entry in registry.entries(os.environ)] == ["0", "2", "3", "1"]


def test_an_id_may_hold_what_a_file_name_cannot(tmp_path: Path) -> None:
    run = add(tmp_path / "a", job_id="12/x,y 1")
    assert find("12/x,y 1".replace("/", "-"), tmp_path) == run
    assert [entry.job_id for entry in registry.entries(os.environ)] == ["12-x-y-1"]


def test_a_name_never_means_an_older_run_because_the_newest_is_gone(tmp_path: Path) -> None:
    """Or `gridtf cancel` would end another job than the one that was meant."""
    oldest = add(tmp_path / "oldest", job_id="1", now=1.0)
    older = add(tmp_path / "older", job_id="2", now=2.0)
    gone = add(tmp_path / "gone", job_id="3", now=3.0)
    (gone / "job.json").unlink()
    gone.rmdir()
    with pytest.raises(RunDirError) as caught:
        find("digits", tmp_path)
    assert caught.value.what == f"the newest run called digits (job 3) is gone: {gone}"
    assert caught.value.hint == f"the one before it still exists: {older}"
    with pytest.raises(RunDirError, match=r"job 3\) is gone") as caught:
        find("3", tmp_path)
    assert "gridtf list" in caught.value.hint
    assert runs() == [older, oldest]


def test_a_run_directory_that_cannot_be_read_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, real = add(tmp_path / "closed"), os.listdir

    def listdir(path: Path) -> list[str]:
        if path == closed:
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    for job in ("digits", "7", str(closed)):
        with pytest.raises(RunDirError, match=r"cannot list .*closed: Permission denied") as caught:
            find(job, tmp_path)
        assert caught.value.hint == f"it is yours: chmod u+rwX {closed}"
    assert runs() == [closed]


def test_a_closed_folder_of_a_jobs_name_does_not_hide_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, real = add(tmp_path / "run"), os.listdir

    def listdir(path: Path) -> list[str]:
        if Path(path).name == "digits":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    assert find("digits", tmp_path) == run


def test_what_else_lies_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    run = add(tmp_path / "a")
    folder = registry.folder(os.environ)
    (folder / "notes.txt").write_text("mine")
    (folder / "20990101-000000.000000,slurm,8,digits").write_text("mine too")
    (folder / "20990101-000000.000001,slurm,7,digits").mkdir()
    assert runs() == [run]
    assert find("digits", tmp_path) == find("7", tmp_path) == run
    with pytest.raises(NotFoundError, match="no job is called 8"):
        find("8", tmp_path)


def test_a_run_that_was_started_twice_is_one_run(tmp_path: Path) -> None:
    run = add(tmp_path / "a")
    registry.add(run, {"scheduler": "slurm", "job_id": "8", "name": "digits", "time": 2e9}, os.environ)
    assert runs() == [run]


def test_only_as_many_runs_are_looked_at_as_are_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        add(tmp_path / str(number), now=float(number))
    looked: list[Path] = []
    real = registry.is_run

    def is_run(path: Path) -> bool:
        looked.append(path)
        return real(path)

    monkeypatch.setattr(registry, "is_run", is_run)
    assert len(list(itertools.islice(registry.runs(os.environ), 3))) == len(looked) == 3


def test_an_unknown_job_is_told_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no job is called digits") as caught:
        find("digits", tmp_path)
    assert "gridtf list" in caught.value.hint
    add(tmp_path / "a", job_id="4711")
    with pytest.raises(NotFoundError) as caught:
        find("digit", tmp_path)
    assert caught.value.hint == "did you mean digits?"
    with pytest.raises(NotFoundError) as caught:
        find("4712", tmp_path)
    assert caught.value.hint == "did you mean 4711?"
    with pytest.raises(NotFoundError, match="tmp/nothing is not a run directory"):
        find("/tmp/nothing", tmp_path)


def test_a_folder_that_happens_to_have_the_name_is_not_taken_for_the_run(tmp_path: Path) -> None:
    run = add(tmp_path / "runs" / "x")
    (tmp_path / "digits").mkdir()
    assert find("digits", tmp_path) == run


def test_ones_own_jobs_go_before_what_lies_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may have made a folder of that name in a folder that many can write."""
    run = add(tmp_path / "runs" / "x")
    for name in ("digits", "other"):
        RunDir(tmp_path / name).path.mkdir()
        RunDir(tmp_path / name).new_attempt()
    assert find("digits", tmp_path) == run
    assert find("./digits", tmp_path) == tmp_path / "digits"
    assert find("other", tmp_path) == tmp_path / "other"
    monkeypatch.setattr(registry, "is_ours", lambda path: False)
    with pytest.raises(NotFoundError, match="the folder other here belongs to another user") as caught:
        find("other", tmp_path)
    assert caught.value.hint == "to use that folder, write ./other"
    assert find("./other", tmp_path) == tmp_path / "other"
    assert find(".", tmp_path / "other") == tmp_path / "other"


def test_an_index_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    folder = registry.folder(os.environ)
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    with pytest.raises(RunDirError, match=r"cannot write .*slurm,7,digits"):
        add(tmp_path / "a")
    assert list(registry.entries(os.environ)) == []


def test_the_folder_follows_xdg() -> None:
    assert registry.folder({"XDG_STATE_HOME": "/x"}) == Path("/x/gridtf/runs")
    assert registry.folder({"HOME": "/h"}) == Path("/h/.local/state/gridtf/runs")


def test_a_user_without_a_home_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.delenv("HOME")
    with pytest.raises(RunDirError, match="there is no home folder for the index of runs") as caught:
        registry.find("digits", {}, tmp_path)
    assert caught.value.hint == "set HOME or XDG_STATE_HOME"
    assert registry.folder({"XDG_STATE_HOME": "/x"}) == Path("/x/gridtf/runs")
    run = tmp_path / "run"
    RunDir(run).path.mkdir()
    RunDir(run).new_attempt()
    assert registry.find(str(run), {}, tmp_path).path == run


def test_entries_are_values(tmp_path: Path) -> None:
    run = add(tmp_path / "a")
    (entry,) = registry.entries(os.environ)
    name = "20231114-221320.500000,slurm,7,digits"
    assert vars(entry) == vars(Entry("slurm", "7", "digits", registry.folder(os.environ) / name))
    assert entry.target == run


def test_the_elements_of_an_array_by_hand_are_found_by_the_id_of_the_array(tmp_path: Path) -> None:
    for job_id in ("190.10", "190.2", "191.1", "1900.1", "190", "12_3"):
        if job_id != "190":
            add(tmp_path / job_id, job_id=job_id)
    found = registry.elements("190", os.environ)
    assert {name: run.path for name, run in found.items()} == {name: tmp_path / name for name in ("190.2", "190.10")}
    assert list(registry.elements("12", os.environ)) == ["12_3"]
    with pytest.raises(NotFoundError, match="job 190 is an array of 2 whose script was written by hand") as caught:
        find("190", tmp_path)
    assert caught.value.hint == "name one of its elements: 190.2, 190.10"


def submitted(path: Path, job_id: str) -> None:
    record = {"scheduler": "local", "job_id": job_id, "name": "digits", "host": "elsewhere"}
    write_record(RunDir(path).submitted, record)


@pytest.mark.parametrize("job", ["7", "digits"])
def test_a_job_of_the_index_is_shown_from_its_own_run_directory_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    """Who may rename what lies in the run root can put another run directory in its place."""
    path = add(tmp_path / "run")
    submitted(path, "7")
    run = registry.find(job, os.environ, tmp_path)
    registry.need_run(run)
    assert "replaced" not in jobs.view(run).reason
    submitted(path, "8")
    replaced = f"the run directory of job 7 was replaced: {path} belongs to job 8"
    made = Job(run)
    for ask in (made.status, made.wait, made.logs, lambda: registry.need_run(run)):
        with pytest.raises(ReplacedError) as caught:
            ask()
        assert caught.value.what == replaced
        assert (caught.value.exit_code, str(tmp_path) in caught.value.hint) == (1, True)
    (view,) = jobs.views(list(registry.runs(os.environ)))
    assert (view.state, view.reason) == ("UNKNOWN", replaced)
    submitted(path, "7")
    monkeypatch.setattr(registry, "is_ours", lambda path: False)
    monkeypatch.setattr(registry, "owner", lambda path: "bob")
    with pytest.raises(ReplacedError) as caught:
        made.status()
    assert caught.value.what == f"the run directory of job 7 was replaced: {path} belongs to user bob"
    # a path may be anybody's
    registry.need_run(registry.find(str(path), os.environ, tmp_path))
    assert Job(path).status().job_id == "7"


def test_what_is_gone_is_not_called_replaced(tmp_path: Path) -> None:
    run = Entry("slurm", "7", "digits", tmp_path).run(tmp_path / "gone")
    registry.need_same(run)
    run.path.mkdir()
    submitted(run.path, "8")
    with pytest.raises(ReplacedError):
        registry.need_same(run)


def test_a_job_whose_run_directory_was_replaced_is_cancelled_by_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    class Scheduler:
        def cancel(self, record: JobIdentity) -> None:
            told.append(record)

    path = add(tmp_path / "run")
    submitted(path, "8")
    monkeypatch.setattr("gridtf.schedulers.get", lambda name: Scheduler())
    with pytest.raises(ReplacedError) as caught:
        Job(registry.find("7", os.environ, tmp_path)).cancel()
    assert caught.value.what == "slurm was asked to cancel job 7"
    assert "was replaced" in caught.value.why
    assert told == [JobIdentity("7")]
    assert not RunDir(path).cancelled.exists()


# --- the records that a job begins with ---

SPEC = JobSpec(command=("python", "train.py"), nodes=2)


def test_a_job_is_found_again_by_what_was_written(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    environ: Mapping[str, str] = {"XDG_STATE_HOME": str(tmp_path / "state")}
    registry.write_job(run, SPEC, {"nodes": "--nodes"})
    record = registry.submitted(SPEC, "slurm", ["sbatch", "job.sh"], {"job_id": "4711", "cluster": "c1"})
    registry.add(run.path, record, environ)
    assert {"scheduler": "slurm", "name": "train", "job_id": "4711", "cluster": "c1"}.items() <= record.items()
    for job in ("4711", "train"):
        assert registry.find(job, environ, tmp_path).path == run.path
    written = read_record(run.job)
    assert written is not None
    assert JobSpec.from_dict(written["spec"]) == SPEC
    assert written["sources"] == {"nodes": "--nodes"}


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container, or while the directory service is down, nobody knows the name of a uid."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("LOGNAME", "USER"):
        monkeypatch.delenv(name, raising=False)
    assert registry.who() == {"user": str(os.getuid()), "host": os.uname().nodename}
