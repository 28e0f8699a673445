"""SavedModels as files and messages: written beside and renamed, without devices, checked. Does not import TensorFlow.

The messages (saved_model.proto of TensorFlow) are changed in place by whoever imports TensorFlow: training/exports.py.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from gridtf.errors import GridtfError, UsageError

GRAPH = "saved_model.pb"
_FILES = {".keras", ".h5", ".hdf5", ".tflite", ".pb"}
_IN_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}  # these call back into the process that made the graph
_NO_SIGNATURE = "__saved_model_init_op"  # in every SavedModel


def checked(target: Path) -> Path:
    """Check where a SavedModel is to be written.

    Args:
        target: The folder.

    Returns:
        The same path.

    Raises:
        UsageError: When its name is that of a file, or when something else than a SavedModel is there.
        GridtfError: When the folder that it is to be in cannot be searched.
    """
    if target.suffix in _FILES:
        what = f"training.export writes a folder, a SavedModel, not a {target.suffix} file: {target.name}"
        raise UsageError(what, hint=f"write: training.export(model, {target.stem!r})")
    try:
        free = not target.exists() or (target.is_dir() and not any(target.iterdir()))
        free = free or (target / GRAPH).exists()
    except OSError as error:
        raise _cannot_write(target, error) from error
    if not free:
        raise UsageError(f"{target} exists and is not a SavedModel", hint="choose another path for the export")
    return target


def write(target: Path, save: Callable[[Path], None]) -> None:
    """Write a SavedModel beside its place and rename it: readers see the old one, none for a moment, or the new one.

    Args:
        target: Its place.
        save: Writes it into a folder that does not exist yet.

    Raises:
        GridtfError: When it cannot be written.
    """
    fresh, old = (target.with_name(f".{target.name}.{kind}.tmp") for kind in ("new", "old"))
    try:
        for rest in (fresh, old):  # of a task that was killed
            shutil.rmtree(rest, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        save(fresh)
        if target.exists():
            target.rename(old)
        try:
            fresh.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
    except OSError as error:
        raise _cannot_write(target, error) from error
    finally:
        for rest in (fresh, old):
            shutil.rmtree(rest, ignore_errors=True)


def _cannot_write(target: Path, error: OSError) -> GridtfError:
    hint = "make room there or permit it, or pass the absolute path of another folder"
    return GridtfError(f"cannot write {target}: {error.strerror or error}", hint=hint)


def check(saved: Any, name: str, layers: Iterable[str]) -> None:
    """Check that a program without the model's code can use a SavedModel.

    Args:
        saved: A ``SavedModel`` message.
        name: The model's name, for errors.
        layers: Names of its layers.

    Raises:
        GridtfError: When it calls Python functions, or when none of its functions can be called.
    """
    for node in nodes(saved):
        if node.op in _IN_PYTHON:
            layer = layer_of(node.name, layers)
            raise GridtfError(
                f"cannot export {name}: {f'its layer {layer}' if layer else node.name} calls a Python function",
                why=f"a SavedModel holds operations of TensorFlow only; {node.name} is of type {node.op}",
                hint="write it with operations of TensorFlow, or export the model without it",
            )
    if not any(_callable(graph) for graph in saved.meta_graphs):
        raise GridtfError(
            f"cannot export {name}: none of its functions has an input signature, so none can be called",
            hint="write @tf.function(input_signature=[tf.TensorSpec([None, 64], tf.float32)]) above its method",
        )


def _callable(graph: Any) -> bool:
    functions = (item.function for item in graph.object_graph_def.nodes if item.WhichOneof("kind") == "function")
    return bool({*graph.signature_def} - {_NO_SIGNATURE}) or any(each.concrete_functions for each in functions)


def layer_of(node: str, layers: Iterable[str]) -> str:
    """The layer that a node of a graph belongs to.

    Args:
        node: Such as ``model/mine_1/EagerPyFunc``: TensorFlow numbers names that it sees again.
        layers: Names of the model's layers.

    Returns:
        The name of the layer; empty when none fits.
    """
    parts = {*node.split("/")[:-1]}
    unnumbered = {re.sub(r"_\d+$", "", part) for part in parts}
    fitting = sorted(({*layers} & (parts | unnumbered)), key=lambda layer: layer not in parts)
    return fitting[0] if fitting else ""


def clear_devices(saved: Any) -> None:
    """Take devices, and with them tasks and hosts, out of a SavedModel.

    Args:
        saved: A ``SavedModel`` message, which is changed.
    """
    for node in nodes(saved):
        node.device = ""
        if "config_proto" in node.attr:  # of a function call: the configuration of the process that traced it
            node.attr["config_proto"].s = b""
    for graph in saved.meta_graphs:
        for item in graph.object_graph_def.nodes:
            if item.WhichOneof("kind") == "variable":
                item.variable.device = ""


def nodes(saved: Any) -> Iterator[Any]:
    """All nodes of a ``SavedModel`` message: those of its graphs and of their functions."""
    for graph in saved.meta_graphs:
        yield from graph.graph_def.node
        for function in graph.graph_def.library.function:
            yield from function.node_def
