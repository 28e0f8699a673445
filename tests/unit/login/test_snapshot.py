"""Snapshots: which files of a working folder are copied, and how, and what is left after every fault: nothing."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import socket
import stat
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gridtf.cli import main
from gridtf.errors import GridtfError, RunDirError, SpecError, UsageError
from gridtf.jobspec.spec import JobSpec, TaskSpec
from gridtf.login import snapshot, submission
from gridtf.login.job import Job
from gridtf.login.resume import resume
from gridtf.schedulers.api import JobStatus
from gridtf.states import JobState
from tests.support.scheduler import FakeScheduler

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
JOB = JobSpec(command=("python", "train.py"), scheduler="slurm", name="j", snapshot=True)


def git(folder: Path, *words: str) -> None:
    own = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True)


def put(folder: Path, **files: str) -> None:
    """Write files; in a name, __ stands for a slash."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def here(rough_path: Path, fake: FakeScheduler) -> Path:
    (rough_path / "train.py").write_text("print('as submitted')\n")
    return rough_path


@pytest.fixture
def repository(here: Path) -> Path:
    git(here, "init", "-q", "-b", "main")
    git(here, "add", "train.py")
    git(here, "commit", "-qm", "first")
    return here


def taken(job: Job) -> Path:
    return Path(json.loads(job.run.job.read_text())["origin"]["snapshot"])


def submit(**values: Any) -> Path:
    """The snapshot of a new job."""
    return taken(submission.submit(JOB.replace(**values)))


def tree(folder: Path) -> dict[str, str]:
    """Path -> what is there: the text of a file, -> TARGET of a link, empty for a folder."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = f"-> {path.readlink()}"
        elif not path.is_dir():
            found[str(path.relative_to(folder))] = path.read_text()
    return found


def begins_in(job: Job) -> str:
    """The folder that its script changes to."""
    lines = (line for line in job.run.script.read_text().splitlines() if line.startswith("cd -- "))
    return shlex.split(next(lines))[2]


def told(job: Job) -> dict[str, Any]:
    """The specification that its script passes on."""
    text = job.run.script.read_text().partition("export GRIDTF_SPEC=")[2].partition("\nexport")[0]
    spec: dict[str, Any] = json.loads(shlex.split(text)[0])
    return spec


def nothing_left(folder: Path) -> None:
    assert not (folder / "gridtf-runs").exists()


# --- what is copied


def test_files_that_git_does_not_ignore_are_copied_and_links_lead_to_the_others(repository: Path) -> None:
    put(repository, new__lib_py="new", data__x="big", **{".gitignore": "data/\n*.log\n"})
    put(repository, logs__a="", **{"new__b.log": "log", "gone.py": "", ".env": "KEY=1", "new__id_rsa": "key"})
    put(repository, **{".venv__pyvenv.cfg": "", ".venv__bin__python": ""})
    put(repository / "new" / "__pycache__", x_pyc="")
    (repository / "empty").mkdir()
    git(repository, "add", "gone.py")
    (repository / "gone.py").unlink()
    assert tree(submit()) == {
        "train.py": "print('as submitted')\n",
        ".gitignore": "data/\n*.log\n",
        "new/lib_py": "new",
        "logs/a": "",
        "new/b.log": f"-> {repository}/new/b.log",
        "new/id_rsa": f"-> {repository}/new/id_rsa",
        ".env": f"-> {repository}/.env",
        ".venv": f"-> {repository}/.venv",
        "data": f"-> {repository}/data",
        "empty": f"-> {repository}/empty",
    }


def test_ignore_file_says_what_is_left_out_without_git(here: Path) -> None:
    put(here, data__x="big", a__b="1", a__keep="2", conda__conda_meta__history="")
    (here / "conda" / "conda_meta").rename(here / "conda" / "conda-meta")
    (here / ".gridtfignore").write_text("# data\ndata/\n\na/*\n!a/keep\n")
    found = tree(submit())
    assert found.pop("train.py")
    assert found.pop(".gridtfignore")
    assert found == {
        "data": f"-> {here}/data",
        "conda": f"-> {here}/conda",
        "a/b": f"-> {here}/a/b",
        "a/keep": "2",
    }


def test_ignore_file_counts_for_tracked_files(repository: Path) -> None:
    put(repository, **{"data__x.csv": "1", ".gridtfignore": "*.csv"})
    git(repository, "add", ".")
    assert tree(submit())["data"] == f"-> {repository}/data"


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("data", ("data", "a/data"), ("data2", "data/x")),
        ("/data", ("data",), ("a/data",)),
        ("a/*.csv", ("a/x.csv",), ("a/b/x.csv", "b/a/x.csv")),
        ("**/x", ("x", "a/x", "a/b/x"), ("ax",)),
        ("a/**", ("a/b", "a/b/c"), ("a",)),
        ("[!a]?.t", ("bc.t", "d/bc.t"), ("ac.t", "b/.t")),
        ("*.py\n!b.py", ("a.py",), ("b.py",)),
        ("a.b", ("a.b",), ("axb",)),
        ("# a\n\n", (), ("# a", "a")),
    ],
)
def test_patterns_of_the_ignore_file(pattern: str, fitting: tuple[str, ...], others: tuple[str, ...]) -> None:
    ignored = snapshot.ignored_by(pattern)
    assert [path for path in (*fitting, *others) if ignored(path, False)] == [*fitting]
    assert not snapshot.ignored_by("data/")("data", False)
    assert snapshot.ignored_by("data/")("data", True)


def test_job_of_a_subfolder_has_the_whole_work_tree(repository: Path) -> None:
    put(repository, sub__train_py="", lib_py="1")
    job = submission.submit(JOB.replace(chdir="sub"))
    copy = taken(job)
    assert (copy / "lib_py").read_text() == "1"
    assert begins_in(job) == f"{copy}/sub"
    spec = json.loads(job.run.job.read_text())["spec"]
    assert spec["chdir"] == str(repository / "sub")
    assert not [path for path in tree(copy) if "gridtf-runs" in path]


@pytest.mark.thorough
def test_work_tree_beside_a_repository_submodules_and_repositories_in_it(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    put(other, a_py="a", b_tmp="", **{".gitignore": "*_tmp"})
    git(other, "init", "-q")
    git(other, "add", ".")
    git(other, "commit", "-qm", "x")
    git(repository, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    side = tmp_path / "side"
    git(side, "submodule", "add", "-q", str(other), "module")
    git(other, "clone", "-q", str(other), str(side / "inner"))
    put(side, module__c_tmp="")
    found = tree(submit(chdir=str(side)))
    assert (found["module/a_py"], found["inner/a_py"]) == ("a", "a")
    assert found["module/c_tmp"] == f"-> {side}/module/c_tmp"
    assert not [path for path in found if ".git" in Path(path).parts]


def test_folder_that_its_repository_ignores_is_copied_whole(repository: Path) -> None:
    put(repository, **{".gitignore": "mine/\n", "mine__train.py": "x"})
    copy = submit(chdir="mine")
    assert tree(copy) == {"train.py": "x"}


def test_without_git_or_with_a_broken_repository_the_folder_counts(here: Path, monkeypatch: Patch) -> None:
    (here / ".git").mkdir()
    assert tree(submit()) == {"train.py": "print('as submitted')\n"}
    monkeypatch.setenv("PATH", str(here))
    assert tree(submit(run_dir="second", command=(shutil.which("true", path="/bin:/usr/bin"),)))


def test_configuration_of_the_repository_runs_no_program(repository: Path, tmp_path: Path) -> None:
    hook = tmp_path / "hook"  # git has a shell run it
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    for name in ("core.fsmonitor", "diff.external", "core.pager"):
        git(repository, "config", name, str(hook))
    put(repository, **{"train.py": "changed"})
    (tmp_path / "ran").unlink(missing_ok=True)  # git config may have run it
    submit()
    assert not (tmp_path / "ran").exists()
    git(repository, "status")
    assert (tmp_path / "ran").exists()


def test_names_of_any_bytes(repository: Path) -> None:
    names = ["a\nb", os.fsdecode(b"\xff\xfe"), " x ", "ä", "-n", '"q"']
    for name in names:
        (repository / name).write_text(name.encode(errors="surrogateescape").hex())
    copy = submit()
    assert {*os.listdir(copy)} == {*names, "train.py"}
    again = submit()
    assert {*os.listdir(again)} == {*names, "train.py"}


def test_run_directories_and_the_output_are_not_copied(here: Path) -> None:
    put(here, results__old="big")
    for way in ({"run_root": "."}, {"run_root": "runs"}, {"run_dir": "a/b"}, {"run_dir": "a/c"}, {}):
        (here / "a").mkdir(exist_ok=True)
        found = tree(submit(env={"OUTPUT_DIR": "results"}, **way))
        assert {name: text for name, text in found.items() if text} == {
            "train.py": "print('as submitted')\n",
            "results": f"-> {here}/results",
            **({"a": f"-> {here}/a"} if "a" in found else {}),
        }


# --- how it is copied


def test_copies_share_nothing_with_the_folder_and_cannot_be_changed(here: Path) -> None:
    (here / "tool").write_text("#!/bin/sh")
    (here / "tool").chmod(0o750)
    os.utime(here / "tool", ns=(1, 1234567890123456789))
    with (here / "sparse").open("wb") as file:
        file.truncate(8 << 20)
        file.seek(4 << 20)
        file.write(b"middle")
    copy = submit()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in copy.iterdir()}
    assert modes == {"train.py": 0o444, "tool": 0o555, "sparse": 0o444}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (copy, copy.parent)} == {0o700}
    assert stat.S_IMODE((copy.parent / f"{copy.name}.json").stat().st_mode) == 0o600
    assert {path.stat().st_nlink for path in copy.iterdir()} == {1}
    assert (copy / "tool").stat().st_mtime_ns == 1234567890123456789
    assert (copy / "sparse").read_bytes() == (here / "sparse").read_bytes()
    assert (copy / "sparse").stat().st_blocks * 512 < 1 << 20
    with (here / "train.py").open("r+") as file:
        file.write("edited")
    assert (copy / "train.py").read_text() == "print('as submitted')\n"


def test_equal_files_of_two_snapshots_are_linked(here: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(snapshot, "_YOUNG", 0)
    put(here, same="same", edited="12345", touched="x", spoilt="12345")
    first = submit()
    before = (here / "edited").stat()
    (here / "edited").write_text("54321")  # as long, and with the time of the old one
    os.utime(here / "edited", ns=(before.st_atime_ns, before.st_mtime_ns))
    (first / "spoilt").chmod(0o644)  # by a job
    (first / "spoilt").write_text("longer than before")
    (first / "spoilt").chmod(0o444)
    second = submit()
    assert tree(second) == {
        "train.py": "print('as submitted')\n",
        "same": "same",
        "edited": "54321",
        "touched": "x",
        "spoilt": "12345",
    }
    linked = {path.name for path in second.iterdir() if path.samefile(first / path.name)}
    assert linked == {"train.py", "same", "touched"}
    shutil.rmtree(first)
    assert tree(second)["same"] == "same"


def test_file_that_has_just_been_written_is_copied_again(here: Path) -> None:
    """Its next edit might leave all of its times as they are."""
    first, second = submit(), submit()
    assert not (first / "train.py").samefile(second / "train.py")


@pytest.mark.parametrize("number", [errno.EMLINK, errno.EXDEV, errno.EPERM])
def test_file_that_cannot_be_linked_is_copied(number: int, here: Path, monkeypatch: Patch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(snapshot, "_YOUNG", 0)
    first = submit()
    monkeypatch.setattr(os, "link", fails)
    second = submit()
    assert tree(first) == tree(second)
    assert (second / "train.py").stat().st_nlink == 1


def test_symbolic_links_stay_in_the_snapshot_or_lead_to_where_they_led(here: Path, tmp_path: Path) -> None:
    put(tmp_path, outside__x="out")
    put(here, a__b="inner")
    (here / "inside").symlink_to("a/b")
    (here / "a" / "up").symlink_to("../train.py")
    (here / "absolute").symlink_to(here / "a" / "b")
    (here / "out").symlink_to(tmp_path / "outside")
    (here / "relative").symlink_to(os.path.relpath(tmp_path / "outside" / "x", here))
    (here / "nowhere").symlink_to("not/there")
    copy = submit()
    found = tree(copy)
    assert found["inside"] == found["absolute"] == "-> a/b"
    assert found["a/up"] == "-> ../train.py"
    assert found["out"] == f"-> {tmp_path}/outside"
    assert found["relative"] == f"-> {tmp_path}/outside/x"
    assert found["nowhere"] == "-> not/there"
    assert (copy / "absolute").resolve() == copy / "a" / "b"


def test_sockets_and_pipes_are_not_copied(here: Path) -> None:
    os.mkfifo(here / "pipe")
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(os.path.relpath(here / "socket"))
        found = tree(submit())
    assert (found["pipe"], found["socket"]) == (f"-> {here}/pipe", f"-> {here}/socket")


def test_content_of_secrets_is_in_no_file(repository: Path) -> None:
    names = (".env", ".env.local", "tls.pem", "ssl.key", ".netrc", "credentials-1.json", "a/id_ed25519", ".aws/config")
    put(repository, **{name.replace("/", "__"): "hunter2" for name in names})
    git(repository, "add", "-f", ".")
    git(repository, "commit", "-qm", "oh")
    put(repository, **{name.replace("/", "__"): "hunter3" for name in names}, **{"train.py": "changed"})
    job = submission.submit(JOB)
    text = "".join(
        path.read_text()
        for path in repository.rglob("*.*")
        if "gridtf-runs" in path.parts and path.is_file() and not path.is_symlink()
    )
    assert "hunter" not in text
    assert "changed" in text
    assert (taken(job) / ".env").read_text() == "hunter3"


# --- faults


def test_file_that_changes_while_it_is_copied_is_copied_again(here: Path, monkeypatch: Patch) -> None:
    real, edits = snapshot._copy, iter(["one", "two"])

    def copy(source: str, target: str) -> None:
        real(source, target)
        if text := next(edits, ""):
            (here / "train.py").write_text(text)

    monkeypatch.setattr(snapshot, "_copy", copy)
    assert tree(submit()) == {"train.py": "two"}


def test_file_that_never_stays_as_it_is_is_refused(here: Path, monkeypatch: Patch) -> None:
    real = snapshot._copy

    def copy(source: str, target: str) -> None:
        real(source, target)
        with (here / "grows").open("a") as file:
            file.write("x")

    put(here, grows="")
    monkeypatch.setattr(snapshot, "_copy", copy)
    with pytest.raises(UsageError, match="grows changes while it is copied") as caught:
        submit()
    assert ".gridtfignore" in caught.value.hint
    nothing_left(here)


def test_files_that_become_something_else_meanwhile(here: Path, monkeypatch: Patch) -> None:
    put(here, a_gone="1", b_link="2", c_folder="3")
    real = snapshot._copy

    def copy(source: str, target: str) -> None:
        if source.endswith("a_gone") and Path(source).exists():
            for name in ("a_gone", "b_link", "c_folder"):
                (here / name).unlink()
            (here / "b_link").symlink_to("train.py")
        real(source, target)

    monkeypatch.setattr(snapshot, "_copy", copy)
    assert tree(submit()) == {"train.py": "print('as submitted')\n", "b_link": "-> train.py"}
    put(here, a_gone="1", c_folder="3")

    def becomes_a_folder(source: str, target: str) -> None:
        if source.endswith("c_folder") and Path(source).is_file():
            Path(source).unlink()
            Path(source).mkdir()
        real(source, target)

    monkeypatch.setattr(snapshot, "_copy", becomes_a_folder)
    with pytest.raises(UsageError, match="c_folder changes while it is copied"):
        submit(run_root="other")


@pytest.mark.parametrize("call", ["pwrite", "fchmod", "utime"])
def test_full_disk_leaves_nothing(call: str, here: Path, fake: FakeScheduler, monkeypatch: Patch) -> None:
    put(here, a="1", sub__b="2")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(RunDirError, match=r"cannot write .*: No space left on device") as caught:
        submit()
    assert "free some space" in caught.value.hint
    assert fake.count == 0
    nothing_left(here)


def test_interrupt_and_refusal_leave_nothing(here: Path, fake: FakeScheduler, monkeypatch: Patch) -> None:
    fake.refuses = "no"
    with pytest.raises(GridtfError, match="no"):
        submit()
    nothing_left(here)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(snapshot, "_copy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        submit()
    nothing_left(here)


def test_file_and_folder_that_cannot_be_read_are_named(here: Path, monkeypatch: Patch) -> None:
    put(here, closed__x="", private="")
    real = os.open

    def opens(path: Any, *rest: Any, **named: Any) -> int:
        if str(path).endswith("private"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opens)
        with pytest.raises(UsageError, match=r"snapshot: cannot read .*/private: Permission denied") as caught:
            submit()
    assert caught.value.hint == "make it readable, or name it in .gridtfignore at the top of the folder"
    nothing_left(here)
    scan = os.scandir

    def scans(path: Any = ".") -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", scans)
    with pytest.raises(UsageError, match=r"cannot read .*/closed/?: Permission denied"):
        snapshot.choose(submission.prepare(JOB))
    (here / ".gridtfignore").write_text("closed/")
    assert snapshot.choose(submission.prepare(JOB)).links == ["closed"]


def test_folder_that_is_too_large_is_refused_with_its_largest_parts(here: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("GRIDTF_SNAPSHOT_MB", "1")
    put(here, model__w="x" * 700_000, data__a="x" * 90_000, data__b="x" * 90_000, src__a="", extra="x" * 200_000)
    with pytest.raises(
        UsageError, match=r"has 6 files, 1 MiB: a snapshot takes at most 20000 files and 1 MiB"
    ) as caught:
        submit()
    assert caught.value.why == "the largest: model/w (684 KiB), extra (195 KiB), data/ (176 KiB)"
    assert f"name data in {here}/.gridtfignore, such as data/" in caught.value.hint
    nothing_left(here)
    monkeypatch.setenv("GRIDTF_SNAPSHOT_MB", "2")
    monkeypatch.setenv("GRIDTF_SNAPSHOT_FILES", "5")
    with pytest.raises(UsageError, match="has 6 files") as caught:
        submit()
    assert caught.value.why == "the largest: data/ (2 files), ./ (2 files), model/ (1 file)"
    monkeypatch.setenv("GRIDTF_SNAPSHOT_FILES", "6")
    submit()
    monkeypatch.setenv("GRIDTF_SNAPSHOT_FILES", "many")
    with pytest.raises(UsageError, match="GRIDTF_SNAPSHOT_FILES is 'many', not a whole number"):
        submit()


def test_folder_with_very_many_files_is_not_looked_at_whole(here: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("GRIDTF_SNAPSHOT_FILES", "2")
    put(here, **{f"f{number}": "" for number in range(20)})
    with pytest.raises(UsageError, match=r"^gridtf.toml:3: snapshot: .* has more than 9 files"):
        submission.submit(JOB, {"snapshot": "gridtf.toml:3"})


def test_two_submissions_at_once(here: Path, fake: FakeScheduler, monkeypatch: Patch) -> None:
    put(here, **{f"f{number}": str(number) for number in range(50)})
    meet, found = threading.Barrier(2), []
    real = snapshot._copied

    def copied(*arguments: Any) -> dict[str, str]:
        meet.wait(60)
        made = real(*arguments)
        meet.wait(60)
        return made

    monkeypatch.setattr(snapshot, "_copied", copied)
    threads = [threading.Thread(target=lambda: found.append(submit())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = found
    assert first != second
    assert tree(first) == tree(second)
    assert len(tree(first)) == 51


# --- jobs in it


def test_job_is_that_of_the_snapshot(here: Path, fake: FakeScheduler, tmp_path: Path) -> None:
    put(here, lib__m_py="", conf="")
    spec = JOB.replace(
        command=("python", str(here / "train.py"), str(here / "lib"), "--conf", "conf", "/etc/hosts"),
        env={"PYTHONPATH": f"{here}:lib:/opt/x:{here}/lib", "OUTPUT_DIR": "results"},
        tasks={"ps": TaskSpec(count=1, command=("python", str(here / "conf")), env={"OUTPUT_DIR": "{run_dir}/x"})},
    )
    job = submission.submit(spec)
    copy, passed = taken(job), told(job)
    assert passed["chdir"] == str(copy)
    assert passed["command"] == ["python", f"{copy}/train.py", f"{here}/lib", "--conf", "conf", "/etc/hosts"]
    assert passed["env"] == {"PYTHONPATH": f"{copy}:lib:/opt/x:{copy}/lib", "OUTPUT_DIR": f"{here}/results"}
    assert passed["tasks"]["ps"]["command"] == ["python", f"{copy}/conf"]
    assert passed["tasks"]["ps"]["env"] == {"OUTPUT_DIR": "{run_dir}/x"}
    assert job.output_dir == here / "results"


def test_inherited_python_path_is_that_of_the_snapshot(here: Path) -> None:
    """Set-up lines may have named folders of the snapshot already."""
    job = submission.submit(JOB)
    copy, text = taken(job), job.run.script.read_text()
    assert "_gridtf_path" not in submission.submit(JOB.replace(env={"PYTHONPATH": "x"})).run.script.read_text()
    code = text[text.index("export GRIDTF_SNAPSHOT_FROM=") : text.index("\nexport GRIDTF_RUN_DIR")]
    for before, after in {
        f"{here}": f"{copy}",
        f"{here}2:/x": f"{here}2:/x",
        f"/x:{here}/lib:{copy}/a:{here}:{here}": f"/x:{copy}/lib:{copy}/a:{copy}:{copy}",
    }.items():
        words = ["bash", "-euc", f'{code}\nprintf %s "$PYTHONPATH"']
        done = subprocess.run(words, env={"PYTHONPATH": before}, capture_output=True, text=True, check=True)
        assert done.stdout == after
    subprocess.run(["bash", "-euc", f'{code}\n[ -z "${{PYTHONPATH+x}}" ]'], env={}, check=True)


def test_container_sees_the_folder_and_the_snapshot(here: Path) -> None:
    (here / "tf.sif").touch()
    job = submission.submit(JOB.replace(container="tf.sif", container_binds=("/data",)))
    assert told(job)["container_binds"] == ["/data", str(here), str(taken(job))]


def test_snapshot_of_another_job_is_taken(here: Path, fake: FakeScheduler, monkeypatch: Patch) -> None:
    first = submit()
    (here / "train.py").unlink()
    second = submission.submit(JOB, origin={"snapshot": str(first), "rerun_of": "/r"})
    assert json.loads(second.run.job.read_text())["origin"] == {"snapshot": str(first), "rerun_of": "/r"}
    assert begins_in(second) == str(first)
    assert len(list(first.parent.iterdir())) == 2
    with pytest.raises(UsageError, match=r"is not in .*, the folder of the snapshot"):
        submission.submit(JOB.replace(chdir="/"), origin={"snapshot": str(first)})
    fake.refuses = "no"
    with pytest.raises(GridtfError, match="no"):
        submission.submit(JOB, origin={"snapshot": str(first)})
    assert first.is_dir()
    fake.refuses = ""
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "is_ours", lambda path: False)
        with pytest.raises(RunDirError, match="is not yours"):
            submission.submit(JOB, origin={"snapshot": str(first)})
    shutil.rmtree(first)
    with pytest.raises(RunDirError, match=r"the snapshot of the code, .*, does not exist any more"):
        submission.submit(JOB, origin={"snapshot": str(first)})


def test_script_of_a_job_in_another_one_s_snapshot_is_shown_as_it_would_run(here: Path) -> None:
    first = submission.submit(JOB)
    plan = submission.prepare(JOB, origin={"snapshot": str(taken(first))})
    assert f"\ncd -- {shlex.quote(str(taken(first)))} ||" in submission.script(plan)
    assert plan.spec.chdir == str(here)


def test_snapshot_that_is_removed_during_a_submission(here: Path, fake: FakeScheduler, monkeypatch: Patch) -> None:
    first = submit()

    def removed(self: snapshot.Snapshot, spec: JobSpec) -> JobSpec:
        shutil.rmtree(first, ignore_errors=True)
        return spec

    plan = submission.prepare(JOB)
    monkeypatch.setattr(submission, "prepare", lambda *_: plan.replace(origin={"snapshot": str(first)}))
    monkeypatch.setattr(snapshot.Snapshot, "inside", removed)
    with pytest.raises(RunDirError, match="does not exist any more"):
        submission.submit(JOB, origin={"snapshot": str(first)})
    assert fake.count == 1


def test_resumed_job_runs_the_snapshot(here: Path, fake: FakeScheduler) -> None:
    job = submission.submit(JOB)
    attempt = job.run.new_attempt()
    attempt.plan.write_text(json.dumps({"nonce": "n"}))
    record = {"nonce": "n", "state": "SAVED", "reason": "r", "hint": "", "cause": None, "again": False}
    attempt.verdict.write_text(json.dumps({"started": 1.0, "ended": 2.0, "exit_code": 42, **record}))
    fake.states = [JobStatus(JobState.UNKNOWN, purged=True)]
    (here / "train.py").write_text("edited")
    second = resume(job)
    assert taken(second) == taken(job)
    assert begins_in(second) == str(taken(job))


def test_snapshots_of_users_who_share_a_run_root(here: Path, monkeypatch: Patch) -> None:
    first = submit()
    monkeypatch.setattr(snapshot, "is_ours", lambda path: path.name != snapshot.STORE)
    second = submit()
    assert second.parent.parent == first.parent.parent
    assert second.parent.name.startswith(".snapshots-")


# --- render and clean


def test_dry_run_says_what_would_be_copied(here: Path, capsys: Captured) -> None:
    put(here, data__x="", **{".gridtfignore": "data"})
    words = ["--scheduler", "slurm", "--snapshot", "--", "python", "train.py"]
    assert main(["submit", "--dry-run", *words]) == 0
    out, err = capsys.readouterr()
    wanted = f"2 files, 0 KiB, of {here} (as the folder lists them); left out, and linked: data"
    assert f"snapshot       submit copies {wanted}\n" in err
    assert f"\ncd -- {shlex.quote(str(here))} ||" in out  # a script that is submitted by hand has no snapshot
    nothing_left(here)
    assert main(["render", "--json", *words]) == 0
    assert json.loads(capsys.readouterr().out)["snapshot"] == {
        "folder": str(here),
        "files": 2,
        "bytes": 26,
        "left_out": ["data"],
        "text": wanted,
    }


def test_clean_frees_snapshots_that_no_run_needs(here: Path, fake: FakeScheduler, capsys: Captured) -> None:
    first = submission.submit(JOB)
    again = submission.submit(JOB, origin={"snapshot": str(taken(first))})
    other = submission.submit(JOB)
    elsewhere = submission.submit(JOB.replace(run_root="else"), origin={"snapshot": str(taken(other))})
    fake.states = [JobStatus(JobState.FAILED, "exit code 1")]
    store = taken(first).parent
    (store / ".x.tmp").mkdir()
    (store / ".old.tmp").mkdir()
    day = time.time() - 2 * 86400
    os.utime(store / ".old.tmp", (day, day))
    assert main(["clean", first.id, other.id, "--yes"]) == 0
    assert taken(again).is_dir()
    assert taken(elsewhere).is_dir()
    assert (store / ".x.tmp").exists()  # of a submission at this moment
    assert not (store / ".old.tmp").exists()
    capsys.readouterr()
    assert main(["clean", again.id, "--dry-run"]) == 0
    assert f"no other run needs the snapshot {store}/" in capsys.readouterr().err
    copies = taken(again), taken(elsewhere)
    assert main(["clean", again.id, "--yes"]) == 0
    assert [copy.exists() for copy in copies] == [False, True]
    assert main(["clean", elsewhere.id, "--yes"]) == 0
    assert not copies[1].exists()
    assert os.listdir(store) == [".x.tmp"]


def test_clean_frees_what_runs_that_were_removed_by_hand_leave(
    here: Path, fake: FakeScheduler, capsys: Captured
) -> None:
    kept, gone = submission.submit(JOB), submission.submit(JOB)
    copy = taken(gone)
    shutil.rmtree(gone.run_dir)
    assert main(["clean", "--yes"]) == 0
    assert not copy.exists()
    assert taken(kept).exists()
    kept.run.job.write_text("{}")
    (kept.run_dir.parent / "x").mkdir()
    (kept.run_dir.parent / "x" / "job.json").write_text('{"origin": 1}')
    assert main(["clean", "--yes"]) == 0  # one is damaged: what it needs is not known
    assert len(os.listdir(copy.parent)) == 2


def test_choice_is_refused_for_a_folder_that_is_gone(here: Path) -> None:
    with pytest.raises(SpecError, match="cannot read"):
        snapshot.choose(submission.prepare(JOB).replace(spec=JOB.replace(chdir="/no/where")))


def test_job_that_runs_here_takes_none(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--quiet", "--snapshot", "--", "true"]) == 2
    assert "--snapshot: a job that runs here runs the folder as it is" in capsys.readouterr().err
