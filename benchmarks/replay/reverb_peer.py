"""Reverb at Headrace's work: its server, a writer and a sampler, each a process; run by a Python that has dm-reverb (Linux).

The writer appends single steps to a StructuredWriter, which makes the items itself; or ("reverb-trajectory") to a
TrajectoryWriter, and creates them one by one, which takes in about half as many. Either sends each frame once and refers to it
from the items. The sampler draws batches through TrajectoryDataset and updates every item's priority by
Client.mutate_priorities. Windows run across the ends of episodes, which spares Reverb the work of ending them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np  # noqa: E402
import reverb  # noqa: E402
import tensorflow as tf  # noqa: E402
from reverb import structured_writer  # noqa: E402

from benchmarks.common.recording import load_frames  # noqa: E402
from benchmarks.replay.peer_script import Request, check_windows, print_answer, rates, read_request, rows_for_ever  # noqa: E402

TABLE = "replay"
PRIORITY_EXPONENT = 0.6
FLUSH = 500  # steps between two waits until no more than as many items are on their way
IN_FLIGHT, WORKERS = 512, 2
ERROR_BUFFER_BATCHES = 4  # by how much the mix may be off for a moment
SETTINGS = {
    "flush": FLUSH,
    "sampler": "TrajectoryDataset",
    "max_in_flight_samples_per_worker": IN_FLIGHT,
    "num_workers_per_iterator": WORKERS,
    "priorities": "Client.mutate_priorities",
}
CHECKED_BATCHES = 3
READY = "ready\n"
LEAD_SECONDS = 0.5
LIMITED_MS = 1000  # after which a sampler that waits for the limiter ends


def signature(wish: Request) -> dict[str, tf.TensorSpec]:
    """An item: its frames, and of the step acted on, action, reward and discount."""
    return {
        "observation": tf.TensorSpec([wish.window, 84, 84], tf.uint8),
        "action": tf.TensorSpec([1], tf.int32),
        "reward": tf.TensorSpec([wish.n_step], tf.float32),
        "discount": tf.TensorSpec([wish.n_step], tf.float32),
    }


def item(wish: Request, step: Any) -> dict[str, Any]:
    """Which of the last steps make up an item: the newest one only gives the last observation."""
    n = wish.n_step
    return {
        "observation": step["observation"][-wish.window :],
        "action": step["action"][-n - 1 : -n],
        "reward": step["reward"][-n - 1 : -1],
        "discount": step["discount"][-n - 1 : -1],
    }


def serve(wish: Request, port: int, mixed: bool) -> None:
    """The server process: until its input is closed."""
    limiter = (
        reverb.rate_limiters.SampleToInsertRatio(wish.mix, wish.capacity, ERROR_BUFFER_BATCHES * wish.batch)
        if mixed
        else reverb.rate_limiters.MinSize(1)
    )
    selector = reverb.selectors.Prioritized(PRIORITY_EXPONENT)
    table = reverb.Table(TABLE, selector, reverb.selectors.Fifo(), wish.capacity, limiter, signature=signature(wish))
    server = reverb.Server([table], port=port)
    print(READY, end="", flush=True)
    sys.stdin.read()
    server.stop()


def wait_for_start() -> float:
    """Says that this process is ready; returns the moment at which to begin, and waits for it."""
    print(READY, end="", flush=True)
    moment = float(sys.stdin.readline())
    time.sleep(max(moment - time.monotonic(), 0.0))
    return moment


def leave(result: dict[str, float]) -> None:
    """Prints it and ends this process at once: Reverb's threads would wait for the server."""
    print(json.dumps(result), flush=True)
    os._exit(0)


def write(wish: Request, port: int, fill: int) -> None:
    """The writer process: `fill` steps, or as many as fit into the time."""
    recording = load_frames()
    columns = recording.columns()
    steps = [{name: columns[name][row] for name in ("observation", "action", "reward")} for row in range(len(columns["reward"]))]
    for row, step in enumerate(steps):
        step["discount"] = np.float32(1 - columns["terminated"][row])
    writer, append = make_writer(wish, reverb.Client(f"localhost:{port}"), steps[0])
    begun = 0.0 if fill else wait_for_start()
    cpu, count = time.process_time(), 0
    for row in rows_for_ever(recording):
        if (fill and count >= fill) or (not fill and count % 10 == 0 and time.monotonic() >= begun + wish.seconds):
            break
        append(steps[row])
        count += 1
        if count % FLUSH == 0 and not flush(writer, FLUSH, begun + wish.seconds if begun else 0.0):
            break
    ended, cpu = time.monotonic(), time.process_time() - cpu
    if fill:
        writer.flush()
    # Left from within: a writer that the limiter blocks cannot be closed.
    leave({"count": count, "seconds": ended - begun, "cpu_seconds": cpu})


def make_writer(wish: Request, client: reverb.Client, step: Any) -> tuple[Any, Callable[[Any], None]]:
    """A writer, and what appends a step to it and makes the item that the step completes."""
    if wish.peer == "reverb":
        pattern = structured_writer.pattern_from_transform(step, lambda step: item(wish, step))
        structured = client.structured_writer([structured_writer.create_config(pattern, TABLE)])
        return structured, structured.append
    writer, appended = client.trajectory_writer(wish.window), 0
    for name in step:
        writer.configure((name,), num_keep_alive_refs=wish.window, max_chunk_length=wish.window)

    def append(step: Any) -> None:
        nonlocal appended
        writer.append(step)
        appended += 1
        if appended >= wish.window:
            writer.create_item(TABLE, 1.0, item(wish, writer.history))

    return writer, append


def flush(writer: Any, items: int, deadline: float) -> bool:
    """Waits until at most `items` are on their way; False when the deadline (0: none) came first, as it may at a fixed mix."""
    if not deadline:
        writer.flush(items)
        return True
    try:
        writer.flush(items, timeout_ms=max(int(1000 * (deadline - time.monotonic())), 1))
    except reverb.errors.DeadlineExceededError:
        return False
    return True


def batches(wish: Request, port: int) -> Any:
    """An iterator over batches; ends when the limiter has blocked it for long."""
    dataset = reverb.TrajectoryDataset.from_table_signature(
        f"localhost:{port}",
        TABLE,
        max_in_flight_samples_per_worker=IN_FLIGHT,
        num_workers_per_iterator=WORKERS,
        rate_limiter_timeout_ms=LIMITED_MS,
    )
    return iter(dataset.batch(wish.batch, drop_remainder=True))


def sample(wish: Request, port: int) -> None:
    """The sampler process: batches as numpy arrays, a new priority for every item."""
    client, drawn = reverb.Client(f"localhost:{port}"), batches(wish, port)
    next(drawn)
    generator = np.random.default_rng(0)
    ended = begun = wait_for_start()
    cpu, count = time.process_time(), 0
    while ended < begun + wish.seconds and (batch := next(drawn, None)) is not None:
        for column in batch.data.values():
            column.numpy()
        keys, priorities = batch.info.key.numpy(), generator.random(wish.batch)
        client.mutate_priorities(TABLE, updates=dict(zip(keys.tolist(), priorities.tolist(), strict=True)))
        count, ended = count + wish.batch, time.monotonic()
    leave({"count": count, "seconds": ended - begun, "cpu_seconds": time.process_time() - cpu})


def check(wish: Request, port: int) -> None:
    """The checker process: compares items with the recording."""
    recording, drawn = load_frames(), batches(wish, port)
    for _ in range(CHECKED_BATCHES):
        batch = next(drawn).data
        reward = batch["reward"].numpy()
        row = reward[:, 0].astype(np.int64)
        check_windows(recording, row - 3, batch["observation"].numpy())
        assert (batch["action"].numpy()[:, 0] == recording.action[row]).all(), "an action is not what was written"
        assert (reward == (row[:, None] + np.arange(wish.n_step)) % len(recording)).all(), "a reward is not what was written"
    leave({"count": CHECKED_BATCHES * wish.batch})


class Service:
    """A server process and the roles around it."""

    def __init__(self, wish: Request, mixed: bool) -> None:
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            self.port = int(probe.getsockname()[1])
        self.wish = wish
        self.server = self.start("server", str(int(mixed)))
        assert self.server.stdout is not None
        while self.server.stdout.readline() not in (READY, ""):
            pass

    def start(self, role: str, more: str = "0") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "benchmarks.replay.reverb_peer", sys.argv[1], role, str(self.port), more]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def cpu_seconds(self) -> float:
        """User and system time of the server so far (proc(5))."""
        with open(f"/proc/{self.server.pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def fill(self) -> None:
        finish(self.start("writer", str(self.wish.capacity + self.wish.window)))

    def check(self) -> int:
        return int(finish(self.start("checker"))["count"])

    def case(self, name: str, *roles: str) -> list[dict[str, Any]]:
        """Starts the roles, lets them begin at one moment; the figures."""
        processes = [self.start(role) for role in roles]
        for process in processes:
            assert process.stdout is not None and process.stdin is not None
            while process.stdout.readline() not in (READY, ""):
                pass
        moment = time.monotonic() + LEAD_SECONDS
        for process in processes:
            process.stdin.write(f"{moment}\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
        time.sleep(LEAD_SECONDS)
        cpu = self.cpu_seconds()
        time.sleep(max(moment + self.wish.seconds - time.monotonic(), 0))
        cpu = self.cpu_seconds() - cpu
        found = dict(zip(roles, [finish(process) for process in processes], strict=True))
        counts = {role: int(found[role]["count"]) if role in found else 0 for role in ("writer", "sampler")}
        seconds = max(role["seconds"] for role in found.values())
        total = cpu + sum(role["cpu_seconds"] for role in found.values())
        return rates(name, counts["writer"], counts["sampler"], seconds=seconds, cpu_seconds=total, server=cpu)

    def close(self) -> None:
        self.server.kill()
        self.server.wait()


def finish(process: subprocess.Popen[str]) -> dict[str, float]:
    """Returns what a role prints at its end. Ends this process where it failed."""
    text, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a process ended with {process.returncode}: see above")
    return dict(json.loads(text.splitlines()[-1]))


def main() -> None:
    """Every case once."""
    wish = read_request()
    found: list[dict[str, Any]] = []
    service = Service(wish, mixed=False)
    try:
        service.fill()
        found += service.case("one writer alone", "writer")
        found += service.case("one sampler alone", "sampler")
        found += service.case("together", "writer", "sampler")
        checked = service.check()
    finally:
        service.close()
    service = Service(wish, mixed=True)
    try:
        service.fill()  # as much as there must be before the limiter lets anyone sample
        found += service.case(f"together at {wish.mix:g} : 1", "writer", "sampler")
    finally:
        service.close()
    writer = ("StructuredWriter", "auto") if wish.peer == "reverb" else ("TrajectoryWriter", wish.window)
    settings = dict(zip(("writer", "chunk_length"), writer, strict=True)) | SETTINGS
    print_answer(f"{version('dm-reverb')} (tensorflow {tf.__version__})", settings, checked, found)


def part(role: str, port: int, more: int) -> None:
    """One process's part."""
    wish = read_request()
    if role == "server":
        serve(wish, port, bool(more))
    elif role == "writer":
        write(wish, port, more)
    elif role == "sampler":
        sample(wish, port)
    else:
        check(wish, port)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        part(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
