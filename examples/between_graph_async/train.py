"""Handwritten digits with parameter servers, asynchronously: each worker has a graph of its own on shared variables."""

import argparse
import json

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import gridtf
from gridtf import training

v1 = tf.compat.v1


def digits(shard, shards):
    """This worker's share of the training digits, and the held-out digits: (x, y), (x, y)."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.2, random_state=1, stratify=y)
    return (train_x[shard::shards], train_y[shard::shards]), (test_x, test_y)


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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600, help="of all workers together")
    parser.add_argument("--batch_size", type=int, default=64)
    args = parser.parse_args()

    v1.disable_eager_execution()
    v1.logging.set_verbosity(v1.logging.ERROR)  # all of this is deprecated, and works
    task = gridtf.task()
    (train_x, train_y), (test_x, test_y) = digits(task.rank, task.world_size)

    # Between-graph: every worker builds the same graph. Variables of the same name are the same variable, on a
    # parameter server; everything else is the worker's own.
    cluster = tf.train.ClusterSpec(task.cluster)
    with v1.device(
        v1.train.replica_device_setter(cluster=cluster, worker_device=f"/job:{task.type}/task:{task.index}")
    ):
        x = v1.placeholder(tf.float32, [None, 64], name="x")
        y = v1.placeholder(tf.int64, [None], name="y")
        logits = dense("output", tf.nn.relu(dense("hidden", x, 64)), 10)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))
        global_step = v1.train.get_or_create_global_step()
        # Asynchronous: a worker applies its gradients at once, to variables that others may have changed meanwhile.
        train = v1.train.AdamOptimizer(0.003).minimize(loss, global_step=global_step)

    data = batches(train_x, train_y, args.batch_size, seed=task.rank)
    with training.session("async") as session:  # the leader's initializes or restores, and saves
        step, report = session.run(global_step), 100
        while step < args.steps and not session.should_stop():
            batch_x, batch_y = next(data)
            _, value, step = session.run([train, loss, global_step], {x: batch_x, y: batch_y})
            if step >= report:
                report = step + 100
                print(f"{task.name}: step {step} of {args.steps}, loss {value:.3f}", flush=True)
        if task.is_chief:
            reached = float(session.run(accuracy, {x: test_x, y: test_y}))
            print(f"accuracy on {len(test_x)} held-out digits: {reached:.3f}", flush=True)
            (task.output_dir / "result.json").write_text(json.dumps({"accuracy": reached, "steps": int(step)}))


if __name__ == "__main__":
    main()
