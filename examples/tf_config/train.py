"""Handwritten digits in the style of TensorFlow 1: TF_CONFIG, a master, a Supervisor, asynchronous workers."""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

v1 = tf.compat.v1


def digits(shard, shards):
    """This task's share of the training digits, and the held-out digits: (x, y), (x, y)."""
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


def softmax_regression(x, y):
    weights = v1.get_variable("weights", [64, 10], initializer=v1.zeros_initializer())
    bias = v1.get_variable("bias", [10], initializer=v1.zeros_initializer())
    logits = x @ weights + bias
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))
    return loss, accuracy


def train(args, cluster, task_type, task_index, server):
    # The master trains, too: it takes the first share of the data, worker i the share i + 1.
    is_master = task_type == "master"
    shard = 0 if is_master else task_index + cluster.num_tasks("master")
    shards = cluster.num_tasks("master") + cluster.num_tasks("worker")
    (train_x, train_y), (test_x, test_y) = digits(shard, shards)
    output_dir = Path(os.environ.get("OUTPUT_DIR", "output"))

    device = f"/job:{task_type}/task:{task_index}"
    with v1.device(v1.train.replica_device_setter(cluster=cluster, worker_device=device)):
        x = v1.placeholder(tf.float32, [None, 64])
        y = v1.placeholder(tf.int64, [None])
        loss, accuracy = softmax_regression(x, y)
        global_step = v1.train.get_or_create_global_step()
        train_op = v1.train.AdamOptimizer(0.01).minimize(loss, global_step=global_step)

    supervisor = v1.train.Supervisor(
        is_chief=is_master,
        logdir=str(output_dir / "checkpoints"),
        global_step=global_step,
        save_summaries_secs=0,
        recovery_wait_secs=1,
    )
    data = batches(train_x, train_y, args.batch_size, seed=shard)
    config = v1.ConfigProto(device_filters=["/job:ps", device])
    with supervisor.managed_session(server.target, config=config) as session:
        step, report = 0, 100
        while step < args.steps:  # all tasks count together
            batch_x, batch_y = next(data)
            _, value, step = session.run([train_op, loss, global_step], {x: batch_x, y: batch_y})
            if step >= report:
                report = step + 100
                print(f"{task_type} {task_index}: step {step} of {args.steps}, loss {value:.3f}", flush=True)
        if is_master:
            reached = float(session.run(accuracy, {x: test_x, y: test_y}))
            supervisor.saver.save(session, supervisor.save_path, global_step=global_step)
            print(f"accuracy on {len(test_x)} held-out digits: {reached:.3f}", flush=True)
            result = {"accuracy": reached, "steps": int(step)}
            (output_dir / "result.json").write_text(json.dumps(result))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600, help="of all tasks together")
    parser.add_argument("--batch_size", type=int, default=64)
    args = parser.parse_args()

    v1.disable_eager_execution()
    v1.logging.set_verbosity(v1.logging.ERROR)  # all of this is deprecated, and works
    tf_config = json.loads(os.environ["TF_CONFIG"])
    task_type, task_index = tf_config["task"]["type"], tf_config["task"]["index"]
    cluster = tf.train.ClusterSpec(tf_config["cluster"])
    server = tf.distribute.Server(cluster, job_name=task_type, task_index=task_index)
    if task_type == "ps":
        server.join()
    else:
        train(args, cluster, task_type, task_index, server)


if __name__ == "__main__":
    main()
