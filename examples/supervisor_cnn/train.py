"""A small CNN on handwritten digits, as in TensorFlow 1: a Supervisor with checkpoints and summaries; an export."""

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


def dense(name, x, outputs):
    weights = v1.get_variable(f"{name}/w", [x.shape[1], outputs], initializer=v1.glorot_uniform_initializer(seed=1))
    return x @ weights + v1.get_variable(f"{name}/b", [outputs], initializer=v1.zeros_initializer())


def cnn(x):
    """8x8 pixels -> 16 features in 4x4 places -> 64 hidden units -> 10 logits."""
    images = tf.reshape(x, [-1, 8, 8, 1])
    kernel = v1.get_variable("conv/w", [3, 3, 1, 16], initializer=v1.glorot_uniform_initializer(seed=1))
    bias = v1.get_variable("conv/b", [16], initializer=v1.zeros_initializer())
    features = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(images, kernel, 1, "SAME") + bias), 2, 2, "VALID")
    return dense("output", tf.nn.relu(dense("hidden", tf.reshape(features, [-1, 256]), 64)), 10)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500, help="of all tasks together")
    parser.add_argument("--batch_size", type=int, default=64)
    args = parser.parse_args()

    v1.disable_eager_execution()
    v1.logging.set_verbosity(v1.logging.ERROR)  # all of this is deprecated, and works
    task = gridtf.task()
    server = training.server()
    (train_x, train_y), (test_x, test_y) = digits(task.rank, task.world_size)

    # Variables are placed on the parameter servers, in turn; everything else on this task.
    device = f"/job:{task.type}/task:{task.index}"
    with v1.device(v1.train.replica_device_setter(cluster=tf.train.ClusterSpec(task.cluster), worker_device=device)):
        x = v1.placeholder(tf.float32, [None, 64], name="x")
        y = v1.placeholder(tf.int64, [None], name="y")
        logits = cnn(x)
        probabilities = tf.nn.softmax(logits, name="probabilities")
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))
        global_step = v1.train.get_or_create_global_step()
        train = v1.train.AdamOptimizer(0.003).minimize(loss, global_step=global_step)
    v1.summary.scalar("loss", loss)
    v1.summary.scalar("accuracy", accuracy)
    summaries = v1.summary.merge_all()

    supervisor = v1.train.Supervisor(
        is_chief=task.is_chief,
        logdir=str(task.output_dir / "checkpoints"),  # a run that finds a checkpoint there goes on from it
        global_step=global_step,
        summary_op=None,  # written below: the Supervisor's own thread would not know a batch
        save_model_secs=60,
        recovery_wait_secs=1,  # 30 seconds by default: how often a worker looks whether the chief is ready
    )
    data = batches(train_x, train_y, args.batch_size, seed=task.rank)
    config = server.server_def.default_session_config  # with the device filters of training.server
    with supervisor.managed_session(server.target, config=config) as session:
        step, report = 0, 100
        while step < args.steps and not supervisor.should_stop():
            batch_x, batch_y = next(data)
            _, value, step = session.run([train, loss, global_step], {x: batch_x, y: batch_y})
            if step >= report:
                report = step + 100
                print(f"{task.name}: step {step} of {args.steps}, loss {value:.3f}", flush=True)
                if task.is_chief:
                    supervisor.summary_computed(session, session.run(summaries, {x: test_x, y: test_y}))
        if task.is_chief:
            supervisor.saver.save(session, supervisor.save_path, global_step=global_step)
            path = training.export_session(session, {"x": x}, {"probabilities": probabilities}, "export")
            # The last steps of other workers may still come, so the exported model is the one to judge.
            with v1.Session(graph=tf.Graph()) as exported:
                v1.saved_model.load(exported, ["serve"], str(path))
                found = exported.run("probabilities:0", {"x:0": test_x}).argmax(axis=1)
            reached = float(np.mean(found == test_y))
            print(f"accuracy on {len(test_x)} held-out digits: {reached:.3f}", flush=True)
            (task.output_dir / "result.json").write_text(json.dumps({"accuracy": reached, "steps": int(step)}))


if __name__ == "__main__":
    main()
