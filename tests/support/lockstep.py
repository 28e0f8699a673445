"""A program of a lock-step training job, whose hosts are slowed in tests: each step reads, computes and sums gradients.

Arguments: a file of this host that each step reads a part of, not from a cache; kilobytes that are read in a step;
seconds of a step in which no CPU works, as while a GPU computes; how often each layer is computed in a step.
"""

# mypy: ignore-errors
import os
import signal
import sys
import time

import numpy as np
import tensorflow as tf

import gridtf

tf.config.threading.set_intra_op_parallelism_threads(2)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
PATH, SIZE, DEVICE, TIMES = sys.argv[1], int(sys.argv[2]) << 10, float(sys.argv[3]), int(sys.argv[4])
WIDTH, ROWS = 384, 192


def read():
    """Batches; the file is not kept in the page cache."""
    file = os.open(PATH, os.O_WRONLY | os.O_CREAT)
    if not os.fstat(file).st_size:
        os.write(file, os.urandom(64 << 20))
        os.fsync(file)
    os.close(file)
    file = os.open(PATH, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    generator, at = np.random.default_rng(0), 0
    while True:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.pread(file, SIZE, at)
        at = (at + SIZE) % (64 << 20)
        yield generator.standard_normal((ROWS, WIDTH), np.float32)


def dataset(_):
    shape = tf.TensorSpec((ROWS, WIDTH), tf.float32)
    return tf.data.Dataset.from_generator(read, output_signature=shape).prefetch(2)


batches = iter(strategy.distribute_datasets_from_function(dataset))
with strategy.scope():
    layers = [tf.Variable(tf.random.normal((WIDTH, WIDTH), stddev=0.05, seed=n)) for n in range(4)]


@tf.function
def train_step(batch):
    def step(x):
        with tf.GradientTape() as tape:
            y = x
            for _ in range(TIMES):
                for layer in layers:
                    y = tf.nn.relu(tf.matmul(y, layer))
            loss = tf.reduce_mean(tf.square(y - x))
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce(tf.distribute.ReduceOp.MEAN, tape.gradient(loss, layers))
        for layer, gradient in zip(layers, gradients, strict=True):
            layer.assign_sub(0.001 * gradient)
        return loss

    return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(step, args=(batch,)), axis=None)


begin, number = time.monotonic(), 0
while time.monotonic() < begin + float(os.environ.get("SECONDS_OF_TRAINING", "3600")):
    loss = float(train_step(next(batches)))
    number += 1
    gridtf.progress(number, loss=loss)
    time.sleep(DEVICE)
    if number % 20 == 0:
        print(number, round(time.monotonic() - begin, 1), flush=True)
