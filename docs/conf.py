"""The site: `make docs` builds it from these pages and from the library's docstrings."""

from __future__ import annotations

import re
from typing import Any

import zmq
from docutils import nodes
from jupyter_client.manager import AsyncKernelManager

import bayesagg_pyro

# A notebook's kernel warns where it is spoken to over TCP in plain text.
if zmq.has("curve"):
    AsyncKernelManager.transport_encryption = "auto"

project = "bayesagg_pyro"
author = copyright = "the bayesagg_pyro developers"
version = release = bayesagg_pyro.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
root_doc = "index"
exclude_patterns = ["_build", "jupyter_execute"]
default_role = "code"

myst_heading_anchors = 4
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_output_stderr = "remove"
suppress_warnings = ["ref.python"]  # two classes may have a property of one name

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "imported-members": True, "show-inheritance": True}
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = "bayesagg_pyro"
html_static_path = ["_static"]
html_css_files = ["site.css"]


def plain_text(app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: |Λ| is a determinant and [*shape] a shape, neither is markup."""
    for index, line in enumerate(lines):
        parts = re.split(r"(`[^`]*`)", line)
        parts[::2] = [re.sub(r"[|*]|_(?=\W|$)", r"\\\g<0>", text) for text in parts[::2]]
        # "in_features: d." is no item "d" of a list.
        lines[index] = re.sub(r"(: )(\w\.)$", r"\1\\\2", "".join(parts))


def one_line(app: Any, doctree: nodes.document) -> None:
    """A number in a table stays beside its standard deviation, and 9 of 10 together."""
    for entry in doctree.findall(nodes.entry):
        for text in list(entry.findall(nodes.Text)):
            kept = re.sub(r"(?<=\d) (±|of) (?=\d)", "\u00a0\\1\u00a0", text)
            if kept != text:
                text.parent.replace(text, nodes.Text(kept))


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("doctree-read", one_line)
    app.connect("autodoc-process-docstring", plain_text, priority=400)  # before napoleon's
