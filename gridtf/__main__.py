"""``python -m gridtf``: the command, for a Python whose bin folder is not on the PATH."""

import sys

from gridtf.cli import main

sys.exit(main())
