"""Handwritten digits with a parameter server, asynchronously; the cluster comes in flags, as in TensorFlow 1."""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

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


def model(x, y):
    hidden = v1.get_variable("hidden/w", [64, 64], initializer=v1.glorot_uniform_initializer(seed=1))
    hidden_bias = v1.get_variable("hidden/b", [64], initializer=v1.zeros_initializer())
    output = v1.get_variable("output/w", [64, 10], initializer=v1.glorot_uniform_initializer(seed=2))
    output_bias = v1.get_variable("output/b", [10], initializer=v1.zeros_initializer())
    logits = tf.nn.relu(x @ hidden + hidden_bias) @ output + output_bias
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))
    return loss, accuracy


def wait_for_variables(server, config):
    """Wait until worker 0 has initialized the variables; a MonitoredTrainingSession looks only every 30 seconds."""
    missing = v1.report_uninitialized_variables()
    with v1.Session(server.target, config=config) as session:
        while session.run(missing).size:
            time.sleep(0.1)


def work(args, cluster, server):
    workers = cluster.num_tasks("worker")
    is_chief = args.task_index == 0
    (train_x, train_y), (test_x, test_y) = digits(args.task_index, workers)
    output_dir = Path(os.environ.get("OUTPUT_DIR", "output"))

    device = f"/job:worker/task:{args.task_index}"
    with v1.device(v1.train.replica_device_setter(cluster=cluster, worker_device=device)):
        x = v1.placeholder(tf.float32, [None, 64])
        y = v1.placeholder(tf.int64, [None])
        loss, accuracy = model(x, y)
        global_step = v1.train.get_or_create_global_step()
        train = v1.train.AdamOptimizer(0.003).minimize(loss, global_step=global_step)

    # Without filters the session would wait for workers that it does not need.
    config = v1.ConfigProto(device_filters=["/job:ps", device])
    if not is_chief:
        wait_for_variables(server, config)
    data = batches(train_x, train_y, args.batch_size, seed=args.task_index)
    with v1.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=is_chief,
        checkpoint_dir=str(output_dir / "checkpoints"),
        config=config,
        log_step_count_steps=None,
    ) as session:
        step, report = 0, 100
        while step < args.steps:  # the workers count together
            batch_x, batch_y = next(data)
            _, value, step = session.run([train, loss, global_step], {x: batch_x, y: batch_y})
            if step >= report:
                report = step + 100
                print(f"worker {args.task_index}: step {step} of {args.steps}, loss {value:.3f}", flush=True)
        if is_chief:
            reached = float(session.run(accuracy, {x: test_x, y: test_y}))
            print(f"accuracy on {len(test_x)} held-out digits: {reached:.3f}", flush=True)
            result = {"accuracy": reached, "steps": int(step)}
            (output_dir / "result.json").write_text(json.dumps(result))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ps_hosts", required=True, help="host:port,host:port,…")
    parser.add_argument("--worker_hosts", required=True, help="host:port,host:port,…")
    parser.add_argument("--job_name", required=True, choices=["ps", "worker"])
    parser.add_argument("--task_index", required=True, type=int)
    parser.add_argument("--steps", type=int, default=600, help="of all workers together")
    parser.add_argument("--batch_size", type=int, default=64)
    args = parser.parse_args()

    v1.disable_eager_execution()
    v1.logging.set_verbosity(v1.logging.ERROR)  # all of this is deprecated, and works
    cluster = tf.train.ClusterSpec({"ps": args.ps_hosts.split(","), "worker": args.worker_hosts.split(",")})
    server = tf.distribute.Server(cluster, job_name=args.job_name, task_index=args.task_index)
    if args.job_name == "ps":
        server.join()  # for ever; gridtf ends it when the workers are done
    else:
        work(args, cluster, server)


if __name__ == "__main__":
    main()
