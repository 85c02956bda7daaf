"""Sphinx configuration: everything is built without network access."""

import sys
from pathlib import Path

import jsparse

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "jsparse"
author = "The jsparse authors"
release = version = jsparse.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml"]
exclude_patterns = ["_build", "_ext", "notebooks/*.py"]
nb_execution_mode = "off"  # `python -m notebooks` runs them
html_theme = "furo"
html_title = f"jsparse {release}"
html_static_path = ["_static"]
html_show_copyright = html_show_sphinx = False

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

# Single backticks in docstrings mark code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # shapes and meanings are in the text
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_attr_annotations = False


def setup(app):
    """Leave out the methods that scikit-learn adds to estimators for metadata routing."""

    def skip(app, what, name, obj, skipped, options):
        return True if name.startswith("set_") and name.endswith("_request") else None

    app.connect("autodoc-skip-member", skip)
