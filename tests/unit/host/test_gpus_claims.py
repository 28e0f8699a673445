"""GPUs of this process: detected, declared or assigned ones, and claims that exclude other processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock
import pytest

from gridtf.files import user_name
from gridtf.host import gpus, locks
from gridtf.host.gpus import GpuGrant, Refusal, declared, granted, idle_first, memory_in_use, present
from tests.support.jobs import gone, until
from tests.support.python import environment, python

CLAIM = """
import os, sys
import filelock, hashlib, pwd, socket, struct  # needed by locks, but perhaps unreadable after setresuid
from gridtf.host import gpus
from gridtf.host.gpus import GpuGrant, claim
name, uid, gpus._TURN_WAIT, owner, count, *candidates = *sys.argv[1:3], float(sys.argv[3]), *sys.argv[4:]
if uid != "-":
    os.umask(0o077)
    os.setgroups([])
    os.setresuid(int(uid), int(uid), int(uid))
got = claim(int(count), candidates, owner, {"GRIDTF_LOCKS": name})
print("claimed", *got.gpus) if isinstance(got, GpuGrant) else print("refused", got.free, *got.holders, sep="|")
sys.stdout.flush()
sys.stdin.readline()
"""

Claimer = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def claimer(tmp_path: Path) -> Iterator[Claimer]:
    """claimer(owner, count, *candidates): a process that claims GPUs and holds them until its input ends.

    wait: the seconds that it waits for its turn.
    """
    with contextlib.ExitStack() as stack:

        def start(
            owner: str, count: int, *candidates: str, uid: int | None = None, wait: float = 5
        ) -> subprocess.Popen[str]:
            command = python(CLAIM, tmp_path, "-" if uid is None else uid, wait, owner, count, *candidates)
            process = subprocess.Popen(
                command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def output_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def release(got: GpuGrant | Refusal) -> None:
    assert isinstance(got, GpuGrant)
    for descriptor in got.descriptors:
        os.close(descriptor)


def claim(count: int, candidates: list[str], owner: str, name: Path) -> GpuGrant | Refusal:
    return gpus.claim(count, candidates, owner, {"GRIDTF_LOCKS": str(name)})


@contextmanager
def turn() -> Iterator[Callable[[], bool]]:
    """Yield a function that tries to take the lock of _one_at_a_time; release it at the end."""
    descriptor = os.open(gpus._TURN, os.O_RDONLY)
    try:
        yield lambda: filelock.lock_descriptor(descriptor, blocking=False)
    finally:
        os.close(descriptor)


def sockets() -> set[str]:
    """The sockets that this process has open."""
    links = (Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    return {str(link.readlink()) for link in links if link.is_symlink() and "socket:" in str(link.readlink())}


# --- detected and declared GPUs


@pytest.mark.parametrize(
    ("declared", "visible", "expected"),
    [
        ("0,1,2", None, ("0", "1", "2")),
        (" 0, 1 ,,", None, ("0", "1")),
        ("", None, ()),
        ("0,0,1", None, ("0", "1")),  # a GPU that is named twice counts once
        ("0,1,2,3", "1,3", ("1", "3")),
        ("0,1,2,3", "3,1", ("3", "1")),  # in the user's order
        ("0,1", "1,1,0", ("1", "0")),
        ("0,1", "5,1", ("1",)),
        ("0,1", "", ()),
        ("0,1,2", "0,-1,2", ("0",)),  # CUDA stops at the first invalid item
        ("0,1", "NoDevFiles", ()),
        ("a,b", None, ("a", "b")),
        ("0,1,2", "2 0", ("2", "0")),  # blanks separate as well
        ("0,1", "MIG-77,MIG-78/1/0", ("MIG-77", "MIG-78/1/0")),
        ("0,1", "GPU-8f3a", ("GPU-8f3a",)),  # without a driver, UUIDs are unknown
    ],
)
def test_present_returns_visible_gpus_of_gridtf_local_gpus(
    declared: str, visible: str | None, expected: tuple[str, ...]
) -> None:
    environ = {"GRIDTF_LOCAL_GPUS": declared, **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})}
    assert present(environ) == expected


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ()),
        ("", ()),
        ("0,1", ("0", "1")),
        ("0 1", ("0", "1")),
        ("GPU-8f3a,MIG-77/1/0", ("GPU-8f3a", "MIG-77/1/0")),
        ("-1", ()),
        ("NoDevFiles", ()),  # Slurm's word for none
    ],
)
def test_granted_reads_cuda_visible_devices(visible: str | None, expected: tuple[str, ...]) -> None:
    assert granted({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == expected


class FakeDriver(types.ModuleType):
    """Stands in for pynvml: four GPUs, of which the driver has lost one."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.sessions = 0
        self.broken = self.old = False

    def nvmlInit(self) -> None:
        if self.broken:
            raise self.NVMLError("driver/library version mismatch")
        self.sessions += 1

    def nvmlShutdown(self) -> None:
        self.sessions -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 4

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 2:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}abc-def"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return int(uuid[4])

    nvmlMemory_v2 = 0x2000028

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> types.SimpleNamespace:
        if version and self.old:
            raise self.NVMLError("Function Not Found")
        reserved = 0 if version else 600 << 20  # what an idle H200 keeps for itself
        return types.SimpleNamespace(used=(4 << 30) * handle + (5 << 20) + reserved, total=80 << 30)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> types.SimpleNamespace:
        if handle != 1:
            raise self.NVMLError("Not Supported")
        return types.SimpleNamespace(gpu=91)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 250_500

    NVML_CLOCK_SM = 1

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return 1980 if handle == 1 else 345

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return 0x4 if handle == 1 else 0x44  # the limit of its power alone, or heat as well

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[str]:
        return ["a process"] if handle == 0 else []


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(Path, "exists", lambda self: True)
    return fake


def test_present_omits_gpus_that_the_driver_has_lost(driver: FakeDriver) -> None:
    assert present({}) == ("0", "1", "3")
    assert present({"CUDA_VISIBLE_DEVICES": "3,2,0"}) == ("3", "0")
    assert driver.sessions == 0


def test_present_converts_uuids_to_indices(driver: FakeDriver) -> None:
    """All jobs on a host must use the same name for the lock of a GPU."""
    assert present({"CUDA_VISIBLE_DEVICES": "GPU-3abc-def,GPU-0a"}) == ("3", "0")
    assert present({"CUDA_VISIBLE_DEVICES": "GPU-3abc-def,3"}) == ("3",)
    assert present({"CUDA_VISIBLE_DEVICES": "GPU-ffff"}) == ()
    assert present({"CUDA_VISIBLE_DEVICES": "GPU"}) == ()
    assert present({"CUDA_VISIBLE_DEVICES": "MIG-77,GPU-3abc-def"}) == ("MIG-77", "3")


def test_gridtf_local_gpus_needs_no_driver_and_a_broken_driver_has_no_gpus(driver: FakeDriver) -> None:
    driver.broken = True
    assert present({}) == ()
    assert present({"GRIDTF_LOCAL_GPUS": "0"}) == ("0",)


def test_idle_first_puts_busy_gpus_last(driver: FakeDriver) -> None:
    assert idle_first(("0", "1", "2", "3")) == ("1", "2", "3", "0")
    assert idle_first(("3", "GPU-0abc", "0", "1")) == ("3", "GPU-0abc", "1", "0")
    assert driver.sessions == 0
    driver.broken = True
    assert idle_first(("0", "1")) == ("0", "1")


def test_pynvml_is_not_imported_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # an import would raise
    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert present({}) == ()


def test_declared_returns_gpus_only_if_none_can_be_detected(driver: FakeDriver) -> None:
    assert declared(2, {}) == ()  # the driver detects them
    driver.broken = True
    assert declared(2, {}) == ("0", "1")
    assert declared(2, {"CUDA_VISIBLE_DEVICES": "4,6,7"}) == ("4", "6", "7")
    assert declared(2, {"CUDA_VISIBLE_DEVICES": ""}) == ()
    assert declared(2, {"GRIDTF_LOCAL_GPUS": "0,1"}) == ()


# --- claims


def test_claim_locks_all_requested_gpus_or_none(tmp_path: Path) -> None:
    before = sockets()
    first = claim(2, ["0", "1", "2"], "first job", tmp_path)
    assert isinstance(first, GpuGrant)
    assert first.gpus == ("0", "1")
    assert claim(2, ["0", "1", "2"], "second job", tmp_path) == Refusal(1, ("GPU 0: first job", "GPU 1: first job"))
    third = claim(1, ["0", "1", "2"], "third job", tmp_path)  # the refused claim holds no lock
    assert isinstance(third, GpuGrant)
    assert third.gpus == ("2",)
    release(first)
    assert len(sockets() - before) == len(third.descriptors)
    release(third)
    release(claim(3, ["0", "1", "2"], "fourth job", tmp_path))
    assert sockets() == before


def test_claim_with_an_empty_or_long_note_holds_the_lock(tmp_path: Path) -> None:
    first, second = claim(1, ["0"], "", tmp_path), claim(1, ["1"], "x" * 500, tmp_path)
    refusal = claim(2, ["0", "1"], "you", tmp_path)
    assert isinstance(refusal, Refusal)
    assert refusal.holders[0] == f"GPU 0: process {os.getpid()}"
    assert refusal.holders[1].startswith("GPU 1: xxx")
    assert len(refusal.holders[1]) < 120
    release(first)
    release(second)


def test_control_characters_in_a_note_are_escaped(tmp_path: Path) -> None:
    got = claim(1, ["0"], "a\x1b[2J\nb\udcff" + "c" * 500, tmp_path)
    refusal = claim(1, ["0"], "you", tmp_path)
    assert isinstance(refusal, Refusal)
    assert refusal.holders[0].startswith(r"GPU 0: a\x1b[2J\nb?ccc")
    assert refusal.holders[0].isprintable()
    release(got)


def test_note_of_another_process_is_not_taken_for_the_holders(tmp_path: Path, claimer: Claimer) -> None:
    """Any process can make a socket whose name begins like that of a note."""
    holder = claimer("the holder", 1, "0")
    assert output_line(holder) == "claimed 0"
    address = locks._note_address(f"{tmp_path}-gpu-0", "a liar\nwith a line of its own")
    with socket.socket(socket.AF_UNIX) as liar:
        liar.bind(b"\0" + address)
        liar.listen()
        assert claim(1, ["0"], "me", tmp_path) == Refusal(0, ("GPU 0: the holder",))
        holder.kill()
        holder.wait(10)
        release(claim(1, ["0"], "me", tmp_path))


def test_connections_to_a_lock_do_not_keep_it_alive(tmp_path: Path) -> None:
    got = claim(1, ["0"], "me", tmp_path)
    with contextlib.ExitStack() as stack:
        for _ in range(200):  # nobody accepts them
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(b"\0" + locks._address(f"{tmp_path}-gpu-0"))
        assert claim(1, ["0"], "you", tmp_path) == Refusal(0, ("GPU 0: me",))
        release(got)
        release(claim(1, ["0"], "you", tmp_path))


def test_holder_of_a_lock_is_connected_to_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that waits looks each second, and the queue of connections that nobody accepts is limited."""
    asked: list[bytes] = []
    peer = locks._peer

    def counted(address: bytes) -> tuple[int, int] | None:
        asked.append(address)
        return peer(address)

    monkeypatch.setattr(locks, "_peer", counted)
    name = f"{tmp_path}-lock"
    for note in ("one", "two"):
        held = locks.hold(name, note)
        assert held
        asked.clear()
        assert [locks.holder(name) for _ in range(3)] == [note] * 3
        assert len(asked) == 2  # to the lock, and to the note
        for descriptor in held:
            os.close(descriptor)


@pytest.mark.thorough
def test_claim_proceeds_when_the_turn_is_blocked(tmp_path: Path, claimer: Claimer) -> None:
    """Taking turns is a courtesy: a job that does not give up its turn cannot keep others from their GPUs."""
    with turn() as held:
        until(held, "the turn to be ours")
        assert output_line(claimer("first", 1, "0", wait=0.2)) == "claimed 0"
        assert output_line(claimer("second", 1, "0", wait=0.2)) == "refused|0|GPU 0: first"


def test_one_process_at_a_time_claims_gpus() -> None:
    with turn() as held:
        with gpus._one_at_a_time():
            assert not held()
        until(held, "the turn to be ours")


def test_claim_succeeds_without_the_lock_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_TURN", tmp_path / "no such folder")
    release(claim(1, ["0"], "me", tmp_path))


def test_gpu_name_with_a_slash_is_locked(tmp_path: Path) -> None:
    got = claim(1, ["MIG-77/1/0"], "me", tmp_path)
    assert isinstance(claim(1, ["MIG-77/1/0"], "you", tmp_path), Refusal)
    release(got)


@pytest.mark.thorough
def test_two_processes_never_hold_one_gpu(claimer: Claimer) -> None:
    first = claimer("first", 2, "0", "1", "2")
    assert output_line(first) == "claimed 0 1"
    second = claimer("second", 2, "0", "1", "2")
    assert output_line(second) == "refused|1|GPU 0: first|GPU 1: first"
    assert output_line(claimer("third", 1, "0", "1", "2")) == "claimed 2"


@pytest.mark.thorough
def test_concurrent_claims_share_all_gpus(claimer: Claimer) -> None:
    racers = [claimer(f"racer {number}", 2, "0", "1", "2", "3", "4") for number in range(8)]
    results = [output_line(racer) for racer in racers]
    won = [result.split()[1:] for result in results if result.startswith("claimed")]
    assert sorted(len(gpus) for gpus in won) == [2, 2]
    assert len({gpu for gpus in won for gpu in gpus}) == 4
    assert all(result.startswith("refused|1|") for result in results if not result.startswith("claimed"))


def test_claim_is_released_by_sigkill(claimer: Claimer, tmp_path: Path) -> None:
    holder = claimer("holder", 1, "0")
    assert output_line(holder) == "claimed 0"
    assert isinstance(claim(1, ["0"], "me", tmp_path), Refusal)
    holder.send_signal(signal.SIGKILL)
    holder.wait(10)
    release(claim(1, ["0"], "me", tmp_path))


def test_claim_lasts_until_an_inheriting_child_ends(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "from gridtf.host.gpus import claim\n"
        "got = claim(1, ['0'], 'parent', {'GRIDTF_LOCKS': sys.argv[1]})\n"
        "heir = subprocess.Popen(['sleep', '1000'], pass_fds=got.descriptors, start_new_session=True)\n"
        "other = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "print(heir.pid, other.pid, flush=True); time.sleep(1000)\n"
    )
    with subprocess.Popen(python(code, tmp_path), env=environment(), stdout=subprocess.PIPE, text=True) as parent:
        heir, other = map(int, output_line(parent).split())
        try:
            parent.kill()
            parent.wait(10)
            assert claim(1, ["0"], "me", tmp_path) == Refusal(0, ("GPU 0: parent",))
        finally:
            os.kill(heir, signal.SIGKILL)
            gone(heir)
    try:
        release(claim(1, ["0"], "me", tmp_path))  # another child of the same parent holds no lock
    finally:
        os.kill(other, signal.SIGKILL)
        gone(other)


@pytest.mark.thorough
@pytest.mark.root
def test_locks_exclude_other_users_and_name_them(claimer: Claimer) -> None:
    first = claimer("nightly, job 99 of user carol", 1, "0", "1", uid=65534)
    assert output_line(first) == "claimed 0"
    second = claimer("somebody's", 1, "0", "1", uid=65533)
    assert output_line(second) == "claimed 1"
    third = claimer("a third", 1, "0", "1", uid=65532)
    holders = (
        f"GPU 0: user {user_name(65534)}, process {first.pid}, which calls itself nightly, job 99 of user carol",
        f"GPU 1: user {user_name(65533)}, process {second.pid}, which calls itself somebody's",
    )
    assert output_line(third) == "|".join(("refused", "0", *holders))
    first.kill()
    first.wait(10)
    assert output_line(claimer("a third", 1, "0", "1", uid=65532)) == "claimed 0"


def test_claim_succeeds_after_the_holder_ends(claimer: Claimer, tmp_path: Path) -> None:
    holder = claimer("holder", 1, "0")
    assert output_line(holder) == "claimed 0"
    assert holder.stdin is not None
    holder.stdin.close()
    got = until(lambda: isinstance(found := claim(1, ["0"], "me", tmp_path), GpuGrant) and found, "the GPU")
    release(got)


# --- names of locks


def test_lock_names_begin_with_gridtf_gpu() -> None:
    gpu = f"test-{os.getpid()}"
    got = gpus.claim(1, [gpu], "me", {})
    try:
        assert f"@gridtf-gpu-{gpu}" in Path("/proc/net/unix").read_text(errors="replace").split()
    finally:
        release(got)


def test_memory_in_use_leaves_out_what_an_idle_gpu_has(driver: FakeDriver) -> None:
    assert memory_in_use(("0", "1", "2", "GPU-3abc", "MIG-7")) == {"1": 4101, "GPU-3abc": 12293}
    driver.old = True  # one that does not tell apart what a GPU keeps for itself
    assert memory_in_use(("0", "1")) == {"0": 605, "1": 4701}
    driver.broken = True
    assert memory_in_use(("1",)) == {}
    driver.nvmlInit = None  # type: ignore[assignment, method-assign]
    assert memory_in_use(()) == {}  # asks no driver


def test_use_of_gpus_leaves_out_what_the_driver_does_not_tell(driver: FakeDriver) -> None:
    readings = gpus.use(("1", "GPU-3abc", "MIG-7"))
    first = next(readings)
    used = {"use": 91.0, "memory": 4101 << 20, "memory_total": 81920 << 20, "power": 250.5}
    assert first["1"] == {**used, "clock": 1980.0, "throttled": 0.0}
    assert (first["GPU-3abc"]["clock"], first["GPU-3abc"]["throttled"]) == (345.0, 1.0)
    assert "use" not in first["GPU-3abc"]
    assert first["GPU-3abc"]["memory"] == 12293 << 20
    assert first["MIG-7"] == {}
    assert next(readings)["1"] == first["1"]


def test_use_of_gpus_without_a_driver_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(Path, "exists", lambda path: False)
    assert list(gpus.use(("0",))) == []
