"""The path by which agents of 0.1.0 start the process of a rank, for those that an upgrade in place has overtaken.

It runs without site, and finds nothing of gridtf. To go after 0.2.0.
"""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[2] / "starters/mpi/shim.py"), run_name="__main__")
