"""The index of runs."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from gridtf.errors import NotFoundError, ReplacedError, RunDirError
from gridtf.jobspec.spec import JobSpec
from gridtf.login import job as jobs_of_users
from gridtf.login.job import Job
from gridtf.observe import jobs
from gridtf.run import registry
from gridtf.run.registry import Entry
from gridtf.run.rundir import RunDir, read_record, write_record
from tests.support.scheduler import FakeScheduler


def add(run_dir: Path, *, job_id: str = "7", name: str = "digits", now: float = 1_700_000_000.5) -> Path:
    run_dir.mkdir(parents=True)
    (run_dir / "job.json").write_text('{"spec": {}}')
    registry.add(run_dir, {"scheduler": "slurm", "job_id": job_id, "name": name, "time": now}, os.environ)
    return run_dir


def find(job: str, cwd: Path) -> Path:
    return registry.find(job, os.environ, cwd).path


def runs() -> list[Path]:
    return [run.path for run in registry.runs(os.environ)]


def test_find_by_directory_job_id_and_name(rough_path: Path) -> None:
    run = add(rough_path / "runs" / "a,b", job_id="4711_3", name="digits+1")
    assert find(str(run), rough_path) == run
    assert find("runs/a,b", rough_path) == run
    assert find(".", run) == run
    assert find("4711_3", rough_path) == run
    assert find("digits+1", rough_path) == run


def test_find_prefers_job_ids_to_names_and_newer_runs(tmp_path: Path) -> None:
    add(tmp_path / "a", job_id="1", now=100.0)
    newest = add(tmp_path / "b", job_id="2", now=100.2)
    add(tmp_path / "c", job_id="3", now=99.0)
    named = add(tmp_path / "d", job_id="4", name="1", now=500.0)
    assert find("digits", tmp_path) == newest
    assert find("1", tmp_path) == tmp_path / "a"
    assert find("4", tmp_path) == named


def test_entries_are_sorted_newest_first(tmp_path: Path) -> None:
    for number, now in enumerate((3.0, 1.0, 2.000001, 2.0)):
        add(tmp_path / str(number), job_id=str(number), now=now)
    assert [entry.job_id for entry in registry.entries(os.environ)] == ["0", "2", "3", "1"]


def test_job_id_with_characters_invalid_in_file_names_is_found(tmp_path: Path) -> None:
    run = add(tmp_path / "a", job_id="12/x,y 1")
    assert find("12/x,y 1".replace("/", "-"), tmp_path) == run
    assert [entry.job_id for entry in registry.entries(os.environ)] == ["12-x-y-1"]


def test_find_refuses_a_name_whose_newest_run_is_gone(tmp_path: Path) -> None:
    """Otherwise `gridtf cancel` would end a different job."""
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


def test_unreadable_run_directory_is_not_reported_as_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_unreadable_folder_with_the_jobs_name_does_not_hide_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, real = add(tmp_path / "run"), os.listdir

    def listdir(path: Path) -> list[str]:
        if Path(path).name == "digits":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    assert find("digits", tmp_path) == run


def test_other_files_in_the_index_are_ignored(tmp_path: Path) -> None:
    run = add(tmp_path / "a")
    folder = registry.folder(os.environ)
    (folder / "notes.txt").write_text("mine")
    (folder / "20990101-000000.000000,slurm,8,digits").write_text("mine too")
    (folder / "20990101-000000.000001,slurm,7,digits").mkdir()
    assert runs() == [run]
    assert find("digits", tmp_path) == find("7", tmp_path) == run
    with pytest.raises(NotFoundError, match="no job is called 8"):
        find("8", tmp_path)


def test_runs_lists_a_run_directory_with_two_entries_once(tmp_path: Path) -> None:
    run = add(tmp_path / "a")
    registry.add(run, {"scheduler": "slurm", "job_id": "8", "name": "digits", "time": 2e9}, os.environ)
    assert runs() == [run]


def test_runs_accesses_only_as_many_directories_as_are_consumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        add(tmp_path / str(number), now=float(number))
    looked: list[Path] = []
    real = registry.is_run

    def is_run(path: Path) -> bool:
        looked.append(path)
        return real(path)

    monkeypatch.setattr(registry, "is_run", is_run)
    assert len(list(itertools.islice(registry.runs(os.environ), 3))) == len(looked) == 3


def test_unknown_job_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
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


def test_folder_with_the_jobs_name_is_not_taken_for_its_run(tmp_path: Path) -> None:
    run = add(tmp_path / "runs" / "x")
    (tmp_path / "digits").mkdir()
    assert find("digits", tmp_path) == run


def test_find_prefers_the_index_to_folders_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a shared folder, another user may have made a folder of that name."""
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


def test_unwritable_index_is_reported_with_its_path(tmp_path: Path) -> None:
    folder = registry.folder(os.environ)
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    with pytest.raises(RunDirError, match=r"cannot write .*slurm,7,digits"):
        add(tmp_path / "a")
    with pytest.raises(RunDirError, match="is not a folder: it is in the way of the index of runs"):
        list(registry.entries(os.environ))


def test_home_that_is_a_file_is_an_error_and_not_an_empty_index(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert list(registry.entries({"HOME": str(home)})) == []
    home.touch()
    with pytest.raises(RunDirError, match=f"{home} is not a folder"):
        list(registry.entries({"HOME": str(home)}))


def test_index_folder_follows_xdg_state_home() -> None:
    assert registry.folder({"XDG_STATE_HOME": "/x"}) == Path("/x/gridtf/runs")
    assert registry.folder({"HOME": "/h"}) == Path("/h/.local/state/gridtf/runs")


def test_user_without_a_home_folder_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


def test_entries_have_scheduler_job_id_and_name(tmp_path: Path) -> None:
    run = add(tmp_path / "a")
    (entry,) = registry.entries(os.environ)
    name = "20231114-221320.500000,slurm,7,digits"
    assert vars(entry) == vars(
        Entry("slurm", "7", "digits", registry.folder(os.environ) / name, name.partition(",")[0])
    )
    assert entry.target == run


def test_elements_of_a_hand_written_array_are_found_by_its_id(tmp_path: Path) -> None:
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
def test_replaced_run_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str) -> None:
    """A user with write permission for the run root can put another run directory in its place."""
    path = add(tmp_path / "run")
    submitted(path, "7")
    run = registry.find(job, os.environ, tmp_path)
    registry.need_run(run)
    assert "replaced" not in jobs.view(run).reason
    submitted(path, "8")
    replaced = f"the run directory of job 7 was replaced: {path} belongs to job 8"
    made = Job(run)
    for call in (made.status, made.wait, made.logs, lambda: registry.need_run(run)):
        with pytest.raises(ReplacedError) as caught:
            call()
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
    # a path may belong to any user
    registry.need_run(registry.find(str(path), os.environ, tmp_path))
    assert Job(path).status().job_id == "7"


def test_missing_run_directory_is_not_reported_as_replaced(tmp_path: Path) -> None:
    run = Entry("slurm", "7", "digits", tmp_path, "").run(tmp_path / "gone")
    registry.need_same(run)
    run.path.mkdir()
    submitted(run.path, "8")
    with pytest.raises(ReplacedError):
        registry.need_same(run)


def test_job_with_a_replaced_run_directory_is_cancelled_by_its_id(fake: FakeScheduler, tmp_path: Path) -> None:
    path = add(tmp_path / "run")
    submitted(path, "8")
    with pytest.raises(ReplacedError) as caught:
        Job(registry.find("7", os.environ, tmp_path)).cancel()
    assert caught.value.what == "requested cancellation of slurm job 7"
    assert "was replaced" in caught.value.why
    assert fake.cancelled == ["7"]
    assert not RunDir(path).cancelled.exists()


@pytest.mark.parametrize("job", ["7", "digits"])
def test_job_whose_run_directory_was_removed_is_cancelled_by_its_id(
    fake: FakeScheduler, tmp_path: Path, job: str
) -> None:
    path = add(tmp_path / "run")
    shutil.rmtree(path)
    with pytest.raises(RunDirError, match=r"the newest run called digits \(job 7\) is gone"):
        jobs_of_users.find(job)
    with pytest.raises(ReplacedError) as caught:
        jobs_of_users.find(job, even_gone=True).cancel()
    assert caught.value.what == "requested cancellation of slurm job 7"
    assert "is not a run directory" in caught.value.why
    assert fake.cancelled == ["7"]


def test_job_whose_run_directory_was_removed_is_cancelled_by_its_path(fake: FakeScheduler, tmp_path: Path) -> None:
    path = add(tmp_path / "run")
    shutil.rmtree(path)
    with pytest.raises(NotFoundError, match="is not a run directory"):
        jobs_of_users.find(str(path))
    with pytest.raises(ReplacedError) as caught:
        jobs_of_users.find(f"{path}/", even_gone=True).cancel()
    assert caught.value.what == "requested cancellation of slurm job 7"
    assert fake.cancelled == ["7"]
    with pytest.raises(NotFoundError, match="there is no such folder"):
        jobs_of_users.find(f"{path}-other", even_gone=True)


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ("./none", "there is no such folder"),
        ("./file", "it is a file"),
        ("/etc", "it contains neither a job.json of gridtf nor an attempt"),
        ("./other", "it contains neither a job.json of gridtf nor an attempt"),
    ],
)
def test_path_that_is_no_run_directory_is_told_from_a_folder_that_is_not_there(
    tmp_path: Path, job: str, why: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "job.json").write_text('{"of": "another program"}')
    with pytest.raises(NotFoundError) as caught:
        registry.find(job, os.environ, tmp_path)
    assert caught.value.why == why


@pytest.mark.parametrize("job", ["", " "])
def test_empty_name_is_not_the_working_folder(tmp_path: Path, job: str) -> None:
    add(tmp_path / "run")
    with pytest.raises(NotFoundError, match="the name of the job is empty"):
        registry.find(job, os.environ, tmp_path / "run")


# --- the first records of a job ---

SPEC = JobSpec(command=("python", "train.py"), nodes=2)


def test_job_is_found_by_its_written_records(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    environ: Mapping[str, str] = {"XDG_STATE_HOME": str(tmp_path / "state")}
    registry.write_job(run, SPEC, {"nodes": "--nodes"})
    record = registry.submitted(SPEC, "slurm", ["sbatch", "job.sh"], {"job_id": "4711", "cluster": "c1"}, 1.5)
    registry.add(run.path, record, environ)
    assert {"scheduler": "slurm", "name": "train", "job_id": "4711", "cluster": "c1"}.items() <= record.items()
    for job in ("4711", "train"):
        assert registry.find(job, environ, tmp_path).path == run.path
    written = read_record(run.job)
    assert written is not None
    assert JobSpec.from_dict(written["spec"]) == SPEC
    assert written["sources"] == {"nodes": "--nodes"}


def test_who_returns_the_user_id_of_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container, or while the directory service is down, a user id has no name."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("LOGNAME", "USER"):
        monkeypatch.delenv(name, raising=False)
    assert registry.who() == {"user": str(os.getuid()), "host": os.uname().nodename}
