"""`headrace bench serving`: requests per second of one policy server, and how long they take, beside predict() in a loop.

The policy is that of zoo:cartpole, the server `headrace serve` in one process on one core; all clients are another process, on
another core where there is one. Each client keeps its connection and has one request under way, with one observation. "full
speed": each asks again at once. "half": as many requests as half of that, at even times; a request's time counts from when it was
due. Every answer is compared with the policy's.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import psutil

import headrace
from benchmarks.common.processes import ONE_THREAD
from benchmarks.common.report import Report, add_length, command_note, make_parser, say
from benchmarks.serving.load import Clients, Load, over_http, over_websocket
from deploy.children import child_environment, python_command

POLICY = "zoo:cartpole"
CLIENTS = (1, 8, 50)
WAYS = {"HTTP": over_http, "WebSocket": over_websocket}
GOAL_RATE, GOAL_MS = 2000, 10
OBSERVATION = np.array([0.01, -0.02, 0.03, -0.04], np.float32)
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


@contextmanager
def server(token: str) -> Iterator[tuple[int, psutil.Process]]:
    """The port of a server, on the first core, and its process."""
    command = python_command("deploy.cli", "serve", POLICY)
    environment = child_environment() | ONE_THREAD | {"HEADRACE_TOKEN": token}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    try:
        if len(CORES) > 1:
            os.sched_setaffinity(process.pid, CORES[:1])
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert found, "the server has not started"
        yield int(found[1]), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def predict(seconds: float) -> float:
    """Calls per second of Policy.predict, one observation each."""
    policy = headrace.load(POLICY)
    for _ in range(100):
        policy.predict(OBSERVATION)
    began, calls = time.perf_counter(), 0
    while time.perf_counter() < began + seconds:
        policy.predict(OBSERVATION)
        calls += 1
    return calls / (time.perf_counter() - began)


def measure(port: int, token: str, way: str, count: int, seconds: float, answer: bytes) -> tuple[Load, Load]:
    """At full speed, and at half of it."""
    opening, request = WAYS[way](port, token, json.dumps({"observation": OBSERVATION.tolist()}).encode())
    clients = Clients(port, count, opening, request, lambda found: answer in found)
    try:
        full = clients.at_full_speed(seconds)
        return full, clients.at(full.requests_per_second / 2, seconds)
    finally:
        clients.close()


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser("serving", __doc__)
    add_length(parser, seconds=5, runs=1, quick="half a second of each case")
    options = parser.parse_args(arguments)
    seconds = 0.5 if options.quick else options.seconds
    report = Report("serving")
    report.notes.append(command_note("serving", arguments))
    if len(CORES) > 1:
        os.sched_setaffinity(0, CORES[1:2])
    policy, token = headrace.load(POLICY), secrets.token_urlsafe(24)
    action, version = policy.predict(OBSERVATION), policy.about["policy_version"]
    answer = json.dumps({"action": action, "policy_version": version}, separators=(",", ":")).encode()
    alone = report.add("Policy.predict, in a loop", "calls", "calls/s", [predict(seconds) for _ in range(options.runs)])
    with server(token) as (port, process):
        for way in WAYS:
            for count in CLIENTS:
                case = f"{way}, {count} client{'s' * (count > 1)}"
                say(case)
                pairs, used = [], []
                for _ in range(options.runs):
                    before = sum(process.cpu_times()[:2])
                    pairs.append(pair := measure(port, token, way, count, seconds, answer))
                    used.append((sum(process.cpu_times()[:2]) - before) / sum(load.requests for load in pair) * 1e6)
                rate = report.add(case, "full speed", "requests/s", [full.requests_per_second for full, _ in pairs])
                for name, of in (("full speed", 0), ("half", 1)):
                    report.add(case, f"{name}, p50", "ms", [pair[of].p50_ms for pair in pairs])
                    report.add(case, f"{name}, p99", "ms", [pair[of].p99_ms for pair in pairs])
                report.add(case, "processor", "µs a request", used)
                report.ratio(case, "requests/s", "calls of predict", rate / alone)
    report.print(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
