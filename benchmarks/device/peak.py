"""The most that a card can do by its maker's figures: arithmetic by precision, and bytes to and from its memory.

Arithmetic is that of dense matrix products, sums kept in float32; with sparsity some data sheets print twice as much. float32 is
that of the ordinary units, TF32 and the 16-bit types that of the matrix units where there are any. A card that is not listed has
no peak here, nor has a processor: its clock changes with its load, and a virtual machine lends a part of it.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple


class Peak(NamedTuple):
    """Of one card."""

    tflops: dict[str, float]  # by precision, as `headrace bench device` calls them
    gigabytes: float  # per second, of the card's memory
    source: str


def _tensor(float32: float, tf32: float, half: float, gigabytes: float, source: str) -> Peak:
    return Peak({"float32": float32, "TF32": tf32, "bfloat16": half, "float16": half}, gigabytes, source)


HOPPER = "NVIDIA's H100 data sheet, without sparsity"
AMPERE = "NVIDIA's A100 data sheet, without sparsity"
GA102 = "NVIDIA's GA102 white paper, appendix A, without sparsity"
# By the name that torch gives, whole: "NVIDIA GeForce RTX 4090 Laptop GPU" is another card than "NVIDIA GeForce RTX 4090".
PEAKS = {
    r"NVIDIA H200": _tensor(67.0, 494.7, 989.4, 4_800, "NVIDIA's H200 data sheet, without sparsity"),
    r"NVIDIA H100 80GB HBM3": _tensor(67.0, 494.7, 989.4, 3_350, HOPPER),
    r"NVIDIA H100 PCIe": _tensor(51.2, 378.0, 756.0, 2_000, HOPPER),
    r"NVIDIA A100-SXM4-80GB": _tensor(19.5, 156.0, 312.0, 2_039, AMPERE),
    r"NVIDIA A100 80GB PCIe": _tensor(19.5, 156.0, 312.0, 1_935, AMPERE),
    r"(NVIDIA )?A100-(SXM4|PCIE)-40GB": _tensor(19.5, 156.0, 312.0, 1_555, AMPERE),
    r"NVIDIA A10": _tensor(31.2, 62.5, 125.0, 600, "NVIDIA's A10 data sheet, without sparsity"),
    r"NVIDIA L4": _tensor(30.3, 60.0, 121.0, 300, "NVIDIA's L4 data sheet, halved: it counts sparsity"),
    r"NVIDIA L40S": _tensor(91.6, 183.0, 362.0, 864, "NVIDIA's L40S data sheet, without sparsity"),
    r"NVIDIA GeForce RTX 4090": _tensor(82.6, 82.6, 165.2, 1_008, "NVIDIA's Ada white paper, appendix A, without sparsity"),
    r"NVIDIA GeForce RTX 3090": _tensor(35.6, 35.6, 71.0, 936, GA102),
    r"Tesla V100-SXM2-(16|32)GB": Peak({"float32": 15.7, "float16": 125.0}, 900, "NVIDIA's V100 data sheet"),
    r"Tesla V100-PCIE-(16|32)GB": Peak({"float32": 14.0, "float16": 112.0}, 900, "NVIDIA's V100 data sheet"),
    r"(Tesla|NVIDIA) T4": Peak({"float32": 8.1, "float16": 65.0}, 320, "NVIDIA's T4 data sheet"),
    r"AMD Instinct MI300X.*": _tensor(163.4, 653.7, 1_307.4, 5_300, "AMD's MI300X data sheet, without sparsity"),
}


def peak(name: str) -> Peak | None:
    """That of the card which torch calls so; None where it is not known."""
    plain = re.sub(r" \(ROCm [^)]*\)$", "", name)
    return next((found for pattern, found in PEAKS.items() if re.fullmatch(pattern, plain)), None)


def share(seconds: float, flops: dict[str, float], moved_bytes: float, of: Peak) -> float | None:
    """The least time that the work needs, by its arithmetic or by its bytes, as a share of the time that it took.

    None where it has neither, or arithmetic in a precision whose peak is not known.
    """
    if seconds <= 0 or not flops.keys() <= of.tflops.keys():
        return None
    arithmetic = sum(number / (of.tflops[precision] * 1e12) for precision, number in flops.items())
    least = max(arithmetic, moved_bytes / (of.gigabytes * 1e9))
    return least / seconds if 0 < least < math.inf else None
