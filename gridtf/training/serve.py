"""``python -m gridtf.training.serve``: runs a task without user code, a server of TensorFlow or tf.data service."""

from __future__ import annotations

import sys

from gridtf.errors import GridtfError
from gridtf.training.servers import serve

if __name__ == "__main__":
    try:
        serve()
    except GridtfError as error:
        print("gridtf:", str(error).replace("\n", "\n  "), file=sys.stderr)
        sys.exit(error.exit_code)
