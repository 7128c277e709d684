"""One self-contained HTML page from sections of text, figures and checks."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bayesagg_pyro.diagnostics._report.figure import png
from bayesagg_pyro.diagnostics._report.text import html
from bayesagg_pyro.diagnostics._thresholds import Check

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Section", "write_page"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; border-top: 1px solid #ddd;
  padding-top: .8rem; }
img { max-width: 100%; height: auto; }
section { overflow-x: auto; } nav ol { columns: 2; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
td, th { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #eee;
  vertical-align: top; }
.ok { color: #00664b; } .alarm { color: #b34700; font-weight: 600; }
.note { color: #555; }
"""


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
    notes: Sequence[str] = field(default=())


def write_page(path: str | os.PathLike[str], title: str, sections: Sequence[Section]) -> None:
    """Write the page; figures are part of the file.

    Args:
        path: of the HTML file.
        title: of the page.
        sections: in order.
    """
    alarms = [(s, check) for s in sections for check in s.checks if check.alarm]
    parts = [f"<h1>{html(title)}</h1>", _summary(sections, alarms), _contents(sections)]
    parts += [_section(section) for section in sections]
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{html(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )
    Path(path).write_text(page, encoding="utf-8")


def _summary(sections: Sequence[Section], alarms: Sequence[tuple[Section, Check]]) -> str:
    count = sum(len(section.checks) for section in sections)
    if not alarms:
        return f'<p class="ok">Nothing to worry about: {count} checks, no alarm.</p>'
    worse = sum(check.worry for _, check in alarms)
    verdict = (
        "No reason to worry, something to know"
        if not worse
        else f"{worse} {'reason' if worse == 1 else 'reasons'} to worry"
    )
    rows = sorted(alarms, key=lambda pair: not pair[1].worry)
    items = "".join(
        f"<li class={'plain' if check.worry else 'note'}>"
        f'<a href="#{_anchor(section)}">{html(section.title)}</a>: '
        f"{html(check.threshold.label)}{_place(check)} — "
        f"{html(check.threshold.meaning)}</li>"
        for section, check in rows
    )
    style = "alarm" if worse else "ok"
    return (
        f'<p class="{style}">{verdict}: {len(alarms)} of {count} checks alarm.</p><ul>{items}</ul>'
    )


def _contents(sections: Sequence[Section]) -> str:
    items = []
    for section in sections:
        alarms = sum(check.alarm for check in section.checks)
        said = f" ({alarms} alarm{'' if alarms == 1 else 's'})" if alarms else ""
        items.append(f'<li><a href="#{_anchor(section)}">{html(section.title)}</a>{said}</li>')
    return f'<nav><ol class="note">{"".join(items)}</ol></nav>'


def _section(section: Section) -> str:
    parts = [f'<section><h2 id="{_anchor(section)}">{html(section.title)}</h2>']
    parts += [f"<p>{html(text)}</p>" for text in section.text]
    for figure in section.figures:
        data = base64.b64encode(png(figure)).decode()
        parts.append(f'<img alt="{html(section.title)}" src="data:image/png;base64,{data}">')
    if section.checks:
        rows = "".join(_row(check) for check in section.checks)
        parts.append(
            "<table><tr><th></th><th>what</th><th>value</th><th>wanted</th>"
            f"<th>what it means</th></tr>{rows}</table>"
        )
    parts += [f'<p class="note">{html(note)}</p>' for note in section.notes]
    parts.append("</section>")
    return "\n".join(parts)


def _row(check: Check) -> str:
    threshold = check.threshold
    verdict = '<td class="ok">ok</td>'
    if check.alarm:
        verdict = '<td class="alarm">alarm</td>' if check.worry else "<td>look</td>"
    meaning = html(threshold.meaning) if check.alarm else ""
    sign = {"above": "at most", "below": "at least"}[threshold.side]
    return (
        f"<tr>{verdict}<td>{html(threshold.label)}{_place(check)}</td>"
        f"<td>{check.value:.3g}</td><td>{sign} {threshold.limit:g}<br>"
        f'<span class="note">{html(threshold.source)}</span></td>'
        f"<td>{meaning}</td></tr>"
    )


def _place(check: Check) -> str:
    return f" ({html(check.where)})" if check.where else ""


def _anchor(section: Section) -> str:
    return "".join(c if c.isalnum() else "-" for c in section.title.lower())
