"""Handwritten digits with Keras's fit on several workers, each with a model of its own: averaged every 20 steps."""

import argparse
import json
import os
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from gridtf import training


def digits():
    """The training digits and the held-out digits: (x, y), (x, y)."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.2, random_state=1, stratify=y)
    return (train_x, train_y), (test_x, test_y)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=64, help="of all workers together")
    args = parser.parse_args()

    group = training.averaging(every=20)  # before TensorFlow is used
    (train_x, train_y), (test_x, test_y) = digits()
    model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
    model.build((None, 64))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.003), loss, metrics=["accuracy"])
    model.fit(
        *group.share(train_x, train_y),
        batch_size=args.batch_size // len(group.members),
        epochs=args.epochs,
        callbacks=[group.callback()],
        verbose=2,
    )
    # Now all workers have the same model, also where their data ended at different steps.
    if group.rank != 0:
        return
    accuracy = float(np.mean(np.argmax(model(test_x), axis=1) == test_y))
    print(f"accuracy on {len(test_x)} held-out digits: {accuracy:.3f}", flush=True)
    output_dir = Path(os.environ.get("OUTPUT_DIR", "output"))
    output_dir.mkdir(exist_ok=True)
    model.save(output_dir / "model.keras")
    (output_dir / "result.json").write_text(json.dumps({"accuracy": accuracy, "epochs": args.epochs}))


if __name__ == "__main__":
    main()
