"""Handwritten digits by averaging: every task trains alone, and every 20 steps all models become their mean."""

import argparse
import json
import os
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from gridtf import training


def digits(shard, shards):
    """This task's share of the training digits, and the held-out digits: (x, y), (x, y)."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.2, random_state=1, stratify=y)
    return (train_x[shard::shards], train_y[shard::shards]), (test_x, test_y)


class Block(keras.layers.Layer):
    """A dense layer with batch normalization and dropout."""

    def __init__(self, width):
        super().__init__()
        self.dense = keras.layers.Dense(width, use_bias=False)
        self.norm = keras.layers.BatchNormalization()
        self.dropout = keras.layers.Dropout(0.1)

    def call(self, x, training=False):
        x = keras.ops.relu(self.norm(self.dense(x), training=training))
        return self.dropout(x, training=training)


class Classifier(keras.Model):
    """A subclassed model, with its blocks in a list."""

    def __init__(self):
        super().__init__()
        self.blocks = [Block(64), Block(64)]
        self.last = keras.layers.Dense(10)

    def call(self, x, training=False):
        for block in self.blocks:
            x = block(x, training=training)
        return self.last(x)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=32, help="of each task")
    parser.add_argument("--every", type=int, default=20, help="steps between two averages")
    args = parser.parse_args()

    # First of all: TensorFlow makes no connections once it is in use.
    group = training.averaging(every=args.every)

    (train_x, train_y), (test_x, test_y) = digits(group.rank, len(group.members))
    # The last batch of an epoch is smaller, and the shares differ by an example: no task waits for another's data.
    data = tf.data.Dataset.from_tensor_slices((train_x, train_y)).shuffle(len(train_x), seed=1).batch(args.batch_size)

    model = Classifier()
    model(train_x[:1])  # makes its variables, which the group is to know
    optimizer = keras.optimizers.Adam(0.003)
    optimizer.build(model.trainable_variables)
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    group.attach(model)  # from here on, all models are the leader's

    @tf.function(reduce_retracing=True)
    def train_step(x, y):  # no strategy: an ordinary step on this task's own devices
        with tf.GradientTape() as tape:
            loss = losses(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss

    with group:  # at its end, waits until the data of all tasks have ended, and averages once more
        for epoch in range(1, args.epochs + 1):
            loss = []
            for x, y in data:
                loss.append(train_step(x, y))
                group.step(weight=len(x))
            print(f"epoch {epoch} of {args.epochs}, loss {np.mean(loss):.3f}", flush=True)

    if group.rank == 0:
        accuracy = float(np.mean(np.argmax(model(test_x), axis=1) == test_y))
        print(f"accuracy on {len(test_x)} held-out digits: {accuracy:.3f}", flush=True)
        output_dir = Path(os.environ.get("OUTPUT_DIR", "output"))
        output_dir.mkdir(exist_ok=True)
        training.export(model)
        result = {"accuracy": accuracy, "epochs": args.epochs, "tasks": len(group.members)}
        (output_dir / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
