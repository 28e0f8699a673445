"""SavedModels without TensorFlow: where they are written, what is refused, which names are taken out."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gridtf.errors import GridtfError, UsageError
from gridtf.training.savedmodel import check, checked, clear_devices, layer_of, write


def node(name: str = "x", op: str = "MatMul", device: str = "", **attributes: bytes) -> Any:
    attr = {key: SimpleNamespace(s=value) for key, value in attributes.items()}
    return SimpleNamespace(name=name, op=op, device=device, attr=attr)


class Item:
    """A node of the object graph: ``Item("function", concrete_functions=[…])``."""

    def __init__(self, kind: str, **fields: Any) -> None:
        self._kind = kind
        setattr(self, kind, SimpleNamespace(**fields))

    def WhichOneof(self, _: str) -> str:
        return self._kind


def message(*nodes: Any, inner: tuple[Any, ...] = (), items: tuple[Item, ...] = (), signatures: str = "") -> Any:
    library = SimpleNamespace(function=[SimpleNamespace(node_def=[*inner])])
    graph = SimpleNamespace(
        graph_def=SimpleNamespace(node=[*nodes], library=library),
        object_graph_def=SimpleNamespace(nodes=[*items]),
        signature_def=dict.fromkeys(["__saved_model_init_op", *signatures.split()]),
    )
    return SimpleNamespace(meta_graphs=[graph])


def test_path_that_cannot_be_looked_up_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(GridtfError, match=r"cannot write .*: File name too long"):
        checked(tmp_path / (300 * "x"))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("op", ["PyFunc", "PyFuncStateless", "EagerPyFunc"])
def test_python_function_is_refused_with_its_layer(op: str, inside: bool) -> None:
    python = node("model_1/mine_2/call", op)
    saved = message(inner=(python,), signatures="s") if inside else message(python, signatures="s")
    with pytest.raises(GridtfError) as caught:
        check(saved, "model", ["dense", "mine"])
    assert str(caught.value).splitlines() == [
        "cannot export model: its layer mine calls a Python function",
        f"a SavedModel holds operations of TensorFlow only; model_1/mine_2/call is of type {op}",
        "write it with operations of TensorFlow, or export the model without it",
    ]


def test_python_function_outside_of_any_layer_is_named_by_its_node() -> None:
    with pytest.raises(GridtfError, match=r"^cannot export Net: preprocess/read calls a Python function"):
        check(message(node("preprocess/read", "PyFunc"), signatures="s"), "Net", [])


@pytest.mark.parametrize(
    "saved",
    [
        message(node(), signatures="serving_default"),
        message(node(), items=(Item("function", concrete_functions=["__inference_f"]),)),
    ],
    ids=["signature", "function"],
)
def test_model_that_can_be_called_is_accepted(saved: Any) -> None:
    check(saved, "model", [])


def test_model_without_any_signature_is_refused() -> None:
    items = (Item("function", concrete_functions=[]), Item("user_object", identifier="x"))
    with pytest.raises(GridtfError) as caught:
        check(message(node(), items=items), "Net", [])
    assert caught.value.what == "cannot export Net: none of its functions has an input signature, so none can be called"
    assert "@tf.function(input_signature=[tf.TensorSpec(" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model/dense/MatMul", "dense"),
        ("model_1/dense_1/MatMul", "dense_1"),  # itself, not dense that TensorFlow numbered
        ("model/mine_3/MatMul", "mine"),
        ("mine", ""),  # the name of the node is no scope
        ("model/other/MatMul", ""),
    ],
)
def test_layer_of_a_node(name: str, layer: str) -> None:
    assert layer_of(name, ["dense", "dense_1", "mine"]) == layer


def test_clear_devices_everywhere() -> None:
    here = "/job:worker/replica:0/task:0/device:GPU:0"
    variable = Item("variable", device=here)
    outer, inner = node(device=here), node(device=here, config_proto=b"\n\x0fhost-17:2222", f=b"kept")
    clear_devices(message(outer, inner=(inner,), items=(variable,)))
    assert outer.device == inner.device == variable.variable.device == ""  # type: ignore[attr-defined]
    assert inner.attr["config_proto"].s == b""
    assert inner.attr["f"].s == b"kept"


# --- the folder ---------------------------------------------------------------------------------------------------


def save(text: str) -> Any:
    def into(folder: Path) -> None:
        folder.mkdir()
        (folder / "saved_model.pb").write_text(text)

    return into


def test_write_makes_the_folders_above_and_replaces_an_older_export(tmp_path: Path) -> None:
    target = tmp_path / "models" / "digits"
    for text in ("old", "new"):
        write(checked(target), save(text))
    assert (target / "saved_model.pb").read_text() == "new"
    assert os.listdir(target.parent) == ["digits"]


def test_failed_write_leaves_the_older_export(tmp_path: Path) -> None:
    target = tmp_path / "digits"
    write(target, save("old"))
    (tmp_path / ".digits.new.tmp").mkdir()  # of a task that was killed

    def full(folder: Path) -> None:
        save("half")(folder)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(GridtfError) as caught:
        write(target, full)
    assert caught.value.what == f"cannot write {target}: No space left on device"
    assert (target / "saved_model.pb").read_text() == "old"
    assert os.listdir(tmp_path) == ["digits"]


def test_older_export_comes_back_when_the_new_one_cannot_take_its_place(tmp_path: Path) -> None:
    target = tmp_path / "digits"
    write(target, save("old"))
    with pytest.raises(GridtfError, match=r"^cannot write .*digits: No such file"):
        write(target, lambda _: None)  # wrote nothing
    assert (target / "saved_model.pb").read_text() == "old"


@pytest.mark.parametrize("name", ["model.keras", "weights.h5", "model.tflite"])
def test_file_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        checked(tmp_path / name)
    assert caught.value.hint == f"write: training.export(model, '{Path(name).stem}')"


def test_other_folders_and_files_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert checked(tmp_path / "data") == tmp_path / "data"  # empty
    (tmp_path / "data" / "set.csv").touch()
    for taken in (tmp_path / "data", tmp_path / "data" / "set.csv"):
        with pytest.raises(UsageError, match="exists and is not a SavedModel"):
            checked(taken)
