"""What the jobs of `gridtf doctor --conformance` run: each function is the entry of all tasks of a job."""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

from gridtf.contract import Task
from gridtf.reporting import progress
from gridtf.training.context import Context

MARK = "trial "  # before the JSON that a task prints; it is empty where a task begins
MESSAGE = "a task of this trial has to fail"
_VALUES = 1 << 20  # of a vector that is summed: 4 MiB
_PAUSE = 0.2  # seconds between two steps of a task that waits for its end


def train(context: Context) -> None:
    """A step of a Keras model on all tasks, and the sum of a vector over them."""
    _train(context.task, "RING")


def nccl(context: Context) -> None:
    """As train, by NCCL."""
    _train(context.task, "NCCL")


def wrong(context: Context) -> None:
    """The last task fails, the others wait."""
    if context.task.rank == (context.task.world_size or 1) - 1:
        raise ValueError(MESSAGE)
    _wait(context)


def again(context: Context) -> None:
    """The first task fails once."""
    if context.task.attempt == 1:
        if context.task.rank == 0:
            sys.exit(3)
        _wait(context)


def save(context: Context) -> None:
    """Train until a checkpoint is requested; what goes on from one is done."""
    from gridtf.training.checkpoints import checkpoint

    _, model, optimizer, step = _model("RING")
    saved = checkpoint(model, optimizer)
    restored = saved.step
    _tell(step=restored, weight=_weight(model))
    while not restored:
        step(1.0)
        saved.after_step()
        time.sleep(_PAUSE)


def wait(context: Context) -> None:
    """Make progress until the job is ended."""
    _wait(context)


def _wait(context: Context) -> None:
    begin = time.monotonic()
    while True:
        progress(int(time.monotonic() - begin))
        time.sleep(_PAUSE)


def _train(task: Task, implementation: str) -> None:
    _tell()
    import tensorflow as tf

    strategy, model, _, step = _model(implementation)
    own = float((task.rank or 0) + 1)
    step(own)

    def summed() -> Any:
        everywhere = tf.distribute.get_replica_context()
        return everywhere.all_reduce(tf.distribute.ReduceOp.SUM, tf.fill([_VALUES], own))

    total = strategy.experimental_local_results(tf.function(lambda: strategy.run(summed))())[0]
    gpus = tf.config.list_physical_devices("GPU")
    names = [str(tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)) for gpu in gpus]
    _tell(
        tensorflow=tf.__version__,
        keras=tf.keras.__version__,
        gpus=names,
        uuids=_uuids() if gpus else [],
        weight=_weight(model),
        sums=[float(tf.reduce_min(total)), float(tf.reduce_max(total))],
    )


def _model(implementation: str) -> tuple[Any, Any, Any, Any]:
    """A strategy over all tasks, a model with the weight 0, its optimizer, and a function that makes a step with this
    task's part of the batch: the gradient is the sum of the parts."""
    import tensorflow as tf

    communication = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(implementation=getattr(communication, implementation))
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
        model.build((None, 1))
        optimizer = tf.keras.optimizers.SGD(1.0)

    def step(part: Any) -> None:
        def each(part: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(part))
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        strategy.run(each, args=(part,))

    traced = tf.function(step)
    return strategy, model, optimizer, lambda part: traced(tf.constant([[part]]))


def _weight(model: Any) -> float:
    return float(model.get_weights()[0][0][0])


def _uuids() -> list[str]:
    """The GPUs of this process, as CUDA's driver tells them, whatever variables say."""
    driver, uuids = ctypes.CDLL("libcuda.so.1"), []
    count, device, uuid = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(16)
    driver.cuInit(0)
    driver.cuDeviceGetCount(ctypes.byref(count))
    for number in range(count.value):
        driver.cuDeviceGet(ctypes.byref(device), number)
        driver.cuDeviceGetUuid(uuid, device)
        uuids.append(uuid.raw.hex())
    return uuids


def _tell(**about: object) -> None:
    print(f"{MARK}{json.dumps(about)}", flush=True)
