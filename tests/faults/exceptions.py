"""Programs that an exception ends, each with what the reason of the verdict must say of it, behind task and host.

All of them are run by one Python that has imported TensorFlow (tests/local/test_exceptions.py). docs/reference.md shows
them (scripts/faulttables.py). Faults of other kinds: programs.py.
"""

from __future__ import annotations

from gridtf.values import Fields

# For each folder of its arguments, a fork of it runs the train.py there as a task does, and prints into the file log.
RUNNER = """\
import os, runpy, sys
import tensorflow
for folder in sys.argv[1:]:
    if os.fork() == 0:
        os.chdir(folder)
        os.environ["GRIDTF_LOCAL_DIR"] = folder
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1), os.dup2(log, 2)
        sys.argv = ["train.py"]
        try:
            runpy.run_path("train.py", run_name="__main__")
        except Exception:
            sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(1)  # TensorFlow, if it was not told to stop its threads, sometimes hangs at the end
    os.wait()
"""


class Raising(Fields):
    """A program that an exception ends.

    Attributes:
        what: What happens.
        line: The exception, as in firstlines.py.
        program: Its lines.
        hint: The beginning of the hint of the verdict.
    """

    what: str
    line: str
    program: str
    hint: str = ""


def _layers(keras: str) -> str:
    """A model with a layer in a layer, which raises."""
    return f"""\
import {keras} as keras, numpy as np

class Inner(keras.layers.Layer):
    def call(self, x):
        raise ValueError("bad label 11")

class Outer(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def call(self, x):
        return self.inner(x)

model = keras.Sequential([Outer()])
model.compile("sgd", "mse")
"""


_FIT = "model.fit(np.ones((8, 3)), np.ones((8, 1)), verbose=0)\n"
_CLUSTER = """\
import socket
import tensorflow as tf

def port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]

cluster = tf.train.ClusterSpec({name: [f"127.0.0.1:{port()}"] for name in ("worker", "ps", "chief")})
servers = [tf.distribute.Server(cluster, job_name=name, task_index=0) for name in ("worker", "ps")]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type="chief", task_id=0, rpc_layer="grpc")
coordinator = tf.distribute.coordinator.ClusterCoordinator(tf.distribute.ParameterServerStrategy(resolver))

"""

EXCEPTIONS = (
    Raising(
        "a `tf.function` raises",
        "ValueError: bad label 11 (train.py:6)",
        """\
import tensorflow as tf

@tf.function
def step(label):
    if label.shape == ():
        raise ValueError("bad label 11")

step(tf.constant(1))
""",
    ),
    Raising(
        "a function raises that a `tf.function` calls in a loop",
        "KeyError: 'no label' (train.py:4)",
        """\
import tensorflow as tf

def check(label):
    raise KeyError("no label")

@tf.function
def step(label):
    for _ in tf.range(3):
        check(label)

step(tf.constant(1))
""",
    ),
    Raising(
        "a `tf.function` raises an exception of the program's own",
        "BadLabel: bad label 11 in a.csv (train.py:9)",
        """\
import tensorflow as tf

class BadLabel(Exception):
    def __init__(self, label, file):
        super().__init__(f"bad label {label} in {file}")

@tf.function
def step(x):
    raise BadLabel(11, "a.csv")

step(tf.constant(1))
""",
    ),
    Raising(
        "shapes do not fit in a `tf.function`",
        "ValueError: Dimensions must be equal, but are 5 and 3 for … with input shapes: [4,5], [3,2]. (train.py:5)",
        """\
import tensorflow as tf

@tf.function
def step(x):
    return tf.matmul(x, tf.ones((3, 2)))

step(tf.ones((4, 5)))
""",
    ),
    Raising(
        "a name is bound in one branch of a `tf.function` alone",
        "ValueError: 'y' must also be initialized in the else branch (train.py:5)",
        """\
import tensorflow as tf

@tf.function
def step(x):
    if x > 0:
        y = 1
    return y

step(tf.constant(1))
""",
    ),
    Raising(
        "an index is out of range while a `tf.function` runs",
        "InvalidArgumentError: indices = 7 is not in [0, 3) (train.py:5)",
        """\
import tensorflow as tf

@tf.function
def step(x, index):
    return tf.gather(x, index)

step(tf.ones((3,)), tf.constant(7))
""",
    ),
    Raising(
        "`check_numerics` in a `tf.function`",
        "InvalidArgumentError: loss is no number : Tensor had Inf values (train.py:5)",
        """\
import tensorflow as tf

@tf.function
def step(x):
    return tf.debugging.check_numerics(x / 0.0, "loss is no number")

step(tf.constant(1.0))
""",
    ),
    Raising(
        "`tf.py_function` raises in a `tf.function`",
        "ValueError: bad value 3 (train.py:4)",
        """\
import tensorflow as tf

def check(x):
    raise ValueError(f"bad value {x}")

@tf.function
def step(x):
    return tf.py_function(check, [x], tf.float32)

step(tf.constant(3))
""",
    ),
    Raising(
        "a step raises that a strategy runs",
        "ValueError: bad label 11 (train.py:6)",
        """\
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy(["/cpu:0"])

def step(x):
    raise ValueError("bad label 11")

@tf.function
def train(x):
    return strategy.run(step, args=(x,))

train(tf.constant(1))
""",
    ),
    Raising(
        "shapes do not fit outside of a `tf.function`",
        "InvalidArgumentError: Matrix size-incompatible: In[0]: [4,5], In[1]: [3,2] (train.py:3)",
        """\
import tensorflow as tf

tf.matmul(tf.ones((4, 5)), tf.ones((3, 2)))
""",
    ),
    Raising(
        "an operation fails in a session of TensorFlow 1",
        "InvalidArgumentError: loss : Tensor had Inf values (train.py:5)",
        """\
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
x = tf.placeholder(tf.float32, (None,))
y = tf.check_numerics(x / 0.0, "loss")
with tf.Session() as session:
    session.run(y, {x: [1.0]})
""",
    ),
    Raising(
        "an operation that the process does not know",
        "NotFoundError: 'NoSuch' is neither a type of a primitive operation … (train.py:4)",
        """\
from tensorflow.python.eager import context, execute

context.ensure_initialized()
execute.execute(b"NoSuch", 1, [], None, context.context())
""",
        hint="a task that gridtf serves knows no operations of other packages: ",
    ),
    Raising(
        "a layer of Keras 3 raises",
        "ValueError: bad label 11 (train.py:5)",
        """\
import keras, numpy as np

class Odd(keras.layers.Layer):
    def call(self, x):
        raise ValueError("bad label 11")

keras.Sequential([Odd()])(np.ones((2, 3)))
""",
    ),
    Raising(
        "a layer in a layer of Keras 3 raises in `fit`",
        "ValueError: bad label 11 (train.py:5)",
        _layers("keras") + _FIT,
    ),
    Raising(
        "a layer of Keras 3 raises in a `tf.function`",
        "ValueError: bad label 11 (train.py:5)",
        f"""\
{_layers("keras")}
import tensorflow as tf

@tf.function
def step(x):
    return model(x)

step(tf.ones((2, 3)))
""",
    ),
    Raising(
        "a batch does not fit a layer of Keras 3",
        "ValueError: Input 0 with name 'None' of layer 'dense' is incompatible with the layer: … (train.py:4)",
        """\
import keras, numpy as np

model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
model(np.ones((2, 5)))
""",
    ),
    Raising(
        "a `train_step` of Keras 3 raises",
        "RuntimeError: no gradients (train.py:5)",
        f"""\
import keras, numpy as np

class Model(keras.Sequential):
    def train_step(self, data):
        raise RuntimeError("no gradients")

model = Model([keras.layers.Dense(1)])
model.compile("sgd", "mse")
{_FIT}""",
    ),
    Raising(
        "a label is out of range in `fit` of Keras 3",
        "InvalidArgumentError: Received a label value of 11 which is outside the valid range of [0, 3).  Label values: "
        "11 11 11 11 11 11 11 11 (train.py:5)",
        """\
import keras, numpy as np

model = keras.Sequential([keras.layers.Dense(3)])
model.compile("sgd", "sparse_categorical_crossentropy")
model.fit(np.ones((8, 3)), np.full(8, 11), verbose=0)
""",
    ),
    Raising(
        "a callback raises in `fit` of Keras 3",
        "OSError: no room for the checkpoint (train.py:5)",
        f"""\
import keras, numpy as np

class Bad(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise OSError("no room for the checkpoint")

model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
{_FIT.replace("verbose", "callbacks=[Bad()], verbose")}""",
    ),
    Raising(
        "a layer of tf_keras raises",
        "ValueError: bad label 11 (train.py:5)",
        f"{_layers('tf_keras')}model(np.ones((2, 3)))\n",
    ),
    Raising(
        "a layer in a layer of tf_keras raises in `fit`",
        "ValueError: bad label 11 (train.py:5)",
        _layers("tf_keras") + _FIT,
    ),
    Raising(
        "labels do not fit the loss in `fit` of tf_keras",
        "ValueError: Shapes (None, 5) and (None, 3) are incompatible (train.py:5)",
        """\
import tf_keras, numpy as np

model = tf_keras.Sequential([tf_keras.layers.Dense(3)])
model.compile("sgd", "categorical_crossentropy")
model.fit(np.ones((8, 3)), np.ones((8, 5)), verbose=0)
""",
    ),
    Raising(
        "a function raises in `map` of a dataset",
        "ValueError: no decoder (train.py:4)",
        """\
import tensorflow as tf

def decode(x):
    raise ValueError("no decoder")

tf.data.Dataset.range(3).map(decode)
""",
    ),
    Raising(
        "`tf.py_function` raises in `map`",
        "ValueError: bad record 11 (train.py:4)",
        """\
import tensorflow as tf

def load(x):
    raise ValueError("bad record 11")

for _ in tf.data.Dataset.range(3).map(lambda x: tf.py_function(load, [x], tf.float32)):
    pass
""",
    ),
    Raising(
        "`tf.numpy_function` raises in `map`",
        "KeyError: 'b' (train.py:4)",
        """\
import tensorflow as tf

def load(x):
    return {"a": 1}["b"]

for _ in tf.data.Dataset.range(3).map(lambda x: tf.numpy_function(load, [x], tf.float32)):
    pass
""",
    ),
    Raising(
        "the generator of a dataset raises",
        "OSError: the file is cut off (train.py:5)",
        """\
import tensorflow as tf

def records():
    yield 1.0
    raise OSError("the file is cut off")

for _ in tf.data.Dataset.from_generator(records, tf.float32):
    pass
""",
    ),
    Raising(
        "a record of a dataset cannot be parsed",
        "InvalidArgumentError: Could not parse example input, value: 'nonsense' (train.py:6)",
        """\
import tensorflow as tf

def parse(record):
    return tf.io.parse_single_example(record, {"x": tf.io.FixedLenFeature([], tf.float32)})

for _ in tf.data.Dataset.from_tensors(b"nonsense").map(parse):
    pass
""",
    ),
    Raising(
        "`tf.py_function` raises in the dataset that `fit` of Keras 3 reads",
        "ValueError: bad record 11 (train.py:4)",
        """\
import keras, tensorflow as tf

def load(x):
    raise ValueError("bad record 11")

def decode(x):
    return tf.ensure_shape(tf.py_function(load, [x], tf.float32), (3,)), 1.0

model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(tf.data.Dataset.range(8).map(decode).batch(2), verbose=0)
""",
    ),
    Raising(
        "a function raises that a ClusterCoordinator schedules",
        "ValueError: bad label 11 (train.py:16)",
        f"""\
{_CLUSTER}@tf.function
def step():
    raise ValueError("bad label 11")

coordinator.schedule(step)
coordinator.join()
""",
    ),
    Raising(
        "an operation fails on a worker of a ClusterCoordinator",
        "InvalidArgumentError: indices = 7 is not in [0, 3) (train.py:16)",
        f"""\
{_CLUSTER}@tf.function
def step(index):
    return tf.gather(tf.ones((3,)), index)

coordinator.schedule(step, args=(tf.constant(7),))
coordinator.join()
""",
    ),
    Raising(
        "`tf.py_function` raises in a dataset of a ClusterCoordinator",
        "ValueError: bad record 11 (train.py:15)",
        f"""\
{_CLUSTER}def load(x):
    raise ValueError("bad record 11")

def records():
    return tf.data.Dataset.range(3).map(lambda x: tf.py_function(load, [x], tf.float32))

@tf.function
def step(iterator):
    return next(iterator)

coordinator.schedule(step, args=(iter(coordinator.create_per_worker_dataset(records)),))
coordinator.join()
""",
    ),
    Raising(
        "an exception is raised from another one",
        "RuntimeError: cannot read the record (train.py:5), caused by KeyError: 'label' (train.py:3)",
        """\
def load():
    try:
        {}["label"]
    except KeyError as error:
        raise RuntimeError("cannot read the record") from error

load()
""",
    ),
    Raising(
        "an exception is raised while another one is handled",
        "FileNotFoundError: … '/nonexistent/log' (train.py:4), while handling ValueError: bad label 11 (train.py:2)",
        """\
try:
    raise ValueError("bad label 11")
finally:
    open("/nonexistent/log")
""",
    ),
    Raising(
        "an exception is raised from `None`",
        "RuntimeError: cannot read the record (train.py:4)",
        """\
try:
    {}["label"]
except KeyError:
    raise RuntimeError("cannot read the record") from None
""",
    ),
    Raising(
        "exceptions are each other's cause",
        "ValueError: one (train.py:3), caused by KeyError: 'other'",
        """\
one, other = ValueError("one"), KeyError("other")
one.__cause__, other.__cause__ = other, one
raise one
""",
    ),
    Raising(
        "a group of exceptions",
        "ExceptionGroup: 2 files are bad (2 sub-exceptions) (train.py:10), first of them ValueError: bad label 11 "
        "(train.py:2)",
        """\
def load(number):
    raise ValueError(f"bad label {number}")

def tried(number):
    try:
        load(number)
    except ValueError as error:
        return error

raise ExceptionGroup("2 files are bad", [tried(11), tried(12)])
""",
    ),
    Raising(
        "an exception whose `__str__` raises `SystemExit`",
        "Odd: <exception str() failed> (train.py:7)",
        """\
class Odd(Exception):
    def __str__(self):
        raise SystemExit(0)

    __repr__ = __str__

raise Odd
""",
    ),
    Raising("a message of 1 MiB", f"ValueError: {'x' * 300}… (train.py:1)", 'raise ValueError("x" * (1 << 20))\n'),
    Raising(
        "a `tf.function` raises with a tensor of 1 MB in the message",
        "ValueError: bad values: (train.py:5)",
        """\
import numpy as np, tensorflow as tf

@tf.function
def step(x):
    raise ValueError("bad values:\\n" + np.array2string(np.zeros((20000, 10)), threshold=1 << 20))

step(tf.constant(1))
""",
    ),
)
