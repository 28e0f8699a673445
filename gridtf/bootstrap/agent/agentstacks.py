"""Where agents of 0.1.0 that an upgrade in place has overtaken find what takes stacks. To go after 0.2.0."""

from gridtf.features.stalls.stacks import take

__all__ = ["take"]
