"""Matplotlib's figure and axes with a PNG display for notebooks, without pyplot."""

import io

from matplotlib.axes import Axes
from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure that IPython shows even if no backend has registered a formatter for figures."""

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png", dpi=110)
        return out.getvalue()


class NotebookAxes(Axes):
    """Axes that IPython shows as their figure."""

    def _repr_png_(self) -> bytes | None:
        picture = getattr(self.get_figure(), "_repr_png_", None)
        return None if picture is None else picture()
