"""Handwritten digits with a parameter server, asynchronously: the training loop is a function, gridtf does the rest."""

import json
import os

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from gridtf import training

v1 = tf.compat.v1
STEPS = int(os.environ.get("STEPS", "600"))  # of all workers together
BATCH_SIZE = 64


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


def dense(name, x, inputs, outputs):
    weights = v1.get_variable(f"{name}/weights", [inputs, outputs], initializer=v1.glorot_uniform_initializer(seed=1))
    bias = v1.get_variable(f"{name}/bias", [outputs], initializer=v1.zeros_initializer())
    return x @ weights + bias


def main(ctx):
    workers = len(ctx.cluster["worker"])
    (train_x, train_y), (test_x, test_y) = digits(ctx.task.index, workers)
    cluster = tf.train.ClusterSpec(ctx.cluster)
    device = f"/job:worker/task:{ctx.task.index}"
    with tf.Graph().as_default(), v1.device(v1.train.replica_device_setter(cluster=cluster, worker_device=device)):
        x = v1.placeholder(tf.float32, [None, 64])
        y = v1.placeholder(tf.int64, [None])
        logits = dense("output", tf.nn.relu(dense("hidden", x, 64, 64)), 64, 10)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))
        global_step = v1.train.get_or_create_global_step()
        train = v1.train.AdamOptimizer(0.003).minimize(loss, global_step=global_step)

        data = batches(train_x, train_y, BATCH_SIZE, seed=ctx.task.index)
        with training.session() as session:  # uses the server that gridtf has started; saves on the chief
            step, report = 0, 100
            while step < STEPS and not session.should_stop():
                batch_x, batch_y = next(data)
                _, value, step = session.run([train, loss, global_step], {x: batch_x, y: batch_y})
                if step >= report:
                    report = step + 100
                    print(f"{ctx.task.name}: step {step} of {STEPS}, loss {value:.3f}", flush=True)
            if ctx.is_chief:
                reached = float(session.run(accuracy, {x: test_x, y: test_y}))
                print(f"accuracy on {len(test_x)} held-out digits: {reached:.3f}", flush=True)
                result = {"accuracy": reached, "steps": int(step)}
                (ctx.output_dir / "result.json").write_text(json.dumps(result))
