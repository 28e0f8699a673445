"""The environment that scripts/test makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_scikit_learn_is_hidden_from_keras_alone(tmp_path: Path) -> None:
    for name in ("keras", "sklearn"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "keras/wrappers.py").write_text("try:\n    import sklearn\nexcept ImportError:\n    sklearn = None\n")
    program = "import keras.wrappers, sys; print(keras.wrappers.sklearn, 'sklearn' in sys.modules); import sklearn"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "None False\n"
