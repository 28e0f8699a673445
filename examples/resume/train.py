"""Handwritten digits in a training that can stop at any step and go on later, with another number of workers too."""

import argparse
import json
import os
import signal
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import gridtf
from gridtf import training


def digits():
    """The training digits and the held-out digits: (x, y), (x, y)."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.2, random_state=1, stratify=y)
    return (train_x, train_y), (test_x, test_y)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=220, help="of all runs together")
    parser.add_argument("--batch_size", type=int, default=64, help="of all workers together")
    args = parser.parse_args()

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before the first tensor is made
    # The strategy makes TensorFlow catch SIGTERM and train on. SIGTERM is to end this program.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    (train_x, train_y), (test_x, test_y) = digits()
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
        model.build((None, 64))
        optimizer = keras.optimizers.Adam(0.003)
        losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    # Restores the newest finished checkpoint, if there is one: the model, the optimizer and the number of steps.
    saved = training.checkpoint(model, optimizer, every=50, folder=os.environ.get("CHECKPOINTS"))

    def dataset(context):
        data = tf.data.Dataset.from_tensor_slices((train_x, train_y))
        # All workers shuffle alike, and leave out what earlier runs have had; then each takes its own.
        data = data.shuffle(len(train_x), seed=1).repeat().skip(saved.step * args.batch_size)
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
        return data.batch(context.get_per_replica_batch_size(args.batch_size))

    @tf.function
    def train_step(batches):
        def step(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                # Gradients are summed over the workers, so the mean is that of the whole batch.
                loss = tf.nn.compute_average_loss(losses(y, model(x, training=True)), global_batch_size=args.batch_size)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=(next(batches),)), axis=None)

    batches = iter(strategy.distribute_datasets_from_function(dataset))
    while saved.step < args.steps:
        loss = train_step(batches)
        # Counts the step. Every 50 steps all workers save; when a checkpoint is requested, they save at the same step
        # and exit with 42: saved, to be continued.
        saved.after_step()
        if saved.step % 50 == 0:
            print(f"step {saved.step} of {args.steps}, loss {loss:.3f}", flush=True)
    saved.save()

    accuracy = float(np.mean(np.argmax(model(test_x), axis=1) == test_y))
    if gridtf.task().is_chief:
        print(f"accuracy on {len(test_x)} held-out digits: {accuracy:.3f}", flush=True)
        result = {"accuracy": accuracy, "steps": saved.step}
        Path(os.environ["OUTPUT_DIR"], "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
