"""Formulas as MathML, which browsers draw themselves: no script and no font to load."""

from latex2mathml.converter import convert


def _inline(translator, node):
    translator.body.append(convert(node.astext()))
    from docutils.nodes import SkipNode

    raise SkipNode


def _display(translator, node):
    translator.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    from docutils.nodes import SkipNode

    raise SkipNode


def setup(app):
    """Register the two visitors as Sphinx's renderer of formulas in HTML."""
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True}
