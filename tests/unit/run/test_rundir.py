"""The run directory: atomic writes, reads of listed names only, and space reserved for the verdict."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gridtf.errors import DamagedError, RunDirError
from gridtf.files import user_name
from gridtf.run import recordtypes, rundir
from gridtf.run.rundir import (
    Attempt,
    RunDir,
    is_listed,
    read_private,
    read_record,
    read_text,
    run_dirs_of,
    write_record,
    write_text,
)
from gridtf.run.tail import last_lines
from tests.support.python import environment, python


def fails_with(number: int) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return RunDir(tmp_path).new_attempt()


# --- writing


def test_record_round_trips_through_a_file(tmp_path: Path) -> None:
    record = {"name": "Überlauf \U0001f600", "odd": "a\udcffb", "list": [1, None, "x\ny"], "deep": {"a": {"b": 0.5}}}
    write_record(tmp_path / "r.json", record)
    assert read_record(tmp_path / "r.json") == record
    assert (tmp_path / "r.json").read_text().isascii()
    assert (tmp_path / "r.json").read_text().endswith("}\n")


def test_write_record_replaces_the_file_and_never_truncates_it(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    write_record(path, {"n": 1})
    with path.open() as reader:
        write_record(path, {"n": 2})
        assert json.load(reader) == {"n": 1}  # a reader that has it open reads the old one to its end
    assert read_record(path) == {"n": 2}


def test_readers_never_see_an_incomplete_record(tmp_path: Path) -> None:
    path, stop = tmp_path / "r.json", tmp_path / "stop"
    writer = (
        "import sys; from pathlib import Path; from gridtf.run.rundir import write_record\n"
        "path, stop, n = Path(sys.argv[1]), Path(sys.argv[2]), 0\n"
        "while not stop.exists():\n"
        "    n += 1; write_record(path, {'n': n, 'text': 'x' * 200000})\n"
    )
    with subprocess.Popen(python(writer, path, stop), env=environment()) as process:
        try:
            seen: set[int] = set()
            while len(seen) < 20 and process.poll() is None:
                record = read_record(path)
                if path.name in os.listdir(tmp_path):
                    record = record or read_record(path)
                    assert record is not None
                    assert len(record["text"]) == 200000
                    seen.add(record["n"])
        finally:
            stop.touch()
    assert len(seen) == 20
    assert sorted(os.listdir(tmp_path)) == ["r.json", "stop"]


def test_full_disk_leaves_the_old_record_and_no_temporary_file(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stops a write in its middle, as a full disk or a used-up quota does."""
    write_record(tmp_path / "r.json", {"old": True})
    code = (
        "import resource, sys; from pathlib import Path; from gridtf.run.rundir import write_record\n"
        "from gridtf.errors import RunDirError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
        "try: write_record(Path(sys.argv[1]), {'new': 'x' * 100000})\n"
        "except RunDirError as error: print(error)\n"
    )
    command = python(code, tmp_path / "r.json")
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True, timeout=180)
    assert done.stdout.splitlines()[0] == f"cannot write {tmp_path / 'r.json'}: File too large"
    assert os.listdir(tmp_path) == ["r.json"]
    assert read_record(tmp_path / "r.json") == {"old": True}


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, "free some space there, or choose another folder with --run-dir"),
        (errno.EDQUOT, "your quota there is used up"),
        (errno.EACCES, "choose a folder of your own with --run-dir or --run-root"),
        (errno.EROFS, "that file system is mounted read-only"),
        (errno.EIO, ""),
    ],
)
@pytest.mark.parametrize("when", ["open", "fdopen", "replace"])
def test_failed_write_reports_the_cause_and_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, hint: str, when: str
) -> None:
    write_record(tmp_path / "r.json", {"old": True})
    with monkeypatch.context() as patched:
        patched.setattr(Path if when == "replace" else os, when, fails_with(number))
        with pytest.raises(RunDirError) as caught:
            write_record(tmp_path / "r.json", {"new": True})
    assert caught.value.what == f"cannot write {tmp_path / 'r.json'}: {os.strerror(number)}"
    assert caught.value.hint.startswith(hint)
    assert bool(caught.value.hint) == bool(hint)
    assert os.listdir(tmp_path) == ["r.json"]
    assert read_record(tmp_path / "r.json") == {"old": True}


def test_interrupted_write_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_text(tmp_path / "job.sh", "echo")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "job.sh", "echo \ud800")
    assert os.listdir(tmp_path) == []


def test_write_text_writes_surrogate_escapes_as_bytes(tmp_path: Path) -> None:
    write_text(tmp_path / "job.sh", "echo \udcff\n", mode=0o700)
    assert (tmp_path / "job.sh").read_bytes() == b"echo \xff\n"
    assert (tmp_path / "job.sh").stat().st_mode & 0o777 == 0o700


def test_unreadable_private_record_counts_as_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.json"
    assert read_private(path) is None
    write_record(path, {"a": 1}, mode=0o600)
    assert read_private(path) == {"a": 1}
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert read_private(path) is None


def test_missing_parent_folder_is_reported_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(RunDirError) as caught:
        write_record(tmp_path / "no" / "r.json", {})
    assert "No such file or directory" in caught.value.what
    assert "make the folder above it first" in caught.value.hint


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user who may not write")
@pytest.mark.root
def test_folder_of_another_user_is_reported_with_a_hint(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    code = (
        "import os, sys; from gridtf.run.rundir import RunDir; from gridtf.errors import RunDirError\n"
        "os.setuid(65534)\n"
        "try: RunDir(sys.argv[1]).new_attempt()\n"
        "except RunDirError as error: print(error)\n"
    )
    command = python(code, tmp_path)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True, timeout=180)
    what, hint = done.stdout.splitlines()
    if what.startswith("cannot list"):  # pytest's own folders may be closed to other users
        assert what == f"cannot list {tmp_path}: Permission denied"
        assert hint.endswith(" belongs to user root: ask for permission to read it")
    else:
        assert what == f"cannot make {tmp_path}/attempt-1: Permission denied"
        assert hint == "choose a folder of your own with --run-dir or --run-root"


def test_closed_folder_of_this_user_is_reported_with_a_chmod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setattr(os, "open", fails_with(errno.EACCES))
    for mode, hint in ((0o000, f"it is yours: chmod u+rwX {folder}"), (0o700, "choose a folder of your own")):
        folder.chmod(mode)
        with pytest.raises(RunDirError) as caught:
            write_record(folder / "ended.json", {})
        assert caught.value.hint.startswith(hint)


# --- reading


@pytest.mark.parametrize("text", ["", "{", '{"a": 1', "[1]", "null", '"x"', "{'a': 1}", "{}{}", "\0\0\0\0"])
def test_incomplete_record_is_damaged_and_counts_as_absent_where_a_nonce_is_asked_for(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "r.json").write_text(text)
    assert read_record(tmp_path / "r.json", nonce="n") is None
    with pytest.raises(DamagedError, match=r"r\.json is damaged: it is not a JSON object"):
        read_record(tmp_path / "r.json")


@pytest.mark.parametrize("data", [b'{"a": "\xff\xfe\xc3', '{"a": "Ü'.encode()[:-1]])  # half a character
def test_record_that_is_not_utf8_is_damaged(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "r.json").write_bytes(data)
    with pytest.raises(DamagedError):
        read_record(tmp_path / "r.json")


def test_missing_record_is_none(tmp_path: Path) -> None:
    assert read_record(tmp_path / "no.json") is None
    assert read_record(tmp_path / "no" / "no.json") is None
    assert read_record(tmp_path / "gone.json", listed=True) is None
    (tmp_path / "file").write_text("")
    assert rundir.listdir(tmp_path / "file") == []


def test_folder_in_place_of_a_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.json").mkdir()
    with pytest.raises(RunDirError, match=r"r\.json is damaged: it is not a regular file"):
        read_record(tmp_path / "r.json")


# --- files of other users


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A FIFO would block, a device may have no end, and a link may point anywhere."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    write_record(tmp_path / "there", {"a": 1})
    (tmp_path / "link").symlink_to("there")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for name in ("fifo", "zero", "link", "socket"):
            for read in (read_record, read_private, rundir.open_plain, rundir.open_log):
                with pytest.raises(RunDirError, match=f"{name} is damaged: it is not a regular file"):
                    read(tmp_path / name)
        assert last_lines(tmp_path / "fifo") == []


def test_ctrl_c_as_a_file_is_opened_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that nothing holds yet has closed its descriptor: to close it again would fail with an OSError."""
    (tmp_path / "log").write_text("line\n")
    real = os.fdopen

    def interrupted(descriptor: int, mode: str, buffering: int) -> None:
        real(descriptor, mode, buffering).close()
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fdopen", interrupted)
    for opens in (rundir.open_plain, rundir.open_log):
        with pytest.raises(KeyboardInterrupt):
            opens(tmp_path / "log")


@pytest.mark.thorough
def test_record_that_is_too_large_or_too_deep_is_damaged(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 32)
    with pytest.raises(RunDirError, match="huge is damaged: it is larger than"):
        read_record(tmp_path / "huge")
    (tmp_path / "deep").write_text("[" * 10**6)
    with pytest.raises(DamagedError, match="deep is damaged: it is not a JSON object"):
        read_record(tmp_path / "deep", recordtypes.Ended)


def test_record_of_another_kind_is_refused_with_the_difference(tmp_path: Path) -> None:
    write_record(tmp_path / "r.json", {"nonce": "n", "tasks": 3})
    with pytest.raises(RunDirError, match=r"r\.json is damaged: tasks is 3"):
        read_record(tmp_path / "r.json", recordtypes.HostState, nonce="n")
    assert read_record(tmp_path / "r.json", recordtypes.HostState, nonce="of another attempt") is None


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_file_writable_by_others_is_refused_with_own(tmp_path: Path, mode: int) -> None:
    write_record(tmp_path / "r.json", {"a": 1})
    assert read_record(tmp_path / "r.json", own=True) == {"a": 1}
    (tmp_path / "r.json").chmod(mode)
    assert read_record(tmp_path / "r.json") == {"a": 1}
    with pytest.raises(RunDirError, match=rf"r\.json is writable by other users \(mode {mode:o}\)"):
        read_record(tmp_path / "r.json", own=True)
    assert os.listdir(tmp_path) == ["r.json"]


def test_owner_is_compared_with_that_of_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On NFS, root may be mapped to nobody, and other users to ids unknown on this host."""
    write_record(tmp_path / "r.json", {"a": 1})
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert read_record(tmp_path / "r.json", own=True) == {"a": 1}
    assert rundir.is_ours(tmp_path)
    monkeypatch.setattr(rundir, "_probe", lambda _: None)  # a folder in which this user can make no file
    with pytest.raises(RunDirError, match=rf"r\.json belongs to user {user_name(os.getuid())}"):
        read_record(tmp_path / "r.json", own=True)


@pytest.mark.parametrize("umask", [0, 0o002, 0o077])
def test_files_and_folders_are_writable_by_their_owner_only(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        attempt = RunDir(tmp_path / "run" / "array" / "1")
        rundir.make_folder(attempt.path, parents=True)
        attempt.new_attempt().reserve_verdict()
        write_record(attempt.submitted, {"a": 1})
        rundir.open_log(attempt.log).close()
    finally:
        os.umask(before)
    made = list((tmp_path / "run").rglob("*"))
    assert len(made) > 7
    assert not [
        path for path in (tmp_path / "run", *made) if path.stat().st_mode & 0o022 or path.stat().st_mode & umask
    ]


def test_writes_do_not_follow_symbolic_links(tmp_path: Path) -> None:
    """A user who can guess the name of a temporary file could have put a link there."""
    attempt, precious = RunDir(tmp_path).new_attempt(), tmp_path / "precious"
    precious.write_text("a thesis")
    for name in (f".verdict.json.{os.getpid()}.tmp", ".verdict.reserved"):
        (attempt.path / name).symlink_to(precious)
    attempt.task_log("worker", 0).symlink_to(precious)
    write_record(attempt.verdict, {"state": "FAILED"})
    with pytest.raises(RunDirError, match=r"cannot write .*verdict\.json"):
        attempt.write_verdict({"state": "FAILED"})
    with pytest.raises(RunDirError, match=r"worker-0\.log is damaged: it is not a regular file"):
        rundir.open_log(attempt.task_log("worker", 0))
    assert precious.read_text() == "a thesis"


def test_only_listed_names_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared file system caches for seconds that a name did not exist when it was looked up."""
    path = tmp_path / "attempt-1" / "plan.json"
    path.parent.mkdir()
    write_record(path, {"here": True})
    listed: list[str] = []
    real = os.listdir

    def listing(folder: Any) -> list[str]:
        listed.append(str(folder))
        return [name for name in real(folder) if name not in hidden]

    def opened(path: Path, *_: object, **__: object) -> int:
        raise AssertionError(f"{path} was opened")

    monkeypatch.setattr(os, "listdir", listing)
    monkeypatch.setattr(os, "open", opened)
    hidden = {"plan.json"}
    assert read_record(path) is None
    assert not is_listed(path, tmp_path)
    assert listed == [str(path.parent), str(tmp_path), str(path.parent)]
    hidden = {"attempt-1"}
    listed.clear()
    assert not is_listed(path, tmp_path)
    assert listed == [str(tmp_path)]  # nor is a folder listed that no listing has shown
    hidden = set()
    assert is_listed(path, tmp_path)


def test_stale_file_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.json"
    write_record(path, {"n": 1})
    real, stale = os.open, [True, True]

    def once_stale(*args: Any) -> int:
        if stale:
            stale.pop()
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(*args)

    monkeypatch.setattr(os, "open", once_stale)
    assert read_record(path) == {"n": 1}
    monkeypatch.setattr(os, "open", fails_with(errno.ESTALE))
    assert read_text(path) is None  # after a limited number of tries


def test_failed_listing_is_reported_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", fails_with(errno.EACCES))
    with pytest.raises(RunDirError) as caught:
        rundir.listdir(tmp_path)
    assert caught.value.what == f"cannot list {tmp_path}: Permission denied"
    assert caught.value.hint == f"it is yours: chmod u+rwX {tmp_path}"
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(RunDirError) as caught:
        rundir.listdir(tmp_path)
    user = rundir.owner(tmp_path)
    assert caught.value.hint == f"{tmp_path} belongs to user {user}: ask for permission to read it"


# --- attempts


def test_attempts_are_numbered_and_other_names_ignored(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert run.latest() is None
    for name in ("attempt-0", "attempt-01", "attempt-x", "attempt-9.json", "attempt-2", "attempt-10"):
        (tmp_path / name).mkdir()
    assert [attempt.number for attempt in run.attempts()] == [2, 10]
    made = run.new_attempt()
    assert made.number == 11
    assert sorted(os.listdir(made.path)) == ["logs", "state"]
    latest = run.latest()
    assert latest is not None
    assert latest.number == 11


def eight_at_once(code: str, *arguments: object) -> list[str]:
    """Run code in eight processes as simultaneously as possible; return the output of each."""
    with contextlib.ExitStack() as stack:
        reader, writer = os.pipe()
        with os.fdopen(writer, "wb"):
            makers = [
                stack.enter_context(
                    subprocess.Popen(
                        python(
                            "import sys; from gridtf.run.rundir import RunDir; sys.stdin.readline()\n" + code,
                            *arguments,
                        ),
                        env=environment(),
                        stdin=reader,
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                )
                for _ in range(8)
            ]
            os.close(reader)
            time.sleep(0.2)  # all are waiting now, and begin when the pipe is closed
        return [maker.communicate(timeout=180)[0] for maker in makers]


@pytest.mark.thorough
def test_concurrent_processes_make_different_attempts(tmp_path: Path) -> None:
    code = "print(*[RunDir(sys.argv[1]).new_attempt().number for _ in range(5)])"
    made = [int(number) for line in eight_at_once(code, tmp_path) for number in line.split()]
    assert sorted(made) == list(range(1, 41))


def test_claim_succeeds_for_one_job_only(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert run.claim("1.h")
    assert run.claim("1.h")  # a requeued job claims it again
    assert not run.claim("2.h")
    with pytest.raises(RunDirError, match="No such file or directory"):
        RunDir(tmp_path / "no").claim("1.h")


@pytest.mark.thorough
def test_concurrent_claims_succeed_for_one_job_only(tmp_path: Path) -> None:
    outputs = eight_at_once("import os; print(RunDir(sys.argv[1]).claim(str(os.getpid())))", tmp_path)
    assert sorted(outputs) == ["False\n"] * 7 + ["True\n"]


def test_failed_mkdir_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for make in (rundir.new_folder, rundir.make_folder):
        with pytest.raises(RunDirError, match="Not a directory"):
            make(tmp_path / "file" / "run")
    with pytest.raises(RunDirError, match="File exists"):
        rundir.make_folder(tmp_path / "file")
    assert rundir.new_folder(tmp_path / "file") is False


def test_rank_has_a_record_apart_from_the_error_of_rank_0(attempt: Attempt) -> None:
    assert attempt.rank_state("rank-0") == attempt.path / "ranks" / "rank-0.json"
    assert attempt.rank_error.parent == attempt.ranks
    assert not attempt.rank_error.name.startswith("rank-")  # as which observers read the records of ranks


# --- the verdict


def test_verdict_is_written_into_its_reserved_file(attempt: Attempt) -> None:
    attempt.reserve_verdict()
    assert read_record(attempt.verdict) is None  # the reserved file has another name until then
    attempt.write_verdict({"state": "FAILED", "reason": "x" * 1000})
    assert read_record(attempt.verdict) == {"state": "FAILED", "reason": "x" * 1000}
    assert sorted(os.listdir(attempt.path)) == ["logs", "state", "verdict.json"]


def test_verdict_fits_into_its_reserved_space_on_a_full_disk(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk, no file can be made and none can grow."""
    attempt.reserve_verdict()
    reserved = next(path for path in attempt.path.iterdir() if path.is_file())
    inode, size = reserved.stat().st_ino, reserved.stat().st_size
    monkeypatch.setattr(rundir, "write_text", fails_with(errno.ENOSPC))
    longest = {"cause": {"tail": ["�" * 500] * 20}, "reason": "y" * 2000}  # 500 characters a line, six bytes each
    assert len(json.dumps(longest)) < size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        attempt.write_verdict(longest)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read_record(attempt.verdict) == longest
    assert attempt.verdict.stat().st_ino == inode
    assert attempt.verdict.read_text().endswith("}\n")  # without trailing blanks


def test_verdict_larger_than_its_reserved_space_is_written(attempt: Attempt) -> None:
    attempt.reserve_verdict()
    attempt.write_verdict({"tail": ["z" * 300_000]})
    assert read_record(attempt.verdict) == {"tail": ["z" * 300_000]}
    assert sorted(os.listdir(attempt.path)) == ["logs", "state", "verdict.json"]


def test_verdict_without_reserved_space_is_written(attempt: Attempt) -> None:
    attempt.write_verdict({"state": "COMPLETED"})
    assert read_record(attempt.verdict) == {"state": "COMPLETED"}


def test_failed_reservation_of_the_verdict_is_reported(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fdopen", fails_with(errno.ENOSPC))
    with pytest.raises(RunDirError, match="No space left on device"):
        attempt.reserve_verdict()
    assert sorted(os.listdir(attempt.path)) == ["logs", "state"]


def test_failed_write_of_the_verdict_is_reported(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt.reserve_verdict()
    monkeypatch.setattr(os, "fsync", fails_with(errno.EIO))
    with pytest.raises(RunDirError, match=r"cannot write .*verdict\.json"):
        attempt.write_verdict({"state": "FAILED"})


@pytest.mark.parametrize("run", [RunDir("/runs/x"), RunDir("/runs/array/x")], ids=["usual", "below array"])
def test_run_directory_of_a_log(run: RunDir) -> None:
    assert run_dirs_of(run.log)[-1] == run.path
    assert run_dirs_of(RunDir(run.elements / "3").log) == [run.path, run.elements / "3"]
