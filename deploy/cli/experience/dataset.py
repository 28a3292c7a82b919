"""`headrace dataset`: the experience of a run as a data set, and data sets of others as one file."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from actors.datasets.base import MINARI, WRITERS, DatasetError, Episode, Source, open_source
from actors.datasets.human_steps import HumanStepsSource
from deploy.cli.common import DONE, REFUSED, complain
from deploy.cli.streams import tell
from deploy.config.values import SHARE
from deploy.errors import ConfigError
from transport.names import find
from transport.text import ProgressReport

USAGE_LINE = "headrace dataset {export RUN | import SOURCE | show SOURCE} …"
DESCRIPTION = """\
Experience as data sets, out and in.

  headrace dataset export lander --to npz --best 20%        lander.npz: the best fifth of the episodes that replay has kept
  headrace dataset export lander --to minari --out me/lander-v0
  headrace dataset export lander --human                    what a person has done who took over an actor
  headrace dataset export lander --to parquet               the folder lander-parquet, with LeRobot's columns
  headrace dataset import minari:D4RL/door/human-v2         reads and checks it, and writes door-human-v2.npz
  headrace dataset show door-human-v2.npz                   episodes, steps, returns, spaces

SOURCE is a run's name or folder, FILE.npz (ours, or with D4RL's arrays), a folder of Parquet files, or minari:ID. A run takes
part of each batch from one: `headrace up --env … --algo sac --replay.demonstrations SOURCE`.
"""
PROGRESS_SECONDS = 5.0


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    commands = target.add_subparsers(dest="action", metavar="export | import | show", required=True)
    export = commands.add_parser("export", help="write what a run's replay has kept")
    export.add_argument("source", metavar="RUN", help="a run's name or folder")
    export.add_argument("--to", choices=WRITERS, default="npz", help="the form (default: npz)")
    export.add_argument("--human", action="store_true", help="only human steps, in which a person steered an actor")
    bring = commands.add_parser("import", help="read a data set, check it, and write it as one .npz file")
    bring.add_argument("source", metavar="SOURCE", help="FILE.npz, a folder of Parquet files, minari:ID, or a run")
    for one in (export, bring):
        one.add_argument("--out", metavar="NAME", help="file, folder or Minari's name to write (default: after the source)")
        one.add_argument("--best", metavar="SHARE", type=SHARE, help="only the episodes with the highest returns, such as 20%%")
    show = commands.add_parser("show", help="print what a data set holds")
    show.add_argument("source", metavar="SOURCE", help="a run, FILE.npz, a folder of Parquet files, or minari:ID")
    show.add_argument("--json", action="store_true", help="print JSON, for programs")


def run(parsed: argparse.Namespace) -> int:
    try:
        source: Source = HumanStepsSource(parsed.source) if getattr(parsed, "human", False) else open_source(parsed.source)
        if parsed.action == "show":
            return _show(source, parsed.json)
        return _write(source, parsed)
    except DatasetError as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        return complain(f"cannot write {error.filename}: {error.strerror}", REFUSED)


def _show(source: Source, as_json: bool) -> int:
    from actors.datasets.statistics import summarise

    found = summarise(source)
    if as_json:
        print(json.dumps(found._asdict()))
        return DONE
    print(f"{found.source}: {found.episodes:,} episodes, {found.steps:,} steps")
    print(f"return       {found.return_mean:,.1f} ({found.return_min:,.1f} to {found.return_max:,.1f})")
    print(f"length       {found.length_mean:,.1f} steps; {found.terminated:,} of {found.episodes:,} episodes terminated")
    print(f"observation  {_brief(found.observation)}")
    print(f"action       {_brief(found.action)}")
    return DONE


def _write(source: Source, parsed: argparse.Namespace) -> int:
    from actors.datasets.statistics import chosen, threshold

    form = parsed.to if parsed.action == "export" else "npz"
    if source.spaces is None:
        raise ConfigError(
            f"{source.about} does not say which spaces its environment has, so it cannot be written as {form}: name it as it is, "
            "with --replay.demonstrations"
        )
    least = threshold(source, parsed.best) if parsed.best else None
    report, counted = ProgressReport(1, PROGRESS_SECONDS), list[int]()

    def progress(number: int) -> None:
        if report.due:
            tell(f"{number:,} episodes so far")

    def counting() -> Iterator[Episode]:
        for episode in chosen(source, least, progress):
            counted.append(len(episode.rewards))
            yield episode

    out = parsed.out or _name(source.about, form)
    if form != "minari" and os.path.lexists(out):
        raise ConfigError(f"{out} is there already: name another with --out, or move it away")
    find(form, WRITERS, "form")(out, counting(), source.spaces, source.about)
    print(f"{out}: {len(counted):,} episodes, {sum(counted):,} steps")
    return DONE


def _name(about: str, form: str) -> str:
    """The default name of what is written."""
    name = about.removeprefix(MINARI)
    stem = name.partition("/")[2].replace("/", "-") if name != about and name.count("/") > 1 else name.replace("/", "-")
    stem = stem if name != about else Path(about.removeprefix("run ")).name.removesuffix(".npz").replace(" ", "-")
    return {"npz": f"{stem}.npz", "minari": f"headrace/{stem}-v0", "parquet": f"{stem}-parquet"}[form]


def _brief(space: Any) -> str:
    if isinstance(space, dict) and "kind" in space:
        parts = space.get("spaces")
        if parts is not None:
            items = parts.items() if isinstance(parts, dict) else enumerate(parts)
            return ", ".join(f"{name}: {_brief(part)}" for name, part in items)
        size = space.get("shape") or space.get("n") or space.get("nvec")
        return f"{space['kind']} {size}"
    if isinstance(space, dict):
        return ", ".join(f"{name}: {_brief(shape)}" for name, shape in space.items())
    return " x ".join(map(str, space)) or "a number"
