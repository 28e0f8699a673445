"""Recognizes the held-out digits with an exported model. Needs TensorFlow, and neither gridtf nor train.py."""

import sys

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def main():
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    _, test_x, _, test_y = train_test_split(x, y, test_size=0.2, random_state=1, stratify=y)

    model = tf.saved_model.load(sys.argv[1])
    probabilities = model.signatures["serving_default"](x=tf.constant(test_x))["probabilities"].numpy()
    found = np.argmax(probabilities, axis=1)
    for digit, guess, sure in list(zip(test_y, found, probabilities.max(axis=1), strict=True))[:5]:
        print(f"a {digit}: recognized as {guess}, probability {sure:.2f}")
    print(f"accuracy on {len(test_x)} held-out digits: {np.mean(found == test_y):.3f}")


if __name__ == "__main__":
    main()
