"""The launcher's records: written in order, the newest text only, and never waited for."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire.recorder import Recorder
from gridtf.errors import RunDirError
from gridtf.host import procfs
from gridtf.run.rundir import append_text, cannot
from tests.support.streams import InlineRecorder
from tests.support.system import FakeSystem

LIMIT = 120.0  # seconds for anything that takes milliseconds on an idle machine


class Slow(Recorder):
    """Writes that end when the test says so, each with an errno or 0.

    Attributes:
        begun: Path and text of each write, in order.
        codes: How the writes end that are under way.
    """

    def __init__(self, system: FakeSystem) -> None:
        super().__init__(system)
        self.begun: list[tuple[str, str]] = []
        self.codes: list[int] = []

    def _begin(self, path: Path, text: str, mode: int) -> int:
        self.begun.append((path.name, text))
        return len(self.begun)

    def _ended(self, pid: int) -> int | None:
        return self.codes.pop(0) if self.codes else None

    def end(self, code: int = 0) -> None:
        """The write that is under way ends."""
        self.codes.append(code)
        self.look()


@pytest.fixture
def system() -> FakeSystem:
    return FakeSystem()


@pytest.fixture
def slow(system: FakeSystem) -> Slow:
    return Slow(system)


A, B, C = Path("/run/a"), Path("/run/b"), Path("/run/c")


# --- what is written, and when


def test_one_file_is_written_at_a_time_in_the_order_of_the_requests(slow: Slow) -> None:
    for path in (A, B, C):
        slow.write(path, "1")
    assert slow.begun == [("a", "1")]
    slow.look()
    assert len(slow.begun) == 1
    slow.end()
    slow.end()
    assert slow.begun == [("a", "1"), ("b", "1"), ("c", "1")]


def test_newest_text_of_a_file_is_written_and_older_ones_never(slow: Slow) -> None:
    for text in "123456":
        slow.write(A, text)
        slow.write(B, text)
    assert slow.begun == [("a", "1")]
    slow.end()
    slow.end()
    slow.end()
    slow.end()
    assert sorted(slow.begun[1:]) == [("a", "6"), ("b", "6")]


def test_text_that_comes_while_the_older_one_is_written_is_not_lost(slow: Slow) -> None:
    slow.write(A, "1")
    slow.write(A, "2")
    slow.end()
    assert slow.begun == [("a", "1"), ("a", "2")]
    slow.end()
    assert slow.settle(0)


def test_write_that_fails_is_tried_again_with_the_newest_text(slow: Slow, system: FakeSystem) -> None:
    slow.write(A, "1")
    slow.write(A, "2")
    slow.end(errno.ENOSPC)
    assert slow.begun == [("a", "1")]  # not at once
    assert str(slow.errors[A]).startswith("cannot write /run/a: No space left on device")
    system.clock += 1.0
    slow.look()
    assert len(slow.begun) == 1
    system.clock += 1.5
    slow.look()
    assert slow.begun == [("a", "1"), ("a", "2")]
    slow.end()
    assert slow.errors == {}


def test_file_that_always_fails_does_not_keep_others_from_being_written(slow: Slow, system: FakeSystem) -> None:
    slow.write(A, "1")
    slow.write(B, "1")
    for _ in range(4):
        slow.end(errno.EACCES if slow.begun[-1][0] == "a" else 0)
        system.clock += 3.0
        slow.look()
    assert ("b", "1") in slow.begun
    assert len(system.logged) == 1
    assert slow.failed == 5000.0
    assert set(slow.errors) == {A}
    assert slow.begun.count(("a", "1")) >= 2


def test_write_that_no_process_can_be_started_for_is_tried_again(system: FakeSystem) -> None:
    class Full(Slow):
        full = True

        def _begin(self, path: Path, text: str, mode: int) -> int:
            if self.full:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return super()._begin(path, text, mode)

    recorder = Full(system)
    recorder.write(A, "1")
    assert [text.split(";")[0] for text in system.logged] == [f"cannot write /run/a: {os.strerror(errno.EAGAIN)}"]
    recorder.full = False
    system.clock += 3.0
    recorder.look()
    recorder.end()
    assert recorder.begun == [("a", "1")]
    assert recorder.settle(0)


# --- what is told


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EROFS, errno.EACCES])
def test_failure_and_its_end_are_logged_once_each(number: int, slow: Slow, system: FakeSystem) -> None:
    for text in "1234567890":
        slow.write(A, text)
        slow.end(number)
        system._advance(system.clock + 3.0)
        slow.look()
    assert len(slow.begun) >= 10
    assert system.logged == [
        f"cannot write /run/a: {os.strerror(number)}; "
        "the job goes on, and its records are written when that is possible again"
    ]
    assert slow.failed == 5000.0
    slow.end()
    assert system.logged[1:] == ["records can be written again, after 30 s"]
    assert not slow.failed
    slow.write(A, "x")
    slow.end(number)
    assert len(system.logged) == 3  # trouble anew


def test_hanging_write_blocks_nothing_and_is_logged_once_with_its_begin(slow: Slow, system: FakeSystem) -> None:
    slow.write(A, "1")
    for _ in range(100):
        system._advance(system.clock + 0.5)
        slow.write(B, str(system.clock))
    assert slow.begun == [("a", "1")]
    assert [
        line.startswith("the file system has not responded for 5 s; the job goes on") for line in system.logged
    ] == [True]
    assert slow.failed == 5000.0  # since when, not when that was noticed
    assert not slow.settle(2.0)
    slow.end()
    assert system.logged[-1].startswith("records can be written again, after 5")
    assert slow.begun[-1] == ("b", "1050.0")


def test_short_write_is_not_logged(slow: Slow, system: FakeSystem) -> None:
    slow.write(A, "1")
    system._advance(system.clock + 4.9)
    slow.look()
    slow.end()
    assert system.logged == []


# --- the log


def test_log_lines_are_written_in_order_and_none_is_lost(slow: Slow, system: FakeSystem) -> None:
    slow.log("one")
    slow.log("two")
    slow.log("three")
    slow.end(errno.ENOSPC)
    slow.log("four")
    system.clock += 3.0
    slow.look()
    assert slow.begun == [("stderr", "one\n"), ("stderr", "one\ntwo\nthree\nfour\n")]
    slow.end()
    assert slow.settle(0)


def test_log_is_written_at_once_while_records_cannot_be(slow: Slow) -> None:
    slow.write(A, "1")
    slow.log("line")
    slow.end(errno.ENOSPC)
    assert slow.begun == [("a", "1"), ("stderr", "line\n")]


# --- settle


def test_settle_waits_for_all_writes_at_most_so_long(slow: Slow, system: FakeSystem) -> None:
    assert slow.settle(0)  # nothing to do
    slow.write(A, "1")
    slow.write(B, "1")
    assert not slow.settle(3.0)
    assert 1003.0 <= system.clock < 1003.1
    system.at(1.0, lambda: slow.codes.append(0))
    system.at(2.0, lambda: slow.codes.append(0))
    assert slow.settle(10.0)
    assert 1005.0 <= system.clock < 1005.2


def test_settle_tries_again_what_has_failed(slow: Slow, system: FakeSystem) -> None:
    slow.write(A, "1")
    system.at(1.0, lambda: slow.codes.append(errno.ENOSPC))
    system.at(4.0, lambda: slow.codes.append(0))
    assert slow.settle(10.0)
    assert slow.begun == [("a", "1"), ("a", "1")]


# --- real processes


class Busy(System):
    """This host; its signals stay with the test run."""

    def __init__(self) -> None:
        super().__init__({})
        self.logged: list[str] = []

    def log(self, text: str) -> None:
        self.logged.append(text)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """A recorder whose processes are ended with the test."""
    made = Recorder(Busy())
    try:
        yield made
    finally:
        if made._pid is not None:
            os.kill(made._pid, signal.SIGKILL)
            os.waitpid(made._pid, 0)


def test_files_are_written_whole_with_their_mode(tmp_path: Path, recorder: Recorder) -> None:
    public, private = tmp_path / "a.json", tmp_path / "b.json"
    before = set(procfs.children(os.getpid()))
    for text in "123":
        recorder.write(public, text * 100_000)
        recorder.write(private, text, mode=0o600)
    assert recorder.settle(LIMIT)
    assert public.read_text() == "3" * 100_000
    assert (private.read_text(), private.stat().st_mode & 0o777) == ("3", 0o600)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json"]
    assert set(procfs.children(os.getpid())) <= before


def test_log_goes_to_stderr_and_may_be_closed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    system = System({})
    recorder = Recorder(system)
    system.log_with(recorder.log)
    system.log("one\ntwo")
    assert recorder.settle(LIMIT)
    assert capfd.readouterr().err == "gridtf: one\ngridtf: two\n"
    reader, writer = os.pipe()
    os.close(reader)
    stderr = os.dup(2)
    try:
        os.dup2(writer, 2)
        system.log("three")
        assert recorder.settle(LIMIT)
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(writer)
    assert recorder.failed is None


@pytest.mark.parametrize(("name", "number"), [("gone/a.json", errno.ENOENT), ("x" * 300, errno.ENAMETOOLONG)])
def test_error_of_the_process_that_writes_is_the_recorder_s(
    name: str, number: int, tmp_path: Path, recorder: Recorder
) -> None:
    recorder.write(tmp_path / name, "text")
    deadline = time.monotonic() + LIMIT
    while not recorder.errors:
        assert time.monotonic() < deadline
        recorder.settle(0.01)
    error = recorder.errors[tmp_path / name]
    assert str(error) == str(cannot("write", tmp_path / name, OSError(number, os.strerror(number))))
    assert error.number == number


class Hanging(Recorder):
    """Writes into a FIFO that nobody reads, as a file system that does not respond."""

    def _begin(self, path: Path, text: str, mode: int) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                os.close(os.open(path, os.O_WRONLY))
            finally:
                os._exit(0)
        return pid


def test_write_that_hangs_does_not_block_the_launcher(tmp_path: Path) -> None:
    fifo, hanging = tmp_path / "a", Hanging(Busy())
    os.mkfifo(fifo)
    hanging.write(fifo, "1")
    for number in range(1000):
        hanging.write(tmp_path / "b", str(number))
    assert not hanging.settle(0.1)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)  # the file system is back
    try:
        hanging._waiting.clear()
        assert hanging.settle(LIMIT)
    finally:
        os.close(reader)


def test_process_that_writes_ends_with_the_launcher(tmp_path: Path) -> None:
    """A launcher that is killed leaves none behind."""
    fifo = tmp_path / "a"
    os.mkfifo(fifo)
    told, tell = os.pipe()
    launcher = os.fork()
    if launcher == 0:
        try:
            recorder = Recorder(Busy())
            hang(fifo)
            recorder.write(tmp_path / "text", "1")
            os.write(tell, f"{recorder._pid}\n".encode())
            time.sleep(LIMIT)
        finally:
            os._exit(1)
    os.close(tell)
    pid = int(os.read(told, 20))
    os.close(told)
    os.kill(launcher, signal.SIGKILL)
    os.waitpid(launcher, 0)
    deadline = time.monotonic() + LIMIT
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2:3]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def hang(fifo: Path) -> None:
    """Have the process that writes stop before it writes."""
    module = sys.modules[Recorder.__module__]
    vars(module)["write_text"] = lambda path, text, mode: os.open(fifo, os.O_WRONLY)


# --- the recorder of tests


def test_inline_recorder_behaves_like_the_real_one(tmp_path: Path, system: FakeSystem) -> None:
    inline = InlineRecorder(system)
    inline.write(tmp_path / "a", "1")
    inline.write(tmp_path / "gone" / "b", "1")
    assert (tmp_path / "a").read_text() == "1"
    assert inline.errors[tmp_path / "gone" / "b"].number == errno.ENOENT
    (tmp_path / "gone").mkdir()
    assert inline.settle(5.0)
    assert (tmp_path / "gone" / "b").read_text() == "1"
    assert inline.errors == {}


# --- files that grow


def test_lines_are_added_in_order_and_none_replaces_another(slow: Slow, system: FakeSystem, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    slow.append(path, "one\n")
    slow.append(path, "two\n")
    slow.append(path, "three\n")
    slow.end(errno.ENOSPC)
    slow.append(path, "four\n")
    system.sleep(5.0)
    slow.look()
    slow.end()
    assert slow.begun == [("events.jsonl", "one\n"), ("events.jsonl", "one\ntwo\nthree\nfour\n")]


def test_lines_are_added_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append_text(path, "one\n")
    assert path.read_text() == "one\n"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (7, hard))
    try:
        with pytest.raises(RunDirError, match="cannot write"):
            append_text(path, "two\nthree\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert path.read_text() == "one\n"
    append_text(path, "two\n")
    assert path.read_text() == "one\ntwo\n"
