"""Processes in /proc: identity, liveness, descendants and exit status."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gridtf.host import processes, procfs
from tests.support.jobs import until
from tests.support.python import KERNEL_REPORTS_EXITS

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a program in a session of its own; its process group is killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*command: str, **more: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(command, start_new_session=True, **more))  # type: ignore[call-overload]
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        if process.stdout:
            process.stdout.close()


def test_alive_distinguishes_reused_pids_by_start_time(start: Start) -> None:
    sleeper = start("sleep", "100")
    started = procfs.start_time(sleeper.pid)
    assert started is not None
    assert procfs.alive(sleeper.pid)
    assert procfs.alive(sleeper.pid, started)
    assert not procfs.alive(sleeper.pid, started - 1)  # a reused pid
    sleeper.kill()
    sleeper.wait(10)
    assert not procfs.alive(sleeper.pid)
    assert not procfs.alive(sleeper.pid, started)
    assert procfs.start_time(sleeper.pid) is None


def test_exec_keeps_the_start_time(start: Start) -> None:
    shell = start("bash", "-c", "read -r; exec sleep 100", stdin=subprocess.PIPE)
    started = procfs.start_time(shell.pid)
    assert shell.stdin is not None
    shell.stdin.write(b"\n")
    shell.stdin.close()
    until(lambda: Path(f"/proc/{shell.pid}/comm").read_text() == "sleep\n", "exec")
    assert procfs.alive(shell.pid, started)


def test_a_zombie_is_not_alive(start: Start) -> None:
    zombie = start("sleep", "100")
    started = procfs.start_time(zombie.pid)
    os.kill(zombie.pid, signal.SIGKILL)
    until(lambda: Path(f"/proc/{zombie.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z", "a zombie")
    assert not procfs.alive(zombie.pid, started)
    assert zombie.pid not in procfs.descendants(os.getpid())


@pytest.mark.parametrize("name", ["a b", "x) R 1 (y", "))) Z (((", "new\nline"])
def test_process_name_with_brackets_or_newline_is_parsed(start: Start, tmp_path: Path, name: str) -> None:
    program = tmp_path / "program"
    program.symlink_to("/bin/sleep")
    code = f"import time; open('/proc/self/comm', 'w').write({name!r}); print(1, flush=True); time.sleep(100)"
    process = start(sys.executable, "-c", code, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"1\n"
    assert Path(f"/proc/{process.pid}/comm").read_text() == f"{name}\n"
    assert procfs.alive(process.pid, procfs.start_time(process.pid))
    assert process.pid in procfs.descendants(os.getpid())


def test_descendants_include_other_sessions_parents_first(start: Start, tmp_path: Path) -> None:
    script = (
        "sleep 100 & echo $! >a\n"  # in the group
        "setsid bash -c 'echo $$ >b; sleep 100 & echo $! >c; wait' &\n"  # in a session of its own, with a child
        "wait\n"
    )
    shell = start("bash", "-c", script, cwd=tmp_path)
    expected = {shell.pid, *(_pid(tmp_path / name) for name in "abc")}
    until(lambda: set(procfs.descendants(os.getpid())) >= expected, "all four")
    found = procfs.descendants(os.getpid())
    assert found.index(shell.pid) < found.index(_pid(tmp_path / "b")) < found.index(_pid(tmp_path / "c"))
    assert set(procfs.descendants(shell.pid)) == expected - {shell.pid}
    assert set(procfs.family(shell.pid)) == expected - {shell.pid}
    assert procfs.descendants(_pid(tmp_path / "c")) == []
    os.kill(_pid(tmp_path / "b"), signal.SIGKILL)
    os.kill(_pid(tmp_path / "c"), signal.SIGKILL)


def test_age_and_signals_that_a_process_catches(start: Start, tmp_path: Path) -> None:
    code = "import signal, sys, time; signal.signal(signal.SIGUSR1, print); open(sys.argv[1], 'w'); time.sleep(600)"
    before = time.monotonic()
    catcher = start(sys.executable, "-c", code, str(tmp_path / "ready"))
    until((tmp_path / "ready").exists, "the handler")
    assert procfs.catches(catcher.pid, signal.SIGUSR1)
    assert not procfs.catches(catcher.pid, signal.SIGUSR2)
    age = procfs.age(catcher.pid)
    assert age is not None
    assert 0 <= age <= time.monotonic() - before + 0.05  # clock ticks of a hundredth of a second
    assert (procfs.age(2**30), procfs.catches(2**30, signal.SIGUSR1)) == (None, False)


def _pid(path: Path) -> int:
    return int(until(lambda: path.exists() and path.read_text().strip(), f"{path.name} to be written"))


def test_a_family_has_each_member_once_also_those_that_are_not_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "children", {10: [11, 12], 11: [13], 12: [], 13: []}.__getitem__)
    monkeypatch.setattr(procfs, "descendants", {10: [11, 14, 13]}.__getitem__)
    family = procfs.family(10)
    assert [next(family) for _ in range(3)] == [11, 12, 13]
    assert list(family) == [14]


def test_descendants_include_children_of_an_unreaped_zombie(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parent may die while /proc is read: its child still names it, and must not be missed."""
    stats = {10: ["S", "1"], 11: ["Z", "10"], 12: ["S", "11"]}
    monkeypatch.setattr(os, "listdir", lambda folder: ["self", *map(str, stats)])
    monkeypatch.setattr(procfs, "_stat", lambda pid: stats.get(pid, []))
    assert procfs.descendants(10) == [12]


def test_boot_id_and_start_time() -> None:
    assert len(procfs.boot_id()) == 36
    assert procfs.boot_id() == procfs.boot_id()
    assert procfs.start_time(0) is None
    assert not procfs.alive(2**30)


def test_signal_name_of_real_time_signals_is_their_number() -> None:
    assert processes.signal_name(9) == "SIGKILL"
    assert processes.signal_name(40) == "signal 40"


def test_name_and_ancestors_of_a_process() -> None:
    above = list(procfs.ancestors(os.getpid()))
    assert above[0] == os.getppid()
    assert list(procfs.ancestors(above[0])) == above[1:]
    assert procfs.name(os.getpid()) == Path("/proc/self/comm").read_text().strip()
    assert (procfs.name(2**30), list(procfs.ancestors(2**30))) == ("", [])


@pytest.mark.parametrize(("ends", "how"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -signal.SIGKILL)])
def test_ended_how_returns_the_exit_status_of_any_process(start: Start, ends: str, how: int) -> None:
    process = start("bash", "-c", f"read -r _; {ends}", stdin=subprocess.PIPE)
    watched = os.pidfd_open(process.pid)
    try:
        assert procfs.ended_how(watched) is None
        process.communicate(b"\n", timeout=180)  # reaps it
        assert procfs.ended_how(watched) == (how if KERNEL_REPORTS_EXITS else None)
    finally:
        os.close(watched)


def test_open_files_are_those_of_a_process_and_its_children(start: Start, tmp_path: Path) -> None:
    path = str(tmp_path / "a b")
    shell = start("bash", "-c", 'cat 3>"$0"; exit 0', path, stdin=subprocess.PIPE)
    until(lambda: path in procfs.open_files(shell.pid, 2), "the child")
    assert path not in procfs.open_files(shell.pid, 1)
    assert shell.stdin is not None
    shell.stdin.close()  # ends both
    shell.wait(10)
    assert procfs.open_files(shell.pid, 2) == []


def test_variables_are_those_of_a_process_and_its_children(start: Start) -> None:
    shell = start("bash", "-c", "OMPI=1 cat; exit 0", stdin=subprocess.PIPE, env={"PATH": os.environ["PATH"]})
    until(lambda: "OMPI=1" in procfs.variables(shell.pid, 2), "the child")
    assert "OMPI=1" not in procfs.variables(shell.pid, 1)
    assert shell.stdin is not None
    shell.stdin.close()  # ends both
    shell.wait(10)
    assert procfs.variables(shell.pid, 2) == [""]


def test_mapped_files_names_the_libraries_of_a_process_and_its_children(start: Start) -> None:
    script = f"{shlex.quote(sys.executable)} -c 'import _ssl, sys; print(1, flush=True); sys.stdin.read()' <&0; exit 0"
    shell = start("bash", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert shell.stdout is not None
    assert shell.stdout.readline() == b"1\n"
    assert "_ssl" in procfs.mapped_files(shell.pid, 2)
    alone = procfs.mapped_files(shell.pid, 1)
    assert "/bash" in alone
    assert "_ssl" not in alone
    assert shell.stdin is not None
    shell.stdin.close()  # ends both
    shell.wait(10)
    assert procfs.mapped_files(shell.pid, 2) == ""
