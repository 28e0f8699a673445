"""Handwritten digits with a learning rate from the command line, which a sweep varies."""

import argparse
import json
import os
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import gridtf


def digits():
    """The training digits and the held-out digits: (x, y), (x, y)."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.2, random_state=1, stratify=y)
    return (train_x, train_y), (test_x, test_y)


class Report(keras.callbacks.Callback):
    """Tells gridtf after each epoch how good the model is: `gridtf list` shows the last values and the best."""

    def on_epoch_end(self, epoch, logs=None):
        gridtf.progress(epoch + 1, loss=logs["val_loss"], accuracy=logs["val_accuracy"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--units", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()

    train, test = digits()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(args.units, activation="relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(args.lr, momentum=0.9), loss, metrics=["accuracy"])
    trained = model.fit(*train, epochs=args.epochs, validation_data=test, callbacks=[Report()], verbose=2)

    accuracy = trained.history["val_accuracy"][-1]
    print(f"learning rate {args.lr:g}: accuracy on {len(test[0])} held-out digits: {accuracy:.3f}", flush=True)
    result = {"lr": args.lr, "accuracy": accuracy}
    Path(os.environ.get("OUTPUT_DIR", "."), "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
