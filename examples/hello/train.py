"""Each task says who and where it is, then all of them add up a number: nothing is trained yet."""

import json
import signal
import socket

import tensorflow as tf

import gridtf
from gridtf.training import ClusterResolver


def main():
    task = gridtf.task()
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=ClusterResolver())  # before any tensor
    # The strategy makes TensorFlow catch SIGTERM and go on. SIGTERM is to end this program.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gpus = f"GPU {', '.join(task.gpus)}" if task.gpus else "no GPU"
    print(f"{task.name} is rank {task.rank} of {task.world_size}, on {socket.gethostname()} with {gpus}", flush=True)

    @tf.function
    def add():
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0))

    # One replica for each GPU, or one for a task without. The sum waits for all of them, so none is missing.
    total = int(strategy.experimental_local_results(strategy.run(add))[0])
    if task.is_chief:
        print(f"{total} of {strategy.num_replicas_in_sync} replicas have joined the cluster", flush=True)
        (task.output_dir / "result.json").write_text(json.dumps({"replicas": total}))


if __name__ == "__main__":
    main()
