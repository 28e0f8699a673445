"""Where processes that agents of 0.1.0 start, and an upgrade in place has overtaken, find gloostore. To go after 0.2.0.

They run without site, and find nothing of gridtf.
"""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[2] / "starters/mpi/gloostore.py"), run_name="__main__")
