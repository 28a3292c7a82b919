"""A run's settings as tracking services store them: by dotted key, without what names this machine or its user."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from deploy.config.files import leaves, publishable, read_toml
from transport.files.documents import read_bytes
from transport.run_dir import RunDir


def hyperparameters(run: Path) -> dict[str, Any]:
    """The settings of config.toml that may be published, by key, such as learner.batch_size. Raises OSError."""
    tree = read_toml(RunDir(run).config)
    return dict(leaves(publishable(tree)))


def tracking_folder(run: Path) -> Path:
    """Where a tracking library keeps its files. Raises OSError."""
    folder = run / "tracking"
    folder.mkdir(exist_ok=True)
    return folder


def own_id(run: Path, service: str) -> str:
    """The id of this run at a service, the same after the run is resumed. Raises OSError."""
    path = tracking_folder(run) / f"{service}-id"
    if not path.exists():
        path.write_text(secrets.token_hex(8))
    return read_bytes(path).decode(errors="replace").strip()
