"""Handwritten digits in-graph: one client builds one graph, with a replica of the model on each worker."""

import argparse
import json

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import gridtf

v1 = tf.compat.v1


def digits():
    """The training digits and the held-out digits: (x, y), (x, y)."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.2, random_state=1, stratify=y)
    return (train_x, train_y), (test_x, test_y)


def batches(x, y, size, seed):
    """Batches without end, in random order: no digit comes again before all have come."""
    random, order = np.random.default_rng(seed), np.arange(0)
    while True:
        while len(order) < size:
            order = np.concatenate([order, random.permutation(len(x))])
        batch, order = np.split(order, [size])
        yield x[batch], y[batch]


def dense(name, x, outputs):
    weights = v1.get_variable(f"{name}/w", [x.shape[1], outputs], initializer=v1.glorot_uniform_initializer(seed=1))
    return x @ weights + v1.get_variable(f"{name}/b", [outputs], initializer=v1.zeros_initializer())


def model(x, y):
    logits = dense("output", tf.nn.relu(dense("hidden", x, 64)), 10)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))
    return loss, accuracy


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch_size", type=int, default=128, help="of all workers together")
    args = parser.parse_args()

    v1.disable_eager_execution()
    v1.logging.set_verbosity(v1.logging.ERROR)  # all of this is deprecated, and works
    task = gridtf.task()
    workers = task.cluster["worker"]
    (train_x, train_y), (test_x, test_y) = digits()

    x = v1.placeholder(tf.float32, [None, 64], name="x")
    y = v1.placeholder(tf.int64, [None], name="y")
    optimizer = v1.train.AdamOptimizer(0.006)
    gradients, losses = [], []
    parts = zip(tf.split(x, len(workers)), tf.split(y, len(workers)), strict=True)
    for index, (part_x, part_y) in enumerate(parts):
        # The variables are on the parameter servers, where all replicas find them; the rest is on this worker.
        device = v1.train.replica_device_setter(
            ps_tasks=len(task.cluster["ps"]), worker_device=f"/job:worker/task:{index}"
        )
        with v1.device(device), v1.variable_scope("model", reuse=index > 0):
            loss, accuracy = model(part_x, part_y)
            gradients.append(optimizer.compute_gradients(loss))
            losses.append(loss)
    with v1.device("/job:ps/task:0"):
        means = [
            (tf.add_n([gradient for gradient, _ in replicas]) / len(workers), replicas[0][1])
            for replicas in zip(*gradients, strict=True)
        ]
        train = optimizer.apply_gradients(means)
        loss = tf.add_n(losses) / len(workers)

    data = batches(train_x, train_y, args.batch_size, seed=0)
    # The client connects to one worker, which hands the parts of the graph to the others.
    with v1.Session(f"grpc://{workers[0]}") as session:
        session.run(v1.global_variables_initializer())
        for step in range(1, args.steps + 1):
            batch_x, batch_y = next(data)
            _, value = session.run([train, loss], {x: batch_x, y: batch_y})
            if step % 100 == 0:
                print(f"step {step} of {args.steps}, loss {value:.3f}", flush=True)
        # The accuracy is that of the last replica, whose part of the digits these are.
        reached = float(session.run(accuracy, {part_x: test_x, part_y: test_y}))
    print(f"accuracy on {len(test_x)} held-out digits: {reached:.3f}", flush=True)
    (task.output_dir / "result.json").write_text(json.dumps({"accuracy": reached, "steps": args.steps}))


if __name__ == "__main__":
    main()
