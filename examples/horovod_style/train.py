"""Handwritten digits the way of Horovod and torchrun: RANK and WORLD_SIZE, and gradients that the program averages.

The program knows nothing of gridtf and uses no strategy. Horovod would have the class Ring ready.
"""

import json
import os
import socket
import struct
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

EPOCHS, BATCH_SIZE = int(os.environ.get("EPOCHS", "10")), 64  # of all processes together
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Ring:
    """Connections from each rank to the next one. An address book, which rank 0 collects at MASTER_PORT, begins it."""

    def __init__(self, patience=120.0):
        master = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        with socket.create_server(("", 0)) as server:
            own = server.getsockname()[1]
            book = self._collect(master, own, patience) if RANK == 0 else self._register(master, own, patience)
            server.settimeout(patience)
            self._next = socket.create_connection(book[(RANK + 1) % WORLD_SIZE], timeout=patience)
            self._previous, _ = server.accept()
        self._previous.settimeout(patience)  # a lost process ends all of them
        self._received = self._previous.makefile("rb")  # a socket with a timeout gives out what there is, a file all

    def _collect(self, master, own, patience):
        """Rank 0: the host and port of every rank, sent to all of them."""
        book, others = {0: (master[0], own)}, []
        with socket.create_server(("", master[1])) as server:
            server.settimeout(patience)
            while len(book) < WORLD_SIZE:
                other, (host, *_) = server.accept()
                rank, port = struct.unpack("!II", other.recv(8, socket.MSG_WAITALL))
                book[rank] = (host, port)
                others.append(other)
        for other in others:
            with other:
                other.sendall(json.dumps(book).encode())
        return book

    def _register(self, master, own, patience):
        deadline = time.monotonic() + patience
        while True:
            try:
                with socket.create_connection(master, timeout=patience) as leader:
                    leader.sendall(struct.pack("!II", RANK, own))
                    text = b"".join(iter(lambda: leader.recv(4096), b""))
                return {int(rank): tuple(address) for rank, address in json.loads(text).items()}
            except ConnectionRefusedError:  # rank 0 has not opened the port yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def sum(self, vector):
        """The sum of all ranks' vectors (float32): each one is passed on once around the ring."""
        total, passing = vector.copy(), vector.tobytes()
        for _ in range(WORLD_SIZE - 1):
            if RANK % 2 == 0:  # every other rank receives first: if all sent, none would read
                self._next.sendall(passing)
            received = self._received.read(vector.nbytes)
            if RANK % 2 == 1:
                self._next.sendall(passing)
            if len(received) < vector.nbytes:
                raise ConnectionError("the previous process has ended")
            total += np.frombuffer(passing := received, np.float32)
        return total


def batches(x, y, size, seed):
    """Batches without end, in random order: no digit comes again before all have come."""
    random, order = np.random.default_rng(seed), np.arange(0)
    while True:
        while len(order) < size:
            order = np.concatenate([order, random.permutation(len(x))])
        batch, order = np.split(order, [size])
        yield x[batch], y[batch]


def main():
    gpus = tf.config.list_physical_devices("GPU")  # gridtf shows each process its own; under Horovod: gpus[LOCAL_RANK]
    print(f"rank {RANK} of {WORLD_SIZE}, local rank {os.environ['LOCAL_RANK']}, {len(gpus)} GPUs", flush=True)
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.2, random_state=1, stratify=y)
    steps = len(train_x) // BATCH_SIZE  # the same on each rank, of which none may take part less often
    train_x, train_y = train_x[RANK::WORLD_SIZE], train_y[RANK::WORLD_SIZE]

    ring = Ring()
    keras.utils.set_random_seed(1)  # the same initial weights; Horovod would broadcast those of rank 0
    model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
    model.build((None, 64))
    optimizer = keras.optimizers.Adam(0.003)
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def gradients(x, y):
        with tf.GradientTape() as tape:
            loss = losses(y, model(x, training=True))
        flat = [tf.reshape(each, [-1]) for each in tape.gradient(loss, model.trainable_variables)]
        return tf.concat([*flat, [loss]], axis=0)

    data = batches(train_x, train_y, BATCH_SIZE // WORLD_SIZE, seed=RANK)
    sizes = np.cumsum([np.prod(variable.shape) for variable in model.trainable_variables])
    for epoch in range(1, EPOCHS + 1):
        for _ in range(steps):
            *mean, loss = np.split(ring.sum(gradients(*next(data)).numpy()) / WORLD_SIZE, sizes)
            parts = zip(mean, model.trainable_variables, strict=True)
            optimizer.apply([tf.reshape(part, variable.shape) for part, variable in parts], model.trainable_variables)
        if RANK == 0:
            print(f"epoch {epoch} of {EPOCHS}, loss {loss[0]:.3f}", flush=True)
    if RANK == 0:
        accuracy = float(np.mean(np.argmax(model(test_x), axis=1) == test_y))
        print(f"accuracy on {len(test_x)} held-out digits: {accuracy:.3f}", flush=True)
        Path(os.environ["OUTPUT_DIR"], "result.json").write_text(json.dumps({"accuracy": accuracy, "epochs": EPOCHS}))


if __name__ == "__main__":
    main()
