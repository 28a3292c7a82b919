"""The page with its data inside: one file that needs nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from deploy.provenance import strict_json
from deploy.recorded.run import BINS, EVALUATIONS, LOG_LINES, RecordedRun
from deploy.views.web.columns import Document
from deploy.views.web.comparison import comparison
from deploy.views.web.document import PageFollower
from deploy.views.web.videos import put_inside
from transport.run_dir import RunDir

LIMIT_BYTES = 2_000_000
PAGE = files("deploy.views.web") / "page"
OWN_SCRIPTS = tuple(
    f"{name}.js" for name in ("format", "charts", "flow", "sections", "videos", "look", "configuration", "comparison", "page")
)
SCRIPTS = ("vendored/uPlot.iife.min.js", *OWN_SCRIPTS)
STYLES = ("vendored/uPlot.min.css", "page.css")
DATA = '<script type="application/json" id="data">'


def report(runs: Sequence[RecordedRun], score: float | None = None, videos: bool = False) -> str:
    """The page, of at most LIMIT_BYTES: where there is more, its history is coarser and its log shorter. `videos`: they are
    put inside too, beyond this limit."""
    compared, names = comparison(runs, score), names_of([run.run for run in runs])
    share = 1.0
    while True:
        documents = [document(run, share / len(runs)) | {"name": name} for run, name in zip(runs, names, strict=True)]
        found = with_data({"runs": documents, "comparison": compared})
        if len(found.encode()) <= LIMIT_BYTES or share < 1 / 64:
            break
        share /= 2
    if not videos:
        return found
    put_inside(documents, [run.run for run in runs])
    return with_data({"runs": documents, "comparison": compared})


def names_of(runs: Sequence[RunDir]) -> list[str]:
    """The name of each run in the page; those of one name in several places with as many folders as tell them apart."""
    names = [run.name for run in runs]
    for folders in range(2, max(len(run.path.parts) for run in runs) + 1):
        several = {name for name in names if names.count(name) > 1}
        names = ["/".join(run.path.parts[-folders:]) if name in several else name for run, name in zip(runs, names, strict=True)]
    return names


def document(run: RecordedRun, share: float) -> Document:
    """A run as the page shows it, with this share of the bins, evaluations and log lines that there may be."""
    bins, rows = (max(int(most * min(4 * share, 1.0)), 64) for most in (BINS, EVALUATIONS))
    return PageFollower(run, bins, int(LOG_LINES * share), rows).whole()


def with_data(data: Document) -> str:
    """The page with styles, scripts and data inside. Its policy allows these scripts, by their digests, and no other."""
    scripts, styles = [_text(name) for name in SCRIPTS], [_text(name) for name in STYLES]
    policy = (
        f"default-src 'none'; img-src data:; media-src data:; base-uri 'none'; form-action 'none'; "
        f"script-src {_digests(scripts)}; style-src {_digests(styles)}"
    )
    inside = strict_json(data).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    head = [f'<meta http-equiv="Content-Security-Policy" content="{policy}">', *(f"<style>{text}</style>" for text in styles)]
    head.append(f"<!-- uPlot:\n{_text('vendored/uPlot.LICENSE')}-->")
    body = [f"{DATA}{inside}</script>", *(f"<script>{text}</script>" for text in scripts)]
    return _text("index.html").replace("<!-- head -->", "\n".join(head)).replace("<!-- body -->", "\n".join(body))


def linked() -> str:
    """The page that loads styles and scripts from its server."""
    head = [f'<link rel="stylesheet" href="/page/{name}">' for name in STYLES]
    body = [f'<script src="/page/{name}"></script>' for name in SCRIPTS]
    return _text("index.html").replace("<!-- head -->", "\n".join(head)).replace("<!-- body -->", "\n".join(body))


def _text(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def _digests(texts: Sequence[str]) -> str:
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts)
