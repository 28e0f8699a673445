"""Export of a trained model as a SavedModel, which TensorFlow loads without gridtf and without the model's code."""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from gridtf import contract
from gridtf.errors import GridtfError, UsageError
from gridtf.training import savedmodel


def export(model: Any, path: str | Path = "export") -> Path:
    """Export a model as a SavedModel. The chief writes it, beside ``path``, and renames it when it is complete.

    Every task may call it. With a model of MultiWorkerMirroredStrategy every task must, since reading the variables may
    take all of them; the copies of the others are thrown away. With another model they do nothing. The variables of a
    ParameterServerStrategy are written by the parameter servers: ``path`` has to be in a folder that all hosts share.

    The SavedModel names no device and no host, so that any machine can load it::

        model = tf.saved_model.load(path)
        outputs = model.serve(x)                                   # a Keras model
        outputs = model.signatures["serving_default"](x=x)         # any model; x is the name of an input

    Args:
        model: A Keras model (Keras 3 or tf_keras) that is built, or a ``tf.Module`` with at least one ``tf.function``
            that has an input signature.
        path: The folder to write, relative to OUTPUT_DIR (outside of gridtf, to ``output``). A SavedModel of that name
            is replaced.

    Returns:
        The absolute path of the folder, on every task.

    Raises:
        UsageError: For another kind of model or path.
        GridtfError: For a model that is not built, that cannot be traced, or that a program without its code could not
            use, since it calls Python functions; and when the folder cannot be written.
    """
    target = savedmodel.checked(contract.output_dir() / path)
    name = str(getattr(model, "name", "") or type(model).__name__)
    writer = _writer(model, name)
    if contract.leads():
        savedmodel.write(target, lambda folder: _save(model, name, writer, folder))
    elif _takes_all(model):
        with tempfile.TemporaryDirectory() as scratch:
            _save(model, name, writer, Path(scratch, "copy"))
    return target


def export_session(
    session: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any], path: str | Path = "export"
) -> Path:
    """Export the model of a TensorFlow 1 session as a SavedModel. Only the chief calls it.

    The values of the variables are written into the graph as constants: together they must be smaller than 2 GB, the
    limit of a graph. The session's own graph is not changed; it may be finalized.

    Args:
        session: The session, such as that of ``training.session`` or of a Supervisor.
        inputs: Name of an input -> placeholder.
        outputs: Name of an output -> tensor.
        path: As for ``export``.

    Returns:
        The absolute path of the folder. ``tf.saved_model.load(path).signatures["serving_default"]`` is the model.

    Raises:
        UsageError: For another kind of path, and when an output depends on a placeholder that is no input.
        GridtfError: When an output depends on Python functions, and when the folder cannot be written.
    """
    v1 = tf.compat.v1
    target = savedmodel.checked(contract.output_dir() / path)
    if hasattr(session, "run_step_fn"):  # a MonitoredSession: reading the variables is not a step
        session = session.run_step_fn(lambda step_context: step_context.session)
    wanted = [tensor.op.name for tensor in outputs.values()]
    frozen = v1.graph_util.convert_variables_to_constants(session, session.graph.as_graph_def(), wanted)
    given = {tensor.op.name for tensor in inputs.values()}
    for node in frozen.node:
        if node.op == "Placeholder" and node.name not in given:
            what = f"cannot export {', '.join(wanted)}: it depends on the placeholder {node.name}, which is no input"
            raise UsageError(what, hint="add it to inputs, or make it a v1.placeholder_with_default")

    def save(folder: Path) -> None:
        with tf.Graph().as_default() as graph, v1.Session() as fresh:
            tf.import_graph_def(frozen, name="")
            signature = v1.saved_model.predict_signature_def(
                *({name: graph.get_tensor_by_name(at.name) for name, at in ends.items()} for ends in (inputs, outputs))
            )
            builder = v1.saved_model.Builder(str(folder))
            builder.add_meta_graph_and_variables(fresh, ["serve"], {"serving_default": signature})
            builder.save()
        _finish(folder, ", ".join(wanted), ())

    savedmodel.write(target, save)
    return target


def _writer(model: Any, name: str) -> Callable[[str], object]:
    """What writes this kind of model into a folder."""
    if hasattr(model, "export") and hasattr(model, "built"):  # a model of Keras 3 or of tf_keras
        if not model.built:
            raise GridtfError(
                f"cannot export {name}: the model is not built, so its inputs are not known",
                hint="call it on one batch before, or model.build((None, 64)) with the shape of its inputs",
            )
        return model.export  # type: ignore[no-any-return]
    if isinstance(model, tf.Module):
        return lambda folder: tf.saved_model.save(model, folder)
    what = f"training.export takes a Keras model or a tf.Module, not a value of type {type(model).__name__}"
    hint = "for a session: training.export_session(session, inputs, outputs, path)" if hasattr(model, "run") else ""
    raise UsageError(what, hint=hint)


def _takes_all(model: Any) -> bool:
    """Whether all tasks have to read the model's variables together."""
    for variable in model.variables:
        value = getattr(variable, "value", variable)  # Keras 3: the tf.Variable inside; tf.Variable: a method
        strategy = getattr(variable if callable(value) else value, "distribute_strategy", None)
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return True
    return False


def _save(model: Any, name: str, writer: Callable[[str], object], folder: Path) -> None:
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # Keras prints half a page on the temporary folder
            writer(str(folder))
    except OSError:
        raise
    except tf.errors.OpError as error:  # TensorFlow's own writers
        raise OSError(error.message) from error
    except Exception as error:  # of the model's code, which is traced, or of Keras
        layer = _layer_in(error)
        raise GridtfError(
            f"cannot export {name}" + (f": its layer {layer} cannot be traced" if layer else ""),
            why=_reason(error),
            hint="its code must work in a tf.function; try: tf.function(model)(x)" if layer else "",
        ) from error
    _finish(folder, name, [layer.name for layer in getattr(model, "layers", ())])


def _finish(folder: Path, name: str, layers: Iterable[str]) -> None:
    """Check the SavedModel in a folder, and take the devices out of it."""
    graph = folder / savedmodel.GRAPH
    saved = saved_model_pb2.SavedModel.FromString(graph.read_bytes())
    savedmodel.check(saved, name, layers)
    savedmodel.clear_devices(saved)
    graph.write_bytes(saved.SerializeToString())
    (folder / "fingerprint.pb").unlink(missing_ok=True)  # that of the graph with devices; a SavedModel needs none


def _layer_in(error: BaseException) -> str:
    """The innermost Keras layer in whose code an exception was raised; empty if there is none."""
    name, trace = "", error.__traceback__
    while trace:
        owner = trace.tb_frame.f_locals.get("self")
        if owner is not None and hasattr(owner, "add_weight") and not hasattr(owner, "export"):
            name = str(owner.name)
        trace = trace.tb_next
    return name


def _reason(error: BaseException) -> str:
    """The line of an exception's message that says what is wrong; Keras and AutoGraph write pages around it."""
    text = re.sub(r"\x1b\[[\d;]*m", "", str(error))  # colours
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    kind = type(error).__name__
    named = [line for line in lines if line.startswith(f"{kind}: ")]
    return named[-1] if named else f"{kind}: {next((line for line in lines if not line.endswith('.call().')), '')}"
