"""Handwritten digits with a model that is on two machines: the first layers on one worker, the last on another."""

import argparse
import json

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


class Dense(tf.Module):
    """A layer on one device: its variables and its computations."""

    def __init__(self, device, inputs, outputs, activation=tf.identity):
        super().__init__()
        self.device = device
        self.activation = activation
        with tf.device(device):
            deviation = (2 / (inputs + outputs)) ** 0.5
            self.weights = tf.Variable(tf.random.stateless_normal([inputs, outputs], (1, inputs), stddev=deviation))
            self.bias = tf.Variable(tf.zeros([outputs]))

    def __call__(self, x):
        with tf.device(self.device):  # x comes over the network, if it is elsewhere; so does its gradient, backwards
            return self.activation(x @ self.weights + self.bias)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch_size", type=int, default=64)
    args = parser.parse_args()

    # The chief connects to the servers of all tasks: from now on, their devices are devices of this program.
    tf.config.experimental_connect_to_cluster(ClusterResolver(), job_name="chief")
    first, second = "/job:worker/task:0", "/job:worker/task:1"
    layers = [Dense(first, 64, 64, tf.nn.relu), Dense(first, 64, 64, tf.nn.relu), Dense(second, 64, 10)]
    variables = [variable for layer in layers for variable in layer.trainable_variables]
    velocities = []
    for variable in variables:
        with tf.device(variable.device):  # beside its variable
            velocities.append(tf.Variable(tf.zeros_like(variable)))
    for layer in layers:
        print(f"{layer.weights.shape[0]} x {layer.weights.shape[1]} weights on {layer.weights.device}")

    def model(x):
        for layer in layers:
            x = layer(x)
        return x

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x)
            with tf.device(second):
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        gradients = tape.gradient(loss, variables)
        for variable, velocity, gradient in zip(variables, velocities, gradients, strict=True):
            with tf.device(variable.device):
                variable.assign_sub(0.1 * velocity.assign(0.9 * velocity + gradient))
        return loss

    (train_x, train_y), (test_x, test_y) = digits()
    random = np.random.default_rng(0)
    for epoch in range(1, args.epochs + 1):
        batches = np.array_split(random.permutation(len(train_x)), len(train_x) // args.batch_size)
        loss = np.mean([train_step(train_x[batch], train_y[batch]) for batch in batches])
        print(f"epoch {epoch} of {args.epochs}, loss {loss:.3f}", flush=True)

    accuracy = float(np.mean(np.argmax(tf.function(model)(test_x), axis=1) == test_y))
    print(f"accuracy on {len(test_x)} held-out digits: {accuracy:.3f}", flush=True)
    result = {"accuracy": accuracy, "epochs": args.epochs}
    (gridtf.task().output_dir / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
