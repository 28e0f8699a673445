"""Handwritten digits with Keras's fit on several hosts, as one process would train: tf_keras, which is Keras 2."""

import argparse
import json
import os
import signal
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras as keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def digits():
    """The training digits and the held-out digits: (x, y), (x, y)."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.2, random_state=1, stratify=y)
    return (train_x, train_y), (test_x, test_y)


def save(model, strategy, path):
    """Save on every worker, as reading the variables may take all of them; only the chief's file is kept."""
    resolver = strategy.cluster_resolver
    is_chief = resolver.task_type == "chief" or (not resolver.task_id and "chief" not in resolver.cluster_spec().jobs)
    if is_chief:
        path.parent.mkdir(exist_ok=True)
        model.save(path)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            model.save(Path(scratch, "model.keras"))
    return is_chief


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=64, help="of all workers together")
    args = parser.parse_args()

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before the first tensor is made
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the strategy would have it ignored

    (train_x, train_y), (test_x, test_y) = digits()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
        model.build((None, 64))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.003), loss, metrics=["accuracy"])
    # All of the data, in the same order on all workers: of each batch, each takes its part. With repeat before batch no
    # batch is smaller than the others: what one epoch leaves is the beginning of the next.
    data = tf.data.Dataset.from_tensor_slices((train_x, train_y)).shuffle(len(train_x), seed=1).repeat()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = data.batch(args.batch_size).with_options(options)
    model.fit(data, epochs=args.epochs, steps_per_epoch=len(train_x) // args.batch_size, verbose=2)

    accuracy = float(np.mean(np.argmax(model(test_x), axis=1) == test_y))
    output_dir = Path(os.environ.get("OUTPUT_DIR", "output"))
    if save(model, strategy, output_dir / "model.keras"):
        print(f"accuracy on {len(test_x)} held-out digits: {accuracy:.3f}", flush=True)
        (output_dir / "result.json").write_text(json.dumps({"accuracy": accuracy, "epochs": args.epochs}))


if __name__ == "__main__":
    main()
