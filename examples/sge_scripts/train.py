"""Handwritten digits with MultiWorkerMirroredStrategy, without Keras: softmax regression by gradient descent."""

import argparse
import json
import os
import signal
from pathlib import Path

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
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before the first tensor is made
    # The strategy makes TensorFlow catch SIGTERM and train on. Whoever wants to stop this program means it.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resolver = strategy.cluster_resolver
    shard, shards = resolver.task_id, strategy.num_replicas_in_sync

    (train_x, train_y), (test_x, test_y) = digits()
    x, y = tf.constant(train_x[shard::shards]), tf.constant(train_y[shard::shards])
    with strategy.scope():
        weights = tf.Variable(tf.zeros([64, 10]))
        bias = tf.Variable(tf.zeros([10]))

    @tf.function
    def train_step():
        def step():
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=x @ weights + bias)
                loss = tf.reduce_sum(losses) / len(train_x)  # this worker's part of the mean over all digits
            gradients = tape.gradient(loss, [weights, bias])
            context = tf.distribute.get_replica_context()
            for variable, gradient in zip([weights, bias], context.all_reduce("sum", gradients), strict=True):
                variable.assign_sub(2.0 * gradient)
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step), axis=None)

    for number in range(1, args.steps + 1):
        loss = train_step()
        if resolver.task_id == 0 and number % 20 == 0:
            print(f"step {number} of {args.steps}, loss {loss:.3f}", flush=True)

    if resolver.task_id == 0:
        accuracy = float(np.mean(np.argmax(test_x @ weights.numpy() + bias.numpy(), axis=1) == test_y))
        print(f"accuracy on {len(test_x)} held-out digits: {accuracy:.3f}", flush=True)
        output_dir = Path(os.environ.get("OUTPUT_DIR", "output"))
        np.savez(output_dir / "model.npz", weights=weights.numpy(), bias=bias.numpy())
        (output_dir / "result.json").write_text(json.dumps({"accuracy": accuracy, "steps": args.steps}))


if __name__ == "__main__":
    main()
