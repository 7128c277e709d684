"""Text from files and command lines, as each format shows it; one function for each.

Names of tasks, runs and methods may be anything. For pages in HTML see ``diagnostics``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from bayesagg_pyro.diagnostics._report.text import visible as visible

_LATEX: Final = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "−": "$-$",
    "Δ": r"$\Delta$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "→": r"$\rightarrow$",
    "μ": r"$\mu$",
    "α": r"$\alpha$",
    "ε": r"$\epsilon$",
    "⟨": r"$\langle$",
    "⟩": r"$\rangle$",
    "²": r"$^2$",
    "₀": "$_0$",
    "…": r"\ldots{}",
    "‘": "`",
    "’": "'",
    "“": "``",
    "”": "''",
    "—": "---",
    "<": "$<$",
    ">": "$>$",
}
_TYPESET: Final = "\u017f"
"""Letters up to here need no package under pdfLaTeX."""

_MARKED: Final = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")
_NAME: Final = re.compile(r"[^A-Za-z0-9_@.-]+")
_RESERVED: Final = re.compile(r"(?i)(con|prn|aux|nul|(com|lpt)[0-9])(?=\.|$)")
"""Names that are devices under Windows, with any ending."""

_LONGEST: Final = 100


def markdown(text: object) -> str:
    """For a line or a table's cell; underscores within words stay as they are."""
    shown = _MARKED.sub(r"\\\g<0>", visible(text))
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def latex(text: object) -> str:
    """For pdfLaTeX; ``ε_HOMO`` and ``R^2`` with real scripts, unknown letters by their number."""
    shown = unicodedata.normalize("NFC", visible(text))
    parts = re.split(r"([A-Za-zμαε]+[_^][A-Za-z0-9]+)(?![A-Za-z0-9_])", shown)
    made = "".join(
        _scripts(part) if index % 2 and _is_symbol(part) else "".join(map(_letter, part))
        for index, part in enumerate(parts)
    )
    # After the end of a row, these would belong to it.
    return "{}" + made if made.startswith(("[", "*")) else made


def terminal(text: object) -> Text:
    """For rich, which takes ``[red]`` in plain strings for a colour."""
    return Text(visible(text))


class PlainConsole(Console):
    """A console on which strings are text and nothing else, in tables as well."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def say(self, text: str, style: str | None = None) -> None:
        """A line in one piece, which a narrow terminal may break but a file holds whole."""
        self.print(text, style=style, soft_wrap=True)

    def render_str(self, text: str, **settings: Any) -> Text:
        """As rich does, line by line without control characters."""
        return super().render_str("\n".join(map(visible, text.split("\n"))), **settings)


def figure(text: object) -> str:
    """For matplotlib, where dollars begin mathematics and no label may begin with ``_``."""
    shown = visible(text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def file_name(text: object, taken: Container[str] = ()) -> str:
    """A name within its folder, on any system, by a number apart from those that are taken."""
    name = _NAME.sub("-", str(text)).strip("-.")[:_LONGEST].rstrip(".") or "unnamed"
    name = _RESERVED.sub(r"\1_", name) if _RESERVED.match(name) else name
    number, free = 2, name
    while free in taken:
        number, free = number + 1, f"{name}-{number}"
    return free


def _letter(letter: str) -> str:
    if letter in _LATEX:
        return _LATEX[letter]
    if letter <= _TYPESET:
        return letter
    return f"U+{ord(letter):04X}"


def _is_symbol(text: str) -> bool:
    """Whether ``a_b`` is a symbol with a script, and not a word with an underscore."""
    return len(re.split(r"[_^]", text)[0]) <= 2


def _scripts(text: str) -> str:
    base, sign, script = re.split(r"([_^])", text, maxsplit=1)
    greek = {"μ": r"\mu", "α": r"\alpha", "ε": r"\epsilon"}
    return f"${greek.get(base, base)}{sign}{{\\mathrm{{{script}}}}}$"
