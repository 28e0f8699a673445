"""Which GPUs are ours: what the driver and the environment say, and claims that nobody else can have meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gridtf.errors import GridtfError
from gridtf.gpus import Claim, Refusal, claim, declared, granted, idle_first, lock_folder, present
from tests.support.jobs import gone, until
from tests.support.python import environment, python

CLAIM = """
import os, sys
from pathlib import Path
import filelock
from gridtf.gpus import Claim, claim
folder, uid, owner, count, *candidates = sys.argv[1:]
if uid != "-":
    os.umask(0o077)
    os.setgroups([])
    os.setresuid(int(uid), int(uid), int(uid))
got = claim(int(count), candidates, owner, Path(folder))
print("claimed", *got.gpus) if isinstance(got, Claim) else print("refused", got.free, *got.holders, sep="|")
sys.stdout.flush()
sys.stdin.readline()
"""

Claimer = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def claimer(tmp_path: Path) -> Iterator[Claimer]:
    """claimer(owner, count, *candidates): a process that claims GPUs and holds them until its input ends."""
    with contextlib.ExitStack() as stack:

        def start(
            owner: str, count: int, *candidates: str, folder: Path = tmp_path, uid: int | None = None
        ) -> subprocess.Popen[str]:
            command = python(CLAIM, folder, "-" if uid is None else uid, owner, count, *candidates)
            process = subprocess.Popen(
                command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def let_go(got: Claim | Refusal) -> None:
    assert isinstance(got, Claim)
    for descriptor in got.descriptors:
        os.close(descriptor)


def open_locks(folder: Path) -> list[str]:
    """The lock files that this process has open."""
    links = (Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    paths = [link.readlink() for link in links if link.is_symlink()]
    return sorted(path.name for path in paths if path.parent == folder)


# --- which there are


@pytest.mark.parametrize(
    ("declared", "visible", "expected"),
    [
        ("0,1,2", None, ("0", "1", "2")),
        (" 0, 1 ,,", None, ("0", "1")),
        ("", None, ()),
        ("0,0,1", None, ("0", "1")),  # a GPU that is named twice is still one
        ("0,1,2,3", "1,3", ("1", "3")),
        ("0,1,2,3", "3,1", ("3", "1")),  # in the order in which the user wants them
        ("0,1", "1,1,0", ("1", "0")),
        ("0,1", "5,1", ("1",)),
        ("0,1", "", ()),
        ("0,1,2", "0,-1,2", ("0",)),  # CUDA reads no further than what is no GPU
        ("0,1", "NoDevFiles", ()),
        ("a,b", None, ("a", "b")),
    ],
)
def test_declared_gpus_and_what_is_visible_of_them(
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
        ("GPU-8f3a,MIG-77/1/0", ("GPU-8f3a", "MIG-77/1/0")),
        ("-1", ()),
        ("NoDevFiles", ()),  # Slurm's word for none
    ],
)
def test_what_the_scheduler_granted(visible: str | None, expected: tuple[str, ...]) -> None:
    assert granted({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == expected


class FakeDriver(types.ModuleType):
    """Stands in for pynvml: four GPUs, of which the driver has lost one."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.sessions = 0
        self.broken = False

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

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[str]:
        return ["a process"] if handle == 0 else []


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(Path, "exists", lambda self: True)
    return fake


def test_the_drivers_gpus_without_a_lost_one(driver: FakeDriver) -> None:
    assert present({}) == ("0", "1", "3")
    assert present({"CUDA_VISIBLE_DEVICES": "3,2,0"}) == ("3", "0")
    assert driver.sessions == 0


def test_gpus_may_be_called_by_their_uuid_or_its_beginning(driver: FakeDriver) -> None:
    """All jobs of a host must lock the same name for the same GPU."""
    assert present({"CUDA_VISIBLE_DEVICES": "GPU-3abc-def,GPU-0a"}) == ("3", "0")
    assert present({"CUDA_VISIBLE_DEVICES": "GPU-3abc-def,3"}) == ("3",)
    assert present({"CUDA_VISIBLE_DEVICES": "GPU-ffff"}) == ()
    assert present({"CUDA_VISIBLE_DEVICES": "GPU"}) == ()


def test_declared_gpus_need_no_driver_and_a_broken_driver_has_none(driver: FakeDriver) -> None:
    driver.broken = True
    assert present({}) == ()
    assert present({"GRIDTF_LOCAL_GPUS": "0"}) == ("0",)


def test_gpus_on_which_somebody_computes_are_taken_last(driver: FakeDriver) -> None:
    assert idle_first(("0", "1", "2", "3")) == ("1", "2", "3", "0")
    assert idle_first(("3", "GPU-0abc", "0", "1")) == ("3", "GPU-0abc", "1", "0")
    assert driver.sessions == 0
    driver.broken = True
    assert idle_first(("0", "1")) == ("0", "1")


def test_without_a_driver_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # an import would raise
    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert present({}) == ()


# --- the folder of the locks


def test_declared_only_where_nobody_tells(driver: FakeDriver) -> None:
    assert declared(2, {}) == ()  # the driver does
    driver.broken = True
    assert declared(2, {}) == ("0", "1")
    assert declared(2, {"CUDA_VISIBLE_DEVICES": "4,6,7"}) == ("4", "6", "7")
    assert declared(2, {"CUDA_VISIBLE_DEVICES": ""}) == ()
    assert declared(2, {"GRIDTF_LOCAL_GPUS": "0,1"}) == ()


def test_where_the_locks_lie(tmp_path: Path) -> None:
    assert lock_folder({"GRIDTF_LOCK_DIR": str(tmp_path)}) == tmp_path
    shared = lock_folder({"TMPDIR": str(tmp_path)})  # which schedulers make one of for every job
    assert shared in (Path("/run/lock"), Path("/tmp"))
    assert shared.stat().st_mode & stat.S_IWOTH


def test_a_lock_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(GridtfError) as caught:
        claim(1, ["0"], "me", tmp_path / "no")
    assert caught.value.what == f"the folder of the GPU lock files, {tmp_path}/no, is not there"
    assert "GRIDTF_LOCK_DIR" in caught.value.hint


def test_a_link_in_the_place_of_a_lock_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("text")
    (tmp_path / "gridtf-gpu-0.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(GridtfError, match=r"cannot open the GPU lock file .*gridtf-gpu-0\.lock"):
        claim(1, ["0"], "me", tmp_path)
    assert (tmp_path / "precious").read_text() == "text"
    assert open_locks(tmp_path) == []


# --- claims


def test_all_or_nothing(tmp_path: Path) -> None:
    first = claim(2, ["0", "1", "2"], "first job", tmp_path)
    assert isinstance(first, Claim)
    assert first.gpus == ("0", "1")
    assert claim(2, ["0", "1", "2"], "second job", tmp_path) == Refusal(1, ("GPU 0: first job", "GPU 1: first job"))
    third = claim(1, ["0", "1", "2"], "third job", tmp_path)  # the refused one keeps nothing
    assert isinstance(third, Claim)
    assert third.gpus == ("2",)
    let_go(first)
    assert open_locks(tmp_path) == ["gridtf-gpu-2.lock"]
    let_go(third)
    let_go(claim(3, ["0", "1", "2"], "fourth job", tmp_path))
    assert open_locks(tmp_path) == []


def test_a_claim_that_fails_half_way_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "gridtf-gpu-1.lock").symlink_to(tmp_path / "x")
    with pytest.raises(GridtfError):
        claim(2, ["0", "1"], "me", tmp_path)
    assert open_locks(tmp_path) == []
    let_go(claim(1, ["0"], "me", tmp_path))


def test_a_full_disk_takes_the_note_and_not_the_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    got = claim(1, ["0"], "me", tmp_path)
    assert claim(1, ["0"], "you", tmp_path) == Refusal(0, ("GPU 0: held by another process",))
    let_go(got)


def test_a_note_is_one_line_that_no_terminal_obeys(tmp_path: Path) -> None:
    got = claim(1, ["0"], "a\x1b[2J\nb\udcff" + "c" * 500, tmp_path)
    refusal = claim(1, ["0"], "you", tmp_path)
    assert isinstance(refusal, Refusal)
    assert refusal.holders[0].startswith("GPU 0: a?[2J?b?ccc")
    assert len(refusal.holders[0]) < 220
    let_go(got)


def test_a_gate_that_somebody_holds_is_not_waited_for_without_a_word(tmp_path: Path) -> None:
    with (tmp_path / "gridtf-gpus.lock").open("w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        refused = claim(1, ["0"], "me", tmp_path)
    assert refused == Refusal(0, ("another job has been claiming some for a second",))
    assert isinstance(claim(1, ["0"], "me", tmp_path), Claim)


def test_names_that_hold_a_slash(tmp_path: Path) -> None:
    got = claim(1, ["MIG-77/1/0"], "me", tmp_path)
    assert isinstance(claim(1, ["MIG-77/1/0"], "you", tmp_path), Refusal)
    let_go(got)


def test_two_processes_never_hold_one_gpu(claimer: Claimer) -> None:
    first = claimer("first", 2, "0", "1", "2")
    assert said(first) == "claimed 0 1"
    second = claimer("second", 2, "0", "1", "2")
    assert said(second) == "refused|1|GPU 0: first|GPU 1: first"
    assert said(claimer("third", 1, "0", "1", "2")) == "claimed 2"


def test_many_at_once_share_out_what_there_is(claimer: Claimer) -> None:
    racers = [claimer(f"racer {number}", 2, "0", "1", "2", "3", "4") for number in range(8)]
    results = [said(racer) for racer in racers]
    won = [result.split()[1:] for result in results if result.startswith("claimed")]
    assert sorted(len(gpus) for gpus in won) == [2, 2]
    assert len({gpu for gpus in won for gpu in gpus}) == 4
    assert all(result.startswith("refused|1|") for result in results if not result.startswith("claimed"))


def test_a_claim_ends_with_kill_9(claimer: Claimer, tmp_path: Path) -> None:
    holder = claimer("holder", 1, "0")
    assert said(holder) == "claimed 0"
    assert isinstance(claim(1, ["0"], "me", tmp_path), Refusal)
    holder.send_signal(signal.SIGKILL)
    holder.wait(10)
    let_go(claim(1, ["0"], "me", tmp_path))


def test_a_claim_lasts_as_long_as_a_child_that_inherited_it(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "from pathlib import Path\n"
        "from gridtf.gpus import claim\n"
        "got = claim(1, ['0'], 'parent', Path(sys.argv[1]))\n"
        "heir = subprocess.Popen(['sleep', '1000'], pass_fds=got.descriptors, start_new_session=True)\n"
        "other = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "print(heir.pid, other.pid, flush=True); time.sleep(1000)\n"
    )
    with subprocess.Popen(python(code, tmp_path), env=environment(), stdout=subprocess.PIPE, text=True) as parent:
        heir, other = map(int, said(parent).split())
        try:
            parent.kill()
            parent.wait(10)
            assert claim(1, ["0"], "me", tmp_path) == Refusal(0, ("GPU 0: parent",))
        finally:
            os.kill(heir, signal.SIGKILL)
            gone(heir)
    try:
        let_go(claim(1, ["0"], "me", tmp_path))  # another child of the same parent holds nothing
    finally:
        os.kill(other, signal.SIGKILL)
        gone(other)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become two other users")
@pytest.mark.root
def test_users_share_the_locks_of_a_host(claimer: Claimer) -> None:
    """In a sticky folder, where the kernel refuses O_CREAT on another user's file (fs.protected_regular)."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o1777)
        first = claimer("nobody's", 1, "0", "1", folder=folder, uid=65534)
        assert said(first) == "claimed 0"
        assert (folder / "gridtf-gpu-0.lock").stat().st_uid == 65534
        assert said(claimer("somebody's", 1, "0", "1", folder=folder, uid=65533)) == "claimed 1"
        third = claimer("a third", 1, "0", "1", folder=folder, uid=65532)
        assert said(third) == "refused|0|GPU 0: nobody's|GPU 1: somebody's"
        first.kill()
        first.wait(10)
        assert said(claimer("a third", 1, "0", "1", folder=folder, uid=65532)) == "claimed 0"
        assert (folder / "gridtf-gpu-0.lock").read_text() == "a third\n"


def test_what_is_waited_for_comes_when_it_is_let_go(claimer: Claimer, tmp_path: Path) -> None:
    holder = claimer("holder", 1, "0")
    assert said(holder) == "claimed 0"
    assert holder.stdin is not None
    holder.stdin.close()
    got = until(lambda: isinstance(found := claim(1, ["0"], "me", tmp_path), Claim) and found, "the GPU")
    let_go(got)


# --- what Slurm sets on a node
