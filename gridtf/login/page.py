"""A page that a notebook shows: the report on a job."""

from __future__ import annotations

from html import escape

from gridtf.values import Value

_HEIGHT = 800  # pixels


class Page(Value):
    """A page of HTML. A notebook shows it in a frame that can reach nothing of the notebook's.

    Attributes:
        html: The whole page, as `gridtf report` writes it into a file.
    """

    html: str

    def __repr__(self) -> str:
        return f"<Page of {len(self.html)} characters: write its html into a file, or show it in a notebook>"

    def _repr_html_(self) -> str:
        style = f"width: 100%; height: {_HEIGHT}px; border: 0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(self.html)}"></iframe>'
