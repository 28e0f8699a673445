"""Handwritten digits with Keras's fit on all GPUs of one host: MirroredStrategy, in one process."""

import argparse
import json
import os
from pathlib import Path

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


def devices(cpus):
    """All GPUs (None, to the strategy), or where there is none, this many parts of the CPU."""
    if tf.config.list_physical_devices("GPU"):
        return None
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * cpus)
    return [f"CPU:{number}" for number in range(cpus)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=64, help="of all replicas together")
    parser.add_argument("--cpus", type=int, default=1, help="replicas where there is no GPU, to try it out")
    args = parser.parse_args()

    strategy = tf.distribute.MirroredStrategy(devices(args.cpus))
    (train_x, train_y), (test_x, test_y) = digits()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
        model.build((None, 64))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.003), loss, metrics=["accuracy"])
    # With repeat before batch no batch is smaller than the others: what one epoch leaves is the beginning of the next.
    data = tf.data.Dataset.from_tensor_slices((train_x, train_y)).shuffle(len(train_x), seed=1).repeat()
    steps = len(train_x) // args.batch_size
    print(f"{strategy.num_replicas_in_sync} replicas", flush=True)
    model.fit(data.batch(args.batch_size), epochs=args.epochs, steps_per_epoch=steps, verbose=2)

    _, accuracy = model.evaluate(test_x, test_y, batch_size=len(test_x), verbose=0)
    print(f"accuracy on {len(test_x)} held-out digits: {accuracy:.3f}", flush=True)
    output_dir = Path(os.environ.get("OUTPUT_DIR", "output"))
    output_dir.mkdir(exist_ok=True)
    model.save(output_dir / "model.keras")
    (output_dir / "result.json").write_text(json.dumps({"accuracy": accuracy, "epochs": args.epochs}))


if __name__ == "__main__":
    main()
