"""Variables of models and optimizers: of Keras 3, tf_keras and TensorFlow itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gridtf.errors import GridtfError


def variables_of(model: Any) -> list[Any]:
    """The variables of a model or an optimizer, or of a list.

    Raises:
        GridtfError: When it is nothing with variables.
    """
    if isinstance(model, list | tuple):
        return list(model)
    found = getattr(model, "variables", getattr(model, "trainable_variables", None))
    if found is None:
        raise GridtfError(
            f"{type(model).__name__} has no variables",
            hint="it must be a Keras model, a tf.Module or a list of variables",
        )
    return list(found if isinstance(found, Iterable) else found())  # a method, in old optimizers


def built(model: Any, optimizer: Any) -> Any:
    """The optimizer of a model, with its variables, which Keras would make at the first step.

    Raises:
        GridtfError: Without an optimizer.
    """
    optimizer = optimizer or getattr(model, "optimizer", None)
    if optimizer is None:
        raise GridtfError(
            "optimizer_state=True, but no optimizer was attached", hint="write group.attach(model, optimizer)"
        )
    if not getattr(optimizer, "built", True):
        optimizer.build(model.trainable_variables)
    return optimizer


def floating(variables: Iterable[Any]) -> list[Any]:
    """Those of floating-point types, each once."""
    unique = {id(variable): variable for variable in variables}
    return [variable for variable in unique.values() if "float" in _dtype(variable)]


def describe(variable: Any) -> str:
    """Such as ``sequential/dense/kernel float32 [64, 10]``."""
    return f"{name_of(variable)} {_dtype(variable)} {list(variable.shape)}"


def name_of(variable: Any) -> str:
    """Its name with those of its layers."""
    return str(getattr(variable, "path", "") or variable.name)  # in Keras 3, names are those in the layer


def tensorflow_variable(variable: Any) -> Any:
    """The tf.Variable of a variable of Keras 3; others as they are."""
    return variable if hasattr(variable, "read_value") else variable.value


def _dtype(variable: Any) -> str:
    return str(getattr(variable.dtype, "name", variable.dtype))
