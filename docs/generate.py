"""Writes docs/reference/configuration.md from the structs that the program reads its settings into.

`python docs/generate.py` writes it; with --check it only says whether the file is what it should be.
"""

from __future__ import annotations

import sys
import typing
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Meta, Struct

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "configuration.md"
HEAD = """\
# Configuration

<!-- Made by `python docs/generate.py` from the structs; change those, not this file. -->

Every setting of a run: as a flag of `headrace up` (`--learner.batch-size 512`), in a file for `--config` (`batch_size = 512`
under `[learner]`), or from Python (`learner={"batch_size": 512}`). `headrace up --help all` prints the same, but for the last
ones of a table, which hardly anybody sets. A setting is taken from the first of these that has it: the command line;
`--config`; `--preset`, or the preset that fits environment and algorithm (`headrace presets`); the algorithm (its defaults for
this kind of task are at the end of this page); the default here.
`headrace up … --dry-run` prints those of a run, each with where it is from, in the form of a file for `--config`, and starts
nothing.
"""
DEFAULTS = """\
## Defaults of the algorithms

Where an algorithm has a default of its own for a kind of task, it counts in place of the one above. A preset may have another.
"""


def kind_of(kind: Any) -> str:
    """A type as the user writes its values."""
    if typing.get_origin(kind) is typing.Annotated:
        return kind_of(typing.get_args(kind)[0])
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(f"`{value}`" if value else "empty" for value in typing.get_args(kind))
    names = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    return names.get(kind, "list" if typing.get_origin(kind) in (list, tuple) else "table")


def bounds(kind: Any) -> str:
    """The limits of a number, in words."""
    words = {"ge": "at least {}", "gt": "more than {}", "le": "at most {}", "lt": "less than {}"}
    limits = [(text, getattr(meta, name)) for meta in metas(kind) for name, text in words.items()]
    return ", ".join(text.format(number(value)) for text, value in limits if value is not None)


def number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def metas(kind: Any) -> list[Meta]:
    parts = typing.get_args(kind)[1:] if typing.get_origin(kind) is typing.Annotated else ()
    return [part for part in parts if isinstance(part, Meta)]


def about(kind: Any) -> str:
    """The description of a field, with a note where it is fixed on resume."""
    described = next((meta.description for meta in metas(kind) if meta.description), "")
    fixed = any((meta.extra or {}).get("fixed") for meta in metas(kind))
    return f"{described} (fixed on resume)" if described and fixed else described


def shown(value: Any) -> str:
    if value is msgspec.NODEFAULT:
        return "required"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str | tuple | dict):
        text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        return f"`{text}`" if value else "empty"
    return f"`{number(value)}`" if isinstance(value, int | float) else f"`{value}`"


def row(prefix: str, field: Any) -> str:
    limits = bounds(field.type)
    values = kind_of(field.type) + (f", {limits}" if limits else "")
    made = field.default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT
    default = field.default_factory() if made else field.default
    cells = (f"`{prefix}{field.name}`", values, shown(default), about(field.type))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def is_rare(field: Any) -> bool:
    return any((meta.extra or {}).get("rare") for meta in metas(field.type))


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def table(title: str, prefix: str, kind: type[Struct], level: int = 2) -> str:
    """A heading, the struct's own first line, and a row for each of its fields that is no section; those hardly set come last."""
    first = (kind.__doc__ or "").partition("\n")[0]
    fields = [field for field in msgspec.structs.fields(kind) if not is_section(field.type) and about(field.type)]
    rows = [row(prefix, field) for field in sorted(fields, key=is_rare)]
    head = ["| setting | values | default | meaning |", "|---|---|---|---|"]
    return "\n".join([f"{'#' * level} {title}", "", first, "", *(head + rows if rows else ["No options of its own."]), ""])


def defaults_by_task(name: str) -> str:
    """A table of the settings for which an algorithm has defaults of its own, by kind of task where they differ."""
    from deploy.config.files import as_tree, leaves, lookup
    from deploy.config.run import RunConfig
    from learner.algorithms.base import find_algorithm
    from transport.experience import Categorical, Continuous, ExperienceSpec, observed
    from transport.names import Named

    algorithm, vector, image = find_algorithm(name), observed("observation", (4,), "<f4"), observed("image", (1, 84, 84), "|u1")
    tasks = {
        "vectors": ExperienceSpec((vector,), Categorical(2), 64),
        "vectors, continuous actions": ExperienceSpec((vector,), Continuous((-1.0,), (1.0,)), 64),
        "images": ExperienceSpec((image,), Categorical(2), 128),
    }
    able = {"categorical": ("vectors", "images"), "continuous": ("vectors, continuous actions",)}
    columns: dict[str, dict[str, Any]] = {}
    for task in (task for kind, of_kind in able.items() if kind in algorithm.actions for task in of_kind):
        for place, on_gpu in ((task, False), (f"{task}, on a GPU", True)):
            found = dict(leaves(algorithm.defaults(tasks[task], on_gpu)))
            if found not in columns.values():
                columns[place] = found
    usual = as_tree(RunConfig(algorithm=Named(name, algorithm.Config())))
    settings = sorted({setting for found in columns.values() for setting in found})
    rows = [
        [f"`{setting}`", *(shown(found.get(setting, lookup(usual, setting))) for found in columns.values())]
        for setting in settings
    ]
    headed = [["setting", *columns] if len(columns) > 1 else ["setting", "default"], ["---"] * (len(columns) + 1), *rows]
    return "\n".join([f"### {name}", "", *("| " + " | ".join(cells) + " |" for cells in headed), ""])


def page() -> str:
    from actors.envs.base import builtin_families
    from deploy.config.run import RunConfig
    from learner.algorithms.base import ALGORITHMS, find_algorithm

    parts = [HEAD, table("The run", "", RunConfig)]
    for field in msgspec.structs.fields(RunConfig):
        if field.name == "algorithm":
            parts += [table(f"algorithm: {name}", "algorithm.", find_algorithm(name).Config) for name in ALGORITHMS]
        elif is_section(field.type):
            parts.append(table(field.name, f"{field.name}.", field.type))
        if field.name == "env":
            parts += [
                table(f"env: {name}", "env.", family.Options)
                for name, family in builtin_families().items()
                if family.Options.__struct_fields__
            ]
    parts += [DEFAULTS, *(defaults_by_task(name) for name in ALGORITHMS)]
    return "\n".join(parts).rstrip() + "\n"


def main() -> int:
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE.relative_to(ROOT)} is not what the structs say: run `python docs/generate.py`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
