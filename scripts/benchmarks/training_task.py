"""The programs of `scripts/bench training`: python training_task.py PROGRAM [STEPS BETWEEN AVERAGES].

Every task writes the thread settings of its environment into OUTPUT_DIR, and the leader the steps per second.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
FEATURES, HIDDEN, CLASSES = 64, 512, 10
BATCH = 128  # of each worker
WARM, STEPS = 50, 300
AVERAGED_STEPS = 1000
PREPARATION = 0.010  # seconds of CPU for a batch


warm: list[float] = []  # when the program was, in seconds since the epoch


def tell(rate: float, **more: float) -> None:
    write("result", {"rate": rate, "warm": warm[-1] if warm else 0.0, **more})


def write(name: str, values: dict[str, Any]) -> None:
    Path(os.environ["OUTPUT_DIR"], f"{name}.json").write_text(json.dumps(values))


def rate(run: Callable[[int], Any]) -> float:
    """Steps per second of a function that makes so many steps, after a first call to warm up."""
    run(WARM)
    warm.append(time.time())
    begin = time.perf_counter()
    run(STEPS)
    return STEPS / (time.perf_counter() - begin)


def network(hidden: int = HIDDEN) -> Any:
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(hidden, activation="relu"), keras.layers.Dense(hidden, activation="relu")]
    model = keras.Sequential([*layers, keras.layers.Dense(CLASSES)])
    model.build((None, FEATURES))
    optimizer = keras.optimizers.Adam(0.003)
    optimizer.build(model.trainable_variables)
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def step(x: Any, y: Any) -> Any:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses(y, model(x, training=True)))
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss

    return model, step


def batches() -> Any:
    """Random examples, without end."""
    import tensorflow as tf

    x = tf.random.stateless_normal([8 * BATCH, FEATURES], [1, 2])
    y = tf.random.stateless_uniform([8 * BATCH], [3, 4], 0, CLASSES, tf.int32)
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(BATCH)


def mirrored() -> None:
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with strategy.scope():
        _, step = network()
    data = iter(strategy.distribute_datasets_from_function(lambda _: batches()))
    train = tf.function(lambda: strategy.run(step, args=next(data)))

    def run(steps: int) -> None:
        for _ in range(steps):
            loss = train()
        loss.numpy()

    found = rate(run)
    if strategy.cluster_resolver.task_id == 0:
        tell(found)


def coordinated() -> None:
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type != "chief":
        tf.distribute.Server(resolver.cluster_spec(), resolver.task_type, resolver.task_id).join()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        _, step = network()
    data = iter(coordinator.create_per_worker_dataset(batches))
    train = tf.function(lambda batches: strategy.run(step, args=next(batches)))

    def run(steps: int) -> None:
        for _ in range(steps):
            coordinator.schedule(train, args=(data,))
        coordinator.join()

    tell(rate(run))


def averaged(every: str) -> None:
    from gridtf import training

    group = training.averaging(every=int(every))
    import numpy as np
    import tensorflow as tf
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(x / 16, y, test_size=0.2, random_state=1, stratify=y)
    share = slice(group.rank, None, len(group.members))
    data = tf.data.Dataset.from_tensor_slices((train_x[share].astype("float32"), train_y[share]))
    model, step = network(hidden=64)
    group.attach(model)
    train = tf.function(step)
    for number, batch in enumerate(data.shuffle(len(train_x)).repeat().batch(32, drop_remainder=True)):
        if number == WARM:
            begin = time.perf_counter()
        if number == WARM + AVERAGED_STEPS:
            break
        train(*batch)
        group.step()
    found = AVERAGED_STEPS / (time.perf_counter() - begin)
    group.finish()
    if group.rank == 0:
        tell(found, accuracy=float(np.mean(np.argmax(model(test_x), axis=1) == test_y)))


def preparation(rounds: int) -> Callable[[Any], Any]:
    """A function that prepares a batch, with so many rounds of one thread's work."""
    import tensorflow as tf

    def more(number: Any, x: Any) -> Any:
        return number + 1, tf.tanh(tf.matmul(x, x))

    def prepare(number: Any) -> Any:
        x = tf.random.stateless_normal([FEATURES, FEATURES], [number, 1]) / FEATURES
        _, x = tf.while_loop(lambda done, _: done < rounds, more, (0, x))
        return x, tf.fill([FEATURES], tf.cast(number % CLASSES, tf.int32))

    return prepare


def calibrate() -> None:
    """Find the rounds that take PREPARATION seconds of CPU."""
    import tensorflow as tf

    rounds, elements = 500, 50
    data = iter(tf.data.Dataset.range(elements + 1).map(preparation(rounds)))
    next(data)
    begin = time.process_time()
    for _ in data:
        pass
    write("result", {"rounds": round(rounds * PREPARATION * elements / (time.process_time() - begin))})


def fed(rounds: str) -> None:
    # as schedulers bind a worker to its CPU; tf.data would prepare batches on all CPUs of the host
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import tensorflow as tf

    from gridtf import training

    data = tf.data.Dataset.range(1 << 40).map(preparation(int(rounds)))
    data = iter(training.data.distribute(data).prefetch(8))
    _, step = network(hidden=64)
    train = tf.function(step)

    def run(steps: int) -> None:
        for _ in range(steps):
            loss = train(*next(data))
        loss.numpy()

    tell(rate(run))


PROGRAMS: dict[str, Callable[..., None]] = {
    program.__name__: program for program in (mirrored, coordinated, averaged, calibrate, fed)
}

if __name__ == "__main__":
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    settings = {name: os.environ[name] for name in THREADS if name in os.environ}
    write(f"threads-{task['type']}-{task['index']}", settings)
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
