"""Handwritten digits with MultiWorkerMirroredStrategy: a Keras model in a training loop of its own."""

import argparse
import json
import os
import signal
import tempfile
from pathlib import Path

import keras
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


def save(model, strategy, path):
    """Save on every worker, as reading the variables may take all of them; only the chief's file is kept."""
    resolver = strategy.cluster_resolver
    is_chief = resolver.task_type == "chief" or (not resolver.task_id and "chief" not in resolver.cluster_spec().jobs)
    if is_chief:
        path.parent.mkdir(exist_ok=True)
        model.save(path)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            model.save(Path(scratch, "model.keras"))
    return is_chief


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=64, help="of all workers together")
    args = parser.parse_args()

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before the first tensor is made
    # The strategy makes TensorFlow catch SIGTERM and train on. Whoever wants to stop this program means it.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    (train_x, train_y), (test_x, test_y) = digits()
    steps = len(train_x) // args.batch_size

    def dataset(context):
        data = tf.data.Dataset.from_tensor_slices((train_x, train_y))
        # All workers shuffle alike, then each takes its own: together they have the batches that one alone would have.
        data = data.shuffle(len(train_x), seed=1).repeat()
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
        return data.batch(context.get_per_replica_batch_size(args.batch_size))

    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
        model.build((None, 64))
        optimizer = keras.optimizers.Adam(0.003)
        optimizer.build(model.trainable_variables)
        losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    @tf.function
    def train_step(batches):
        def step(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                # Gradients are summed over the workers, so the mean is that of the whole batch.
                loss = tf.nn.compute_average_loss(losses(y, model(x, training=True)), global_batch_size=args.batch_size)
            optimizer.apply(tape.gradient(loss, model.trainable_variables))
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=(next(batches),)), axis=None)

    batches = iter(strategy.distribute_datasets_from_function(dataset))
    for epoch in range(1, args.epochs + 1):
        loss = np.mean([train_step(batches) for _ in range(steps)])
        print(f"epoch {epoch} of {args.epochs}, loss {loss:.3f}", flush=True)

    accuracy = float(np.mean(np.argmax(model(test_x), axis=1) == test_y))
    output_dir = Path(os.environ.get("OUTPUT_DIR", "output"))
    if save(model, strategy, output_dir / "model.keras"):
        print(f"accuracy on {len(test_x)} held-out digits: {accuracy:.3f}", flush=True)
        result = {"accuracy": accuracy, "epochs": args.epochs}
        (output_dir / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
