"""Two machines side by side as one HTML page, which needs nothing from elsewhere."""

from __future__ import annotations

from html import escape

from benchmarks.device.side_by_side import HEADS, SECTIONS, Comparison, Row, cells

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --faint: #57606a; --line: #d0d7de;
  --ground: #ffffff; --band: #f6f8fa; --mark: #9a3412; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --faint: #9da7b3; --line: #3d444d;
    --ground: #0d1117; --band: #161b22; --mark: #ffb77c; }
}
body { margin: 2rem auto; max-width: 75rem; padding: 0 1rem; background: var(--ground); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { font-size: 1.2rem; margin-top: 2.5rem; }
ul { padding-left: 1.2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 0.35rem 0.75rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:last-child, th:last-child { text-align: left; }
tbody th { font-weight: 500; }
thead th { color: var(--faint); border-bottom-width: 2px; }
tbody tr:nth-child(even) { background: var(--band); }
td:last-child { white-space: normal; }
.mark { color: var(--mark); font-weight: 600; }
"""


def page(comparison: Comparison) -> str:
    """The whole document."""
    title = escape(comparison.title)
    warnings = "".join(f'<p class="mark">{escape(warning)}</p>\n' for warning in comparison.warnings)
    tables = "".join(_table(name, comparison) for name in SECTIONS)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        f"{_items(comparison.about)}{warnings}{tables}"
        f"<h2>What is left to the CPU, fails or differs</h2>\n{_items(comparison.left)}</body>\n</html>\n"
    )


def _items(lines: list[str]) -> str:
    return "<ul>\n" + "".join(f"<li>{escape(line)}</li>\n" for line in lines) + "</ul>\n"


def _table(section: str, comparison: Comparison) -> str:
    rows = [_row(row) for row in comparison.rows if row.section == section]
    if not rows:
        return ""
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in HEADS)
    body = "".join(rows)
    return (
        f'<h2>{escape(SECTIONS[section])}</h2>\n<div class="wide"><table>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>\n"
    )


def _row(row: Row) -> str:
    name, *numbers, marks = map(escape, cells(row))
    body = "".join(f"<td>{number}</td>" for number in numbers)
    return f'<tr><th scope="row">{name}</th>{body}<td class="mark">{marks}</td></tr>\n'
