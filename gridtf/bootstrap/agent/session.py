"""Where agents of 0.1.0 that an upgrade in place has overtaken find what serves a command. To go after 0.2.0."""

from gridtf.features.exec.session import serve

__all__ = ["serve"]
