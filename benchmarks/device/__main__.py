"""`headrace bench device`: what the learner's device can do, beside the CPU of the same machine.

  matrices    products of square matrices in each precision that the device has, float32 on the CPU beside it
  memory      copies within the device, and between it and the host from pageable and from page-locked memory
  operations  every operation in an update of every shipped algorithm and network, recorded while real updates are made on the
              CPU: done on the device with the same tensors, compared with the CPU's answer, and timed on both. Listed are
              those that the device leaves to the CPU, those that fail, and those whose answers differ beyond rounding

Where the only device is the CPU, all is measured once, and the ratios are 1.

`--compare A.json B.json` measures nothing. It sets two results of `--json` side by side, operation by operation: the time on
each, the ratio, and what falls back to the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.report import Report, make_parser, say
from benchmarks.device.operations import Operation, Outcome, by_name, compare, per_update, recorded, waiter
from benchmarks.device.side_by_side import CompareError, side_by_side
from learner.devices import capabilities as devices
from learner.devices.capabilities import DeviceError, capabilities
from learner.devices.detection import resolve
from transport.text import reported

CASES = ("matrices", "memory", "operations")
CPU = torch.device("cpu")
LISTED = {"falls back": "fall back to the CPU", "fails": "fail", "differs": "differ from the CPU's"}


def repeated(action: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Seconds that one takes, of as many in a row as fill the time."""
    wait = waiter(device)
    action()
    wait()
    begun = time.perf_counter()
    action()
    wait()
    repeats = max(1, int(seconds / max(time.perf_counter() - begun, 1e-7)))
    begun = time.perf_counter()
    for _ in range(repeats):
        action()
    wait()
    return (time.perf_counter() - begun) / repeats


def products(device: torch.device, size: int, precision: str, seconds: float) -> float:
    """TFLOP/s of [size, size] by [size, size]. `precision`: a type, or TF32 for float32 computed so."""
    kind = torch.float32 if precision == "TF32" else getattr(torch, precision)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "TF32" else "highest")
    try:
        one, other = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
        out = torch.empty_like(one)
        return 2 * size**3 / repeated(lambda: torch.mm(one, other, out=out), device, seconds) / 1e12
    finally:
        torch.set_float32_matmul_precision(before)


def measure_matrices(report: Report, device: torch.device, sizes: list[int], seconds: float) -> None:
    """Every size in every precision."""
    kinds = list(capabilities(device).precisions)
    if device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device)[0] >= 8:
        kinds.append("TF32")
    for size in sizes:
        case = f"matrix product {size:,}"
        found = {kind: products(device, size, kind, seconds) for kind in kinds}
        for kind, rate in found.items():
            report.add(case, kind, "TFLOP/s", [rate])
        cpu = found["float32"] if device.type == "cpu" else products(CPU, size, "float32", seconds)
        if device.type != "cpu":
            report.add(case, "CPU float32", "TFLOP/s", [cpu])
        for kind, rate in found.items():
            report.ratio(case, kind, "CPU float32", rate / cpu)


def measure_memory(report: Report, device: torch.device, size_bytes: int, seconds: float) -> None:
    """GB/s. A copy within the device counts the bytes read and those written; one between host and device counts them once."""
    here, there = (torch.randint(0, 256, (size_bytes,), dtype=torch.uint8, device=device) for _ in range(2))
    report.add("memory", "copy", "GB/s", [2 * size_bytes / repeated(lambda: there.copy_(here), device, seconds) / 1e9])
    if device.type == "cpu":
        return
    hosts = {"pageable": torch.empty(size_bytes, dtype=torch.uint8)}
    hosts["pageable"].fill_(1)
    if capabilities(device).pinned_memory:
        hosts["page-locked"] = torch.ones(size_bytes, dtype=torch.uint8).pin_memory()
    for name, host in hosts.items():
        to, back = (lambda: there.copy_(host, non_blocking=True)), (lambda: host.copy_(there, non_blocking=True))  # noqa: B023
        for way, copy in (("host to device", to), ("device to host", back)):
            report.add("memory", f"{way}, {name}", "GB/s", [size_bytes / repeated(copy, device, seconds) / 1e9])


def measure_operations(report: Report, device: torch.device, items: int, compare_: Callable[[Operation], Outcome]) -> None:
    """Times by operation and by network; the lists."""
    operations, outcomes = recorded(device, items, say), []
    try:
        for operation in reported(operations, "operations", say):
            outcomes.append(compare_(operation))
    except KeyboardInterrupt:
        report.notes.append(f"stopped after {len(outcomes)} operations")
    report.notes.append(f"{len(operations)} operations by shape and type, recorded from updates of {items} items")
    for network in dict.fromkeys(name for operation in operations for name in operation.calls):
        add_times(report, f"all of {network}", [per_update(each, network) for each in outcomes], "ms", 1e3)
    for name, each in by_name(outcomes).items():
        add_times(report, name.removeprefix("aten::"), [per_update(one) for one in each], "µs", 1e6)
    report.more["items"] = items
    report.more["operations"] = lists(outcomes)
    for verdict, words in LISTED.items():
        listed = report.more["operations"][verdict]
        names = "; ".join(f"{each['name']} ({each['reason']})" for each in listed)
        report.notes.append(f"operations that {words}: {names or 'none'}")


def add_times(report: Report, case: str, times: list[tuple[float, float]], unit: str, scale: float) -> None:
    """Seconds on the CPU and on the device, added up, and how many times as fast the device is. What failed counts nowhere."""
    cpu, device = sum(on_cpu for on_cpu, _ in times), sum(on_device for _, on_device in times)
    if not cpu or not device:
        return
    report.add(case, "CPU", unit, [scale * cpu])
    report.add(case, "device", unit, [scale * device])
    report.ratio(case, "time", "CPU", cpu / device)


def lists(outcomes: list[Outcome]) -> dict[str, list[dict[str, Any]]]:
    """Operations by verdict, each name once, with the reason and the networks that use it."""
    found: dict[str, list[dict[str, Any]]] = {verdict: [] for verdict in LISTED}
    for name, each in by_name(outcomes).items():
        for verdict, entries in found.items():
            bad = [outcome for outcome in each if outcome.verdict == verdict]
            if bad:
                users = sorted({user for outcome in bad for user in outcome.operation.calls})
                entries.append({"name": name, "reason": bad[0].reason, "networks": users})
    return found


def about(device: torch.device) -> dict[str, Any]:
    """The answer to other benchmarks: its name in learner.device, its own name (None of the CPU), its abilities."""
    able = capabilities(device)
    usual = devices.precision("auto", device, convolutions=True)
    return {
        "device": "directml" if device.type == "privateuseone" else str(device),
        "name": None if device.type == "cpu" else able.name,
        "precisions": [usual, *(other for other in able.precisions if other != usual)],
        "compiles": able.compiles,
        "graphs": able.graphs,
    }


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser("device", __doc__)
    parser.add_argument("--device", default="auto", help="as learner.device (default auto)")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES, help="which to measure (default all)")
    parser.add_argument("--sizes", nargs="+", type=int, help="of matrices (default 512 1024 2048; on accelerators up to 8192)")
    parser.add_argument("--batch-size", type=int, help="items of a recorded update (default 32; on accelerators 256)")
    parser.add_argument("--memory-mb", type=int, help="size of copies (default 64; on accelerators 512)")
    parser.add_argument("--seconds", type=float, default=0.3, help="length of each measurement of a rate (default 0.3)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of the CPU (default all cores)")
    parser.add_argument("--quick", action="store_true", help="matrices and memory only")
    parser.add_argument("--compare", nargs="*", type=Path, metavar="FILE", help="set two results side by side: A.json B.json")
    parser.add_argument("--about", action="store_true", help="only say in JSON what the device is called and can do")
    options = parser.parse_args(arguments)
    if options.quick:
        options.cases = ("matrices", "memory")
    given = [*(options.sizes or []), options.batch_size or 1, options.memory_mb or 1, options.seconds, options.threads]
    if min(given) <= 0:
        parser.error("sizes, --batch-size, --memory-mb, --seconds and --threads must be greater than 0")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line and measures, or compares."""
    options = parse(arguments)
    if options.compare is not None:
        try:
            print(side_by_side(options.compare, options.json))
        except CompareError as error:
            print(f"headrace bench device: {error}", file=sys.stderr)
            return 2
        return 0
    try:
        device = resolve(options.device)
    except DeviceError as error:
        print(f"headrace bench device: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # reports what was measured
    if options.about:
        print(json.dumps(about(device)))
        return 0
    devices.set_up(device, options.threads)
    large = device.type != "cpu"
    report = Report("device", gpu=about(device)["name"])
    report.more["device"] = about(device)["device"]
    report.notes.append(f"device {device} ({capabilities(device).name}), beside it the CPU with {options.threads} threads")
    if "matrices" in options.cases:
        say("matrices …")
        measure_matrices(report, device, options.sizes or [512, 1024, 2048, *((4096, 8192) if large else ())], options.seconds)
    if "memory" in options.cases:
        say("memory …")
        measure_memory(report, device, (options.memory_mb or (512 if large else 64)) << 20, options.seconds)
    if "operations" in options.cases:
        measure_operations(report, device, options.batch_size or (256 if large else 32), lambda one: compare(one, device))
    report.print(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
