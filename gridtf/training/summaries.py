"""Summaries for TensorBoard, written by the chief."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gridtf import contract


def summary_writer() -> Any:
    """Make a ``tf.summary`` writer for this job: the chief's writes, those of other tasks do nothing.

    Hence every task can run the same code, and the summaries have each value once::

        with training.summary_writer().as_default(step=step):
            tf.summary.scalar("loss", loss)

    ``tf.summary.scalar`` and its like need the package tensorboard, which TensorFlow 2.21 does not install;
    ``tf.summary.write`` does not.

    Returns:
        A ``tf.summary.SummaryWriter``; the chief's writes to OUTPUT_DIR/summaries.

    Raises:
        GridtfError: Outside a gridtf task.
    """
    task = contract.task()
    if not task.is_chief:
        return tf.summary.create_noop_writer()
    return tf.summary.create_file_writer(str(task.output_dir / "summaries"))
