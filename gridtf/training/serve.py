"""``python -m gridtf.training.serve MODULE …``: runs a task without user code, a server of TensorFlow (which knows the
operations of these modules) or of the tf.data service."""

from __future__ import annotations

import sys

from gridtf.errors import GridtfError
from gridtf.training.servers import serve

if __name__ == "__main__":
    try:
        serve(modules=sys.argv[1:])
    except GridtfError as error:
        print("gridtf:", str(error).replace("\n", "\n  "), file=sys.stderr)
        sys.exit(error.exit_code)
