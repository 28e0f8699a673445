"""Handwritten digits with Keras's fit on several workers: Keras 3 by averaging, tf_keras in step (--mirrored)."""

import argparse
import json
import os
import signal
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from gridtf import training


def digits():
    """The training digits and the held-out digits: (x, y), (x, y)."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.2, random_state=1, stratify=y)
    return (train_x, train_y), (test_x, test_y)


def compiled_model(keras):
    model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
    model.build((None, 64))
    model.compile(
        optimizer=keras.optimizers.Adam(0.003),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def averaging(args):
    """Keras 3: each worker fits a model of its own to its share, and a callback averages them every 20 steps."""
    group = training.averaging(every=20)  # before TensorFlow is used
    import keras

    (train_x, train_y), test = digits()
    model = compiled_model(keras)
    model.fit(
        *group.share(train_x, train_y),
        batch_size=args.batch_size // len(group.members),
        epochs=args.epochs,
        callbacks=[group.callback()],
        verbose=2,
    )
    # Now all workers have the same model, also where their data ended at different steps.
    return model, test, group.rank == 0


def mirrored(args):
    """tf_keras: all workers compute each step together, with MultiWorkerMirroredStrategy."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before TensorFlow is used
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the strategy would have it ignored
    import tf_keras

    (train_x, train_y), test = digits()
    with strategy.scope():
        model = compiled_model(tf_keras)
    # The data of all workers: the strategy gives each worker its part, so all have to shuffle alike.
    data = tf.data.Dataset.from_tensor_slices((train_x, train_y)).shuffle(len(train_x), seed=1).repeat()
    data = data.batch(args.batch_size)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    model.fit(
        data.with_options(options), epochs=args.epochs, steps_per_epoch=len(train_x) // args.batch_size, verbose=2
    )
    resolver = strategy.cluster_resolver
    leads = resolver.task_type == "chief" or (resolver.task_id == 0 and "chief" not in resolver.cluster_spec().jobs)
    return model, test, leads


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=64, help="of all workers together")
    parser.add_argument("--mirrored", action="store_true", help="tf_keras and MultiWorkerMirroredStrategy")
    args = parser.parse_args()

    model, (test_x, test_y), leads = (mirrored if args.mirrored else averaging)(args)
    accuracy = float(np.mean(np.argmax(model(test_x), axis=1) == test_y))
    if not leads:
        with tempfile.TemporaryDirectory() as scratch:
            model.save(Path(scratch, "model.keras"))  # with a strategy, saving may take all workers
        return
    print(f"accuracy on {len(test_x)} held-out digits: {accuracy:.3f}", flush=True)
    output_dir = Path(os.environ.get("OUTPUT_DIR", "output"))
    output_dir.mkdir(exist_ok=True)
    model.save(output_dir / "model.keras")
    (output_dir / "result.json").write_text(json.dumps({"accuracy": accuracy, "epochs": args.epochs}))


if __name__ == "__main__":
    main()
