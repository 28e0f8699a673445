"""Where gridtf_join of 0.1.0 that an upgrade in place has overtaken finds how it goes on. To go after 0.2.0."""

from gridtf.starters.joined.join import main

__all__ = ["main"]
