"""The learner's throughput line."""

from __future__ import annotations

from collections.abc import Mapping

from transport.metrics import Record


def figure(value: float) -> str:
    """Formats a loss or an error, small or huge."""
    return f"{value:.4f}" if abs(value) < 1_000 else f"{value:,.0f}"


def describe(record: Record, figures: Mapping[str, str]) -> str:
    """`figures` is the algorithm's: metric -> format, which may name other metrics."""
    get = record.get
    if get("compiling") or not get("updates"):
        doing = "compiling the update" if get("compiling") else "waiting for experience"
        return f"{doing} · policy v{get('policy_version', 0):.0f}"
    busy = get("device_fraction", get("update_fraction", 0))
    shown = [text.format(record[name], **record) for name, text in figures.items() if name in record]
    parts = (
        f"epoch {get('epoch', 0):,.0f} · {get('updates_per_second', 0):.1f} updates/s",
        f"{get('items_per_second', 0):,.0f} items/s",
        f"loss {figure(record['loss'])}" if "loss" in record else "",  # it is read at the end of an epoch
        *shown,
        f"policy v{get('policy_version', 0):.0f}",
        f"data wait {get('data_wait_fraction', 0):.1%} · device busy {busy:.0%}",
        f"skipped updates {get('skipped_updates', 0):.0f}" if get("skipped_updates") else "",
        f"not finite {get('ignored', 0):.0%} of items" if get("ignored") else "",
        f"rolled back {get('rollbacks', 0):.0f} times" if get("rollbacks") else "",
        f"not published {get('refused_weights', 0):.0f} versions" if get("refused_weights") else "",
        f"not saved {get('failed_checkpoints', 0):.0f} checkpoints" if get("failed_checkpoints") else "",
    )
    return " · ".join(filter(None, parts))
