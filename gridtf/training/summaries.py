"""Summaries for TensorBoard, written by the chief."""

from __future__ import annotations

from functools import cache
from typing import Any

import tensorflow as tf

from gridtf import contract


@cache
def summary_writer() -> Any:
    """The ``tf.summary`` writer of this process, the same at every call. It writes on the chief only.

    Hence every task can run the same code, and the summaries have each value once::

        with training.summary_writer().as_default(step=step):
            tf.summary.scalar("loss", loss)

    ``tf.summary.scalar`` and its like need the package tensorboard, which TensorFlow 2.21 does not install;
    ``tf.summary.write`` does not.

    Returns:
        A ``tf.summary.SummaryWriter``; the chief's writes to OUTPUT_DIR/summaries, or
        output/summaries outside of gridtf.
    """
    if not contract.leads():
        return tf.summary.create_noop_writer()
    return tf.summary.create_file_writer(str(contract.output_dir() / "summaries"))
