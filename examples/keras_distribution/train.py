"""Handwritten digits with Keras's fit on several hosts, as one process would train: Keras 3 on JAX."""

import argparse
import json
import os
import tempfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")  # before Keras is imported

import jax
import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def digits():
    """The training digits and the held-out digits: (x, y), (x, y)."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.2, random_state=1, stratify=y)
    return (train_x, train_y), (test_x, test_y)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=64, help="of all processes together")
    args = parser.parse_args()

    if "KERAS_DISTRIBUTION_NUM_PROCESSES" in os.environ:  # gridtf has set it; alone, there is nobody to wait for
        keras.distribution.initialize()  # before anything else that uses JAX
    keras.distribution.set_distribution(keras.distribution.DataParallel())  # before the model is made
    tf.config.set_visible_devices([], "GPU")  # TensorFlow only makes the batches: the GPUs are JAX's

    (train_x, train_y), (test_x, test_y) = digits()
    keras.utils.set_random_seed(1)  # the same in all processes
    model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
    model.build((None, 64))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.003), loss, metrics=["accuracy"])
    # All of the data, in the same order in all processes: of each batch, each takes its part. With repeat before batch
    # no batch is smaller than the others: what one epoch leaves is the beginning of the next.
    data = tf.data.Dataset.from_tensor_slices((train_x, train_y)).shuffle(len(train_x), seed=1).repeat()
    steps = len(train_x) // args.batch_size
    print(f"{jax.process_count()} processes, {jax.device_count()} devices", flush=True)
    verbose = 2 if jax.process_index() == 0 else 0
    model.fit(data.batch(args.batch_size), epochs=args.epochs, steps_per_epoch=steps, verbose=verbose)

    # Evaluation and saving take all processes; the files of all but the first are thrown away.
    _, accuracy = model.evaluate(tf.data.Dataset.from_tensors((test_x, test_y)), verbose=0)
    if jax.process_index() != 0:
        with tempfile.TemporaryDirectory() as scratch:
            model.save(Path(scratch, "model.keras"))
        return
    output_dir = Path(os.environ.get("OUTPUT_DIR", "output"))
    output_dir.mkdir(exist_ok=True)
    model.save(output_dir / "model.keras")
    print(f"accuracy on {len(test_x)} held-out digits: {accuracy:.3f}", flush=True)
    (output_dir / "result.json").write_text(json.dumps({"accuracy": accuracy, "epochs": args.epochs}))


if __name__ == "__main__":
    main()
