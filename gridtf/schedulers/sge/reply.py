"""The XML that Grid Engine's commands print. Pure."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from gridtf.errors import SchedulerError

# A job's name may hold them; XML may not.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def tree(text: str, command: str) -> ElementTree.Element:
    """Read what a command has printed, without what a site says before and after it.

    Raises SchedulerError, which names the command, for what is no XML.
    """
    # up to 6.2u5 elements of a list of unknown jobs have no name: <><ST_name>77</ST_name></>
    clean = _CONTROLS.sub("", text).replace("<>", "").replace("</>", "")
    try:
        if "<!DOCTYPE" in clean:
            raise ElementTree.ParseError("a document type")
        begin, end = max(0, clean.find("<?xml")), clean.rfind(">") + 1
        return ElementTree.fromstring(clean[begin:end])  # noqa: S314 - no entity is let in
    except ElementTree.ParseError as error:
        raise SchedulerError(f"{command} says something that is no XML: {error}") from None
