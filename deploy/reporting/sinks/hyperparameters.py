"""A run's settings as tracking services store them: flat, and without what says where or by whom it is run."""

from __future__ import annotations

import os
import secrets
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transport.run_dir import RunDir

LEFT_OUT = "deploy"  # addresses, interpreters, files: the machine's, not the experiment's


def hyperparameters(run: Path) -> dict[str, Any]:
    """The settings of config.toml by key, such as learner.batch_size; of a file's path its name alone. Raises OSError."""
    tree = tomllib.loads(RunDir(run).config.read_text(encoding="utf-8"))
    return dict(_leaves({name: table for name, table in tree.items() if name != LEFT_OUT}))


def tracking_folder(run: Path) -> Path:
    """Where a tracking library keeps its files. Raises OSError."""
    folder = run / "tracking"
    folder.mkdir(exist_ok=True)
    return folder


def own_id(run: Path, service: str) -> str:
    """The name under which a service knows this run, also after it was resumed. Raises OSError."""
    path = tracking_folder(run) / f"{service}-id"
    if not path.exists():
        path.write_text(secrets.token_hex(8))
    return path.read_text().strip()


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, os.path.basename(value) if isinstance(value, str) and os.path.isabs(value) else value
