"""Handwritten digits with ParameterServerStrategy: this program is the chief, workers and ps need no code."""

import argparse
import json

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import gridtf
from gridtf.training import ClusterResolver


def digits():
    """The training digits and the held-out digits: (x, y), (x, y)."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.2, random_state=1, stratify=y)
    return (train_x, train_y), (test_x, test_y)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=32)
    args = parser.parse_args()

    strategy = tf.distribute.ParameterServerStrategy(ClusterResolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    (train_x, train_y), (test_x, test_y) = digits()

    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
        model.build((None, 64))
        optimizer = keras.optimizers.Adam(0.003)
        optimizer.build(model.trainable_variables)
        losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    @tf.function(reduce_retracing=True)
    def train_step(rows):
        def step(rows):
            x, y = tf.gather(train_x, rows), tf.gather(train_y, rows)  # every worker has all digits
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(losses(y, model(x, training=True)))
            optimizer.apply(tape.gradient(loss, model.trainable_variables))
            return loss

        return strategy.run(step, args=(rows,))

    random = np.random.default_rng(1)
    steps = len(train_x) // args.batch_size
    for epoch in range(1, args.epochs + 1):
        # Each step is told which digits are its own: in an epoch each is seen once, whichever worker is free or lost.
        batches = np.array_split(random.permutation(len(train_x)), steps)
        scheduled = [coordinator.schedule(train_step, args=(rows,)) for rows in batches]
        coordinator.join()
        loss = np.mean([value.fetch() for value in scheduled])
        print(f"epoch {epoch} of {args.epochs}, loss {loss:.3f}", flush=True)

    accuracy = float(np.mean(np.argmax(model(test_x), axis=1) == test_y))
    output_dir = gridtf.task().output_dir
    model.save(output_dir / "model.keras")
    print(f"accuracy on {len(test_x)} held-out digits: {accuracy:.3f}", flush=True)
    (output_dir / "result.json").write_text(json.dumps({"accuracy": accuracy, "epochs": args.epochs}))


if __name__ == "__main__":
    main()
