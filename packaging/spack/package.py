# A recipe for Spack 1: copy it to packages/py_gridtf/package.py of a repository of yours (spack repo create).
# scripts/release writes dist/package.py, with the SHA-256 of what it has built; before that is published, install the
# sdist from a mirror, or `spack develop` a checkout. Spack's py-filelock ends before 3.30:
# `spack checksum --add-to-package py-filelock`.
from spack.package import depends_on, license, version
from spack_repo.builtin.build_systems.python import PythonPackage


class PyGridtf(PythonPackage):
    """Run distributed TensorFlow on Grid Engine, Slurm or one machine."""

    pypi = "gridtf/gridtf-0.1.0.tar.gz"

    license("Apache-2.0")

    version("0.1.0", sha256="0000000000000000000000000000000000000000000000000000000000000000")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-hatchling@1.27:", type="build")

    # Spack has no py-drmaa: gridtf submits to Grid Engine by qsub where it is missing.
    depends_on("py-jinja2@3.1.6:", type="run")
    depends_on("py-filelock@3.30:", type="run")
    depends_on("py-argcomplete@3.3:", type="run")
    depends_on("py-cryptography@42:", type="run")
    depends_on("py-nvidia-ml-py@12:", type="run")
    depends_on("py-pyyaml@6:", type="run")
    depends_on("py-tomli@2:", type="run", when="^python@:3.10")
