"""Variables of models and optimizers: of Keras 3, tf_keras and TensorFlow itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gridtf.errors import GridtfError


def variables_of(model: Any) -> list[Any]:
    """The variables of a model or an optimizer, or of a list. Metrics of Keras have others.

    Raises:
        GridtfError: When it is nothing with variables, or these are not TensorFlow's.
    """
    if isinstance(model, list | tuple):
        return list(model)
    if not hasattr(model, "variables") and not hasattr(model, "trainable_variables"):
        raise GridtfError(
            f"{type(model).__name__} has no variables",
            hint="it must be a Keras model, a tf.Module or a list of variables",
        )
    found = [*_own(model), *(_inside(vars(model), {id(model)}) if _is_module(model) else ())]
    own = {id(tensorflow_variable(variable)): variable for variable in found}
    if not all(hasattr(tensorflow_variable(variable), "read_value") for variable in found):
        raise GridtfError(
            f"the variables of {type(model).__name__} are not TensorFlow's: Keras has another backend",
            hint="save it by a callback of Keras, in every task, each into a file of its own",
        )
    return list(own.values())


def trainable_of(model: Any) -> list[Any]:
    """Those variables of a model that its optimizer changes."""
    return [each for each in variables_of(model) if each.trainable] if _is_module(model) else model.trainable_variables


def _own(thing: Any) -> Iterable[Any]:
    found = getattr(thing, "variables", getattr(thing, "trainable_variables", ()))
    return found() if callable(found) else found  # a method, in old optimizers


def _inside(thing: Any, seen: set[int]) -> Iterator[Any]:
    """The variables of what a tf.Module does not look into: objects of Keras 3, in lists and dicts too."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, Mapping) or _is_module(thing):
        items: Iterable[Any] = (thing if isinstance(thing, Mapping) else vars(thing)).values()
    elif isinstance(thing, list | tuple | set | frozenset):
        items = thing
    else:
        if hasattr(type(thing), "trainable_variables"):
            yield from _own(thing)
        elif type(thing).__name__ == "SeedGenerator":
            yield thing.state
        return
    for item in items:
        yield from _inside(item, seen)


def _is_module(thing: Any) -> bool:
    """Whether it is a plain tf.Module, which knows the tf.Variables and the tf.Modules that it holds, and no others.

    Its class is asked: a variable of a strategy looks for what it lacks in its value, which all workers must read.
    """
    return hasattr(type(thing), "submodules") and not hasattr(type(thing), "get_weights")


def seed_of(variable: Any) -> bool:
    """Whether it is the state of random numbers of Keras 3: a seed, and how many were drawn."""
    return str(getattr(variable, "name", "")) == "seed_generator_state"


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
        optimizer.build(trainable_of(model))
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
