"""Handwritten digits, turned and moved at random by data workers, with MultiWorkerMirroredStrategy."""

import argparse
import json
import os
import signal
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from gridtf.training import data


def digits():
    """The training digits and the held-out digits: (x, y), (x, y)."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.2, random_state=1, stratify=y)
    return (train_x, train_y), (test_x, test_y)


def prepare(x, y):
    """A digit, turned by up to 10 degrees and moved by up to half a pixel. It runs in the data workers."""
    angle, right, down = tf.unstack(tf.random.uniform([3], -1.0, 1.0) * [np.pi / 18, 0.5, 0.5])
    cos, sin = tf.cos(angle), tf.sin(angle)
    centre = 3.5
    left = centre - cos * centre + sin * centre + right
    top = centre - sin * centre - cos * centre + down
    moved = tf.raw_ops.ImageProjectiveTransformV3(
        images=tf.reshape(x, [1, 8, 8, 1]),
        transforms=[[cos, -sin, left, sin, cos, top, 0.0, 0.0]],
        output_shape=[8, 8],
        fill_value=0.0,
        interpolation="BILINEAR",
    )
    return tf.reshape(moved, [64]), y


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch_size", type=int, default=64, help="of all workers together")
    args = parser.parse_args()

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before the first tensor is made
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the strategy makes TensorFlow ignore it
    (train_x, train_y), (test_x, test_y) = digits()
    steps = len(train_x) // args.batch_size

    def dataset(context):
        digits = tf.data.Dataset.from_tensor_slices((train_x, train_y)).shuffle(len(train_x)).repeat()
        batches = digits.map(prepare, num_parallel_calls=tf.data.AUTOTUNE)
        batches = batches.batch(context.get_per_replica_batch_size(args.batch_size), drop_remainder=True)
        # Up to here in the data workers, from here on in this process. A batch goes to one of the workers, so nothing
        # is left to divide. In a job without data workers this line changes nothing.
        return data.distribute(batches).prefetch(tf.data.AUTOTUNE)

    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
        model.build((None, 64))
        optimizer = keras.optimizers.Adam(0.003)
        optimizer.build(model.trainable_variables)
        losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    @tf.function
    def train_step(batches):
        def step(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                # Gradients are summed over the workers, so the mean is that of the whole batch.
                loss = tf.nn.compute_average_loss(losses(y, model(x, training=True)), global_batch_size=args.batch_size)
            optimizer.apply(tape.gradient(loss, model.trainable_variables))
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=(next(batches),)), axis=None)

    batches = iter(strategy.distribute_datasets_from_function(dataset))
    for epoch in range(1, args.epochs + 1):
        loss = np.mean([train_step(batches) for _ in range(steps)])
        print(f"epoch {epoch} of {args.epochs}, loss {loss:.3f}", flush=True)

    accuracy = float(np.mean(np.argmax(model(test_x), axis=1) == test_y))
    if not strategy.cluster_resolver.task_id:  # None without a cluster
        print(f"accuracy on {len(test_x)} held-out digits: {accuracy:.3f}", flush=True)
        output_dir = Path(os.environ.get("OUTPUT_DIR", "output"))
        (output_dir / "result.json").write_text(json.dumps({"accuracy": accuracy, "epochs": args.epochs}))


if __name__ == "__main__":
    main()
