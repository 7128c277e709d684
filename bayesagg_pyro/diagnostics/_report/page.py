"""One self-contained HTML page from sections of text, figures and checks."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesagg_pyro.diagnostics._report.figure import png
from bayesagg_pyro.diagnostics._report.text import visible
from bayesagg_pyro.diagnostics._thresholds import Check

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: its heading.
        text: what the figure shows, in plain words; one paragraph each.
        figures: matplotlib figures.
        checks: values held against their thresholds.
        notes: what could not be shown, and why.
    """

    title: str
    text: Sequence[str]
    figures: Sequence[Figure] = ()
    checks: Sequence[Check] = ()
    notes: Sequence[str] = ()

    @property
    def anchor(self) -> str:
        """What links to the section name."""
        return "".join(c if c.isalnum() else "-" for c in self.title.lower())


def write_page(path: str | os.PathLike[str], title: str, sections: Sequence[Section]) -> None:
    """Write the page; figures are part of the file.

    Args:
        path: of the HTML file.
        title: of the page.
        sections: in order.
    """
    from jinja2 import Environment

    alarms = [(section, check) for section in sections for check in section.checks if check.alarm]
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    page = (
        Environment(autoescape=True, finalize=_plain)
        .from_string(template)
        .render(
            title=title,
            sections=sections,
            alarms=sorted(alarms, key=lambda pair: not pair[1].worry),
            worries=sum(check.worry for _, check in alarms),
            count=sum(len(section.checks) for section in sections),
            png=lambda figure: base64.b64encode(png(figure)).decode(),
        )
    )
    Path(path).write_text(page, encoding="utf-8")


def _plain(value: Any) -> Any:
    """What the template writes: visible text, which is then escaped, or what is HTML already."""
    return value if hasattr(value, "__html__") else visible(value)
