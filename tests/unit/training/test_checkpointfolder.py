"""The folder of checkpoints: what counts as finished, what a crash or a full disk leaves, what does not fit."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gridtf.errors import GridtfError
from gridtf.training import checkpointfolder as folders
from gridtf.training.checkpointfolder import Shapes, differences, newest, prune, superfluous, write

SHAPES: Shapes = {"model": [("dense/kernel", (64, 10)), ("dense/bias", (10,))], "optimizer": [("iteration", ())]}


def files(text: str = "weights") -> Callable[[str], None]:
    def written(prefix: str) -> None:
        Path(f"{prefix}.index").write_text("index")
        Path(f"{prefix}.data-00000-of-00001").write_text(text)

    return written


def save(folder: Path, *steps: int) -> None:
    for step in steps:
        write(folder, step, 0, 0, SHAPES, files())


def test_checkpoint_is_found_with_all_that_was_written(tmp_path: Path) -> None:
    assert newest(tmp_path / "none") == (None, [])
    path = write(tmp_path / "made", 7, 2, 3, SHAPES, files())
    found, skipped = newest(tmp_path / "made")
    assert found and not skipped
    assert (found.path, found.step, found.epoch, found.batch) == (path, 7, 2, 3)
    assert found.prefix == str(tmp_path / "made" / "step-7" / "variables")
    folders.need_fit(found, SHAPES)


def test_newest_checkpoint_is_that_of_most_steps_and_strangers_do_not_matter(tmp_path: Path) -> None:
    save(tmp_path, 90, 100, 9)
    for name in ("step-x", "step-200.tmp", "other", "step-300.removed"):
        (tmp_path / name).mkdir()
    found, skipped = newest(tmp_path)
    assert found and (found.step, skipped) == (100, [])


def test_checkpoint_that_a_crash_left_unfinished_is_skipped_and_named(tmp_path: Path) -> None:
    save(tmp_path, 10)

    class Killed(BaseException):
        """As if the process ended here: nothing is cleaned up."""

    def half(prefix: str) -> None:
        Path(f"{prefix}.data-00000-of-00001").write_text("half")
        raise Killed

    with pytest.raises(Killed):
        write(tmp_path, 20, 0, 0, SHAPES, half)
    found, skipped = newest(tmp_path)
    assert found and found.step == 10
    assert skipped == [f"{tmp_path}/step-20.unfinished was not finished"]
    save(tmp_path, 20)  # the next run comes to the same step
    assert sorted(os.listdir(tmp_path)) == ["step-10", "step-20"]


@pytest.mark.parametrize(
    ("damage", "how"),
    [
        (lambda path: (path / "checkpoint.json").unlink(), "checkpoint.json: No such file or directory"),
        (lambda path: (path / "checkpoint.json").write_text('{"step": 20, "fil'), "checkpoint.json cannot be read"),
        (lambda path: (path / "checkpoint.json").write_text('{"files": 3}'), "checkpoint.json cannot be read"),
        (lambda path: (path / "variables.index").unlink(), "variables.index: No such file or directory"),
        (lambda path: os.truncate(path / "variables.index", 2), "variables.index has 2 bytes, not 5"),
    ],
    ids=["no-record", "half-record", "other-record", "lost-file", "cut-file"],
)
def test_damaged_checkpoint_is_skipped_and_named(tmp_path: Path, damage: Callable[[Path], object], how: str) -> None:
    save(tmp_path, 10, 20)
    damage(tmp_path / "step-20")
    found, skipped = newest(tmp_path)
    assert found and found.step == 10
    assert skipped == [f"{tmp_path}/step-20 is damaged: {how}"]


def test_checkpoint_that_cannot_be_written_leaves_the_last_one_and_nothing_else(tmp_path: Path) -> None:
    save(tmp_path, 10)

    def full(prefix: str) -> None:
        Path(f"{prefix}.index").write_text("index")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, 20, 0, 0, SHAPES, full)
    assert os.listdir(tmp_path) == ["step-10"]


def test_damaged_checkpoint_is_replaced_when_its_step_is_reached_again(tmp_path: Path) -> None:
    save(tmp_path, 10)
    (tmp_path / "step-10" / "variables.index").unlink()
    write(tmp_path, 10, 0, 0, SHAPES, files("better"))
    assert os.listdir(tmp_path) == ["step-10"]
    assert (tmp_path / "step-10" / "variables.data-00000-of-00001").read_text() == "better"


def test_older_checkpoints_are_removed(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3, 10)
    (tmp_path / "step-2").rename(tmp_path / "step-2.unfinished")
    shutil.copytree(tmp_path / "step-1", tmp_path / "step-11.unfinished")
    shutil.copytree(tmp_path / "step-1", tmp_path / "step-4.removed")
    (tmp_path / "mine").mkdir()
    prune(tmp_path, 2)
    assert sorted(os.listdir(tmp_path)) == ["mine", "step-10", "step-11.unfinished", "step-3"]


def test_newer_damaged_checkpoint_does_not_take_the_place_of_one_to_keep(tmp_path: Path) -> None:
    save(tmp_path, 3, 5, 9)
    for step in (3, 9):
        (tmp_path / f"step-{step}" / "checkpoint.json").write_text("")
    save(tmp_path, 6)
    prune(tmp_path, 1)
    assert sorted(os.listdir(tmp_path)) == ["step-6", "step-9"]
    found, _ = newest(tmp_path)
    assert found and found.step == 6


def test_superfluous_checkpoints_never_include_those_to_keep() -> None:
    assert superfluous([], 3) == []
    assert superfluous(["step-9", "step-10", "step-100"], 3) == []
    assert superfluous(["step-9", "step-10", "step-100", "step-11"], 3) == ["step-9"]
    assert superfluous(["step-9.unfinished"], 1) == []  # perhaps it is all there is to look at


def test_folder_that_cannot_be_written_or_read_is_one_clear_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file" / "checkpoints"
    (tmp_path / "file").write_text("")
    with pytest.raises(GridtfError) as caught:
        folders.need_writable(blocked)
    assert caught.value.what == f"the folder of the checkpoints {blocked} cannot be written"
    assert caught.value.why == "Not a directory"
    assert "training.checkpoint(…, folder=…)" in caught.value.hint
    folders.need_writable(tmp_path / "new" / "checkpoints")
    assert os.listdir(tmp_path / "new" / "checkpoints") == []


def test_what_a_killed_process_of_the_same_number_has_left_does_not_make_the_folder_unwritable(tmp_path: Path) -> None:
    (tmp_path / f".writable-{os.getpid()}").mkdir()
    folders.need_writable(tmp_path)


def test_checkpoint_is_written_where_the_file_system_cannot_sync_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def refuse_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    save(tmp_path, 7)
    found, _ = newest(tmp_path)
    assert found and found.step == 7


def test_differences_name_variables_and_shapes() -> None:
    saved = SHAPES["model"]
    assert differences("model", saved, saved) == []
    # Keras numbers the names of its layers: only shapes in their order count
    assert differences("model", saved, [("dense_1/kernel", (64, 10)), ("dense_1/bias", (10,))]) == []
    assert differences("model", saved, [("dense/kernel", (64, 12)), ("dense/bias", (12,))]) == [
        "model: dense/kernel has shape (64, 12), in the checkpoint (64, 10)",
        "model: dense/bias has shape (12), in the checkpoint (10)",
    ]
    assert differences("model", saved, [("dense_1/kernel", (64, 10)), ("dense_1/bias", (9,))]) == [
        "model: dense_1/bias has shape (9), dense/bias in the checkpoint (10)"
    ]
    assert differences("model", saved, [*saved, ("more/kernel", (10, 2))]) == [
        "model: more/kernel (10, 2) is not in the checkpoint"
    ]
    assert differences("model", saved, saved[:1]) == ["model: the checkpoint also has dense/bias (10)"]
    assert differences("optimizer", None, [("iteration", ())]) == ["it has no optimizer"]


def test_checkpoint_of_another_model_does_not_fit(tmp_path: Path) -> None:
    save(tmp_path, 5)
    found, _ = newest(tmp_path)
    assert found
    folders.need_fit(found, {"model": SHAPES["model"]})  # without the optimizer, to predict or to evaluate
    with pytest.raises(GridtfError) as caught:
        folders.need_fit(found, {"model": [(f"layer_{number}/kernel", (3,)) for number in range(9)]})
    assert caught.value.what == f"the checkpoint {tmp_path}/step-5 does not fit this program"
    assert caught.value.why.startswith("model: layer_0/kernel (3) is not in the checkpoint; ")
    assert caught.value.why.endswith(", and 8 more")
    assert "folder=…" in caught.value.hint
