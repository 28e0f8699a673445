"""What processes and this host use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gridtf.host import usage
from tests.support.jobs import until

_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier
    lo: 5000      10    0    0    0     0          0         0     5000      10    0    0    0     0       0          0
  eth0: 100       10    0    0    0     0          0         0      20       10    0    0    0     0       0          0
  ib0:7 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0
"""


def test_family_is_counted_as_one() -> None:
    child = "x = bytearray(32 << 20); print(1, flush=True); input()"
    code = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {child!r}]); p.wait(); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        families = usage.Families({"worker:0": process.pid})
        assert families.look()["worker:0"][0] == process.pid
        process.stdout.readline()  # the child has its memory
        pids = families.look()["worker:0"]
        found = usage.of_processes(pids, {})
        assert (len(pids), found.processes) == (2, 2)
        assert found.memory > 32 << 20
        assert found.read > 0
        assert found.ticks >= 0
        assert sum(usage.threads(pids).states.values()) >= 2
        process.kill()
        process.wait()
        assert "worker:0" not in families.look()
        assert usage.of_processes([process.pid], {}).processes == 0


FORKS = """
import os, signal
shared = b"x" * (64 << 20)
for _ in range(4):
    if not os.fork():
        own = b"x" * (32 << 20)
        print(flush=True)
        signal.pause()
print(flush=True)
signal.pause()
"""


def test_memory_that_a_fork_leaves_to_several_processes_counts_once() -> None:
    """64 MiB of a program, and 32 of each of four children: 192; summed up by process, they are 448."""
    with subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            for _ in range(5):
                process.stdout.readline()
            pids = usage.Families({"worker:0": process.pid}).look()["worker:0"]
            before = usage.of_processes(pids, {})
            assert before.sharing == pids
            assert 96 <= before.memory >> 20 < 128  # no more than the largest, until the kernel has told
            shared = usage.shared_memory(pids)
            assert 192 <= usage.of_processes(pids, shared).memory >> 20 < 256
            assert usage.of_processes(pids, dict.fromkeys(pids, 0)).memory >> 20 >= 448
            alone = usage.of_processes([process.pid], shared)
            assert (alone.sharing, alone.memory >> 26) == ([], 1)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    until(lambda: not usage.shared_memory(pids), "the end of the processes")


def test_small_processes_beside_a_large_one_are_not_asked_what_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {1: 1 << 20, 2: 50_000, 3: 10_000}  # KiB
    monkeypatch.setattr(usage, "_read", lambda path: b"RssAnon: %d kB" % sizes[int(path.split("/")[2])])
    assert usage.of_processes(sizes, {}).sharing == []
    assert usage.of_processes(sizes, {}).memory == sum(sizes.values()) << 10
    sizes[4] = 10_000
    assert usage.of_processes(sizes, {}).sharing == [1, 2, 3, 4]
    # a kernel that does not tell
    assert usage.of_processes(sizes, usage.shared_memory(sizes)).memory == sum(sizes.values()) << 10


@pytest.mark.thorough
def test_threads_that_wait_for_a_cpu_are_delayed() -> None:
    """Two processes that have one CPU between them; one that sleeps is not delayed."""
    cpu = min(os.sched_getaffinity(0))
    busy = f"import os; os.sched_setaffinity(0, {{{cpu}}}); print(1, flush=True)\nwhile True: pass"
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        for code in (busy, busy, "print(1, flush=True); import time; time.sleep(60)")
    ]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        before = [usage.threads([process.pid]).delay for process in started]
        time.sleep(0.6)
        waited = [usage.threads([one.pid]).delay - was for one, was in zip(started, before, strict=True)]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert waited[0] + waited[1] > 0.2e9
    assert waited[2] < (waited[0] + waited[1]) / 2


def test_host_has_memory_and_time() -> None:
    used = usage.Host().use()
    assert 0 < used.memory < used.memory_total
    assert used.ticks > 0


@pytest.mark.parametrize("version", [1, 2])
def test_limit_of_the_nearest_cgroup_counts(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    controllers, root = ("", tmp_path) if version == 2 else ("memory", tmp_path / "memory")
    limit, current, cache, events = usage._MEMORY_2 if version == 2 else usage._MEMORY_1
    step = root / "slurm" / "job_1" / "step_0"
    step.mkdir(parents=True)
    (step / limit).write_text("max\n" if version == 2 else f"{1 << 63}\n")
    (step.parent / limit).write_text(f"{8 << 20}\n")
    (step.parent / current).write_text(f"{5 << 20}\n")
    (step.parent / "memory.stat").write_text(f"anon 1{cache.decode()} {1 << 20}\n")
    (step / events).write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n")
    (step.parent / events).write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 9\n")
    real = usage._read

    def read(path: str) -> bytes:
        own = f"0:cpu:/x\n1:{controllers}:/slurm/job_1/step_0\n".encode()
        texts = {"/proc/self/cgroup": own, "/proc/vmstat": b"nr_free_pages 5\noom_kill 11\n"}
        return texts[path] if path in texts else real(path)

    monkeypatch.setattr(usage, "_read", read)
    monkeypatch.setattr(usage, "_CGROUPS", tmp_path)
    used = usage.Host().use()
    assert (used.memory, used.memory_total) == (4 << 20, 8 << 20)
    assert usage.out_of_memory_kills() == 7
    # kernels before 4.13 do not count it, and only groups of version 2 count what happens below them
    (step / events).write_text("")
    assert usage.out_of_memory_kills() == (9 if version == 2 else 11)


def test_processes_killed_for_memory_are_those_of_the_host_where_no_cgroup_counts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = {"/proc/self/cgroup": b"0::/\n", "/proc/vmstat": b"nr_free_pages 5\noom_kill 3\nnuma_hit 1\n"}
    monkeypatch.setattr(usage, "_read", lambda path: texts.get(path, b""))
    assert usage.out_of_memory_kills() == 3
    texts.clear()
    assert usage.out_of_memory_kills() == 0


def test_loopback_does_not_count_as_network() -> None:
    assert usage._network(_DEV) == (107, 29)


def test_printed_is_the_length_of_the_log(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as log:
        log.write(b"12345")
        log.flush()
        code = "print('678', flush=True); input()"
        with subprocess.Popen([sys.executable, "-c", code], stdout=log, stdin=subprocess.PIPE) as process:
            while usage.printed(process.pid) != 9:
                assert process.poll() is None
    assert usage.printed(process.pid) is None
    assert os.path.getsize(tmp_path / "log") == 9  # noqa: PTH202
