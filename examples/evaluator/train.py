"""Handwritten digits: two workers train in step, and an evaluator beside them measures each epoch's weights."""

import argparse
import json
import os
import signal
import time

import keras
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


def new_model():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
    model.build((None, 64))
    return model


def weights_file(task, epoch):
    return task.output_dir / f"weights-{epoch}.npz"


def save(model, path):
    """Written beside and renamed: a file that exists is complete."""
    beside = path.with_name(f".{path.name}")
    with beside.open("wb") as file:
        np.savez(file, *model.get_weights())
        os.fsync(file.fileno())
    beside.replace(path)


def train(task, args):
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=ClusterResolver())  # before any tensor
    # The strategy makes TensorFlow catch SIGTERM and train on. SIGTERM is to end this program.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    (x, y), _ = digits()
    with strategy.scope():
        model = new_model()
        optimizer = keras.optimizers.Adam(0.003)
        optimizer.build(model.trainable_variables)
        losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def dataset(context):
        # All workers shuffle alike, then each takes its own.
        data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1).repeat()
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
        return data.batch(context.get_per_replica_batch_size(args.batch_size))

    @tf.function
    def train_step(batches):
        def step(batch):
            with tf.GradientTape() as tape:
                values = losses(batch[1], model(batch[0], training=True))
                # Gradients are summed over the workers, so the mean is that of the whole batch.
                loss = tf.nn.compute_average_loss(values, global_batch_size=args.batch_size)
            optimizer.apply(tape.gradient(loss, model.trainable_variables))
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=(next(batches),)), axis=None)

    batches = iter(strategy.distribute_datasets_from_function(dataset))
    steps = len(x) // args.batch_size
    for epoch in range(1, args.epochs + 1):
        loss = np.mean([train_step(batches) for _ in range(steps)])
        gridtf.progress(epoch * steps, loss=loss)
        if task.is_chief:
            print(f"epoch {epoch} of {args.epochs}, loss {loss:.3f}", flush=True)
            save(model, weights_file(task, epoch))


def evaluate(task, args):
    _, (x, y) = digits()
    model = new_model()
    for epoch in range(1, args.epochs + 1):
        while not weights_file(task, epoch).exists():  # gridtf ends this task if the training fails
            time.sleep(0.1)
        with np.load(weights_file(task, epoch)) as arrays:
            model.set_weights([arrays[name] for name in arrays.files])
        accuracy = float(np.mean(np.argmax(model(x), axis=1) == y))
        print(f"epoch {epoch}: accuracy {accuracy:.3f}", flush=True)
    print(f"accuracy on {len(x)} held-out digits: {accuracy:.3f}", flush=True)
    (task.output_dir / "result.json").write_text(json.dumps({"accuracy": accuracy, "epochs": args.epochs}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=64, help="of all workers together")
    arguments = parser.parse_args()
    me = gridtf.task()
    evaluate(me, arguments) if me.type == "evaluator" else train(me, arguments)
