"""A TCP proxy below ZeroMQ: faults that are switched while two processes talk, and what they said."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

READ_BYTES = 16 * 1024
SEGMENT_BYTES = 1448  # of TCP over Ethernet: what one lost packet holds
TURN_SECONDS = 0.02
WINDOW_BYTES = 256 * 1024  # under way in one direction of a connection, then the sender has to wait
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends RST and drops what is queued


@dataclass
class Faults:
    """What a link does to bytes, in both directions. Change it at any time by `TcpProxy.set`."""

    blackhole: bool = False  # nothing passes, nobody is told; what was under way passes when it ends, as TCP would send it again
    delay_seconds: float = 0.0
    jitter_seconds: float = 0.0  # the delay is this much more or less; order is kept
    bytes_per_second: float = 0.0  # each direction of each connection; 0: as fast as it goes
    stall_probability: float = 0.0  # per segment: it is lost, so what follows waits `stall_seconds` until it has come again
    stall_seconds: float = 0.0
    break_probability: float = 0.0  # per READ_BYTES: half of it arrives, then the connection ends by RST


class TcpProxy:
    """Listens, on loopback if not told where, in a thread of its own and passes bytes on, as well as `faults` lets it."""

    def __init__(self, target: str, seed: int = 0, record: bool = False, listen: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        """`target`: "tcp://host:port", which may come and go. With `record` all bytes are kept, by connection and direction."""
        self.faults = Faults()
        self.recorded: dict[tuple[int, str], bytearray] = {}  # (connection, "up" or "down") -> bytes
        self.passed_bytes = 0
        self.resets = 0
        self.connections = 0  # that there have been
        self._record = record
        self._target = _host_and_port(target)
        self._random = random.Random(seed)
        self._linked: dict[int, asyncio.Task[None]] = {}  # the connections that there are
        self._windows: dict[int, list[_Window]] = {}  # of each
        self._cut_after: int | None = None
        self._listening = socket.create_server(listen, backlog=128)
        self._listening.setblocking(False)
        self.address = f"tcp://{listen[0]}:{self._listening.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def set(self, **changes: Any) -> None:
        """Only these faults from now on; none without any."""
        self.faults = Faults(**changes)

    def said(self, way: str) -> bytes:
        """All recorded bytes of one way, "up" (to the target) or "down", one connection after the other."""
        return b"".join(bytes(self.recorded[key]) for key in sorted(self.recorded) if key[1] == way)

    @property
    def held_bytes(self) -> int:
        """What it has taken in and not passed on yet."""
        return sum(window.held for windows in list(self._windows.values()) for window in windows)

    def reset(self) -> int:
        """Ends every connection by RST, whatever is under way; returns how many there were."""
        return self._call(self._reset())

    def cut(self, after_bytes: int) -> None:
        """Ends the connection by RST that passes the last of so many bytes from now on: in the middle of a message."""
        self._cut_after = self.passed_bytes + after_bytes

    def close(self) -> None:
        """Ends every connection and the thread."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, int]) -> int:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._start(self._accept())
        self._loop.run_forever()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        while True:
            near, _ = await self._loop.sock_accept(self._listening)
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._start(self._connect(near))

    async def _connect(self, near: socket.socket) -> None:
        """The other half; a target that is not there refuses, as it would without a proxy. Ends both by RST, however it ends."""
        far = socket.socket()
        far.setblocking(False)
        try:
            while self.faults.blackhole:
                await asyncio.sleep(TURN_SECONDS)
            await self._loop.sock_connect(far, self._target)
            far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            number, work = self.connections, []
            for way, source, sink in (("up", near, far), ("down", far, near)):
                queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
                under_way = _Window()
                self._windows.setdefault(number, []).append(under_way)
                work.append(self._loop.create_task(self._read(number, way, source, queue, under_way)))
                work.append(self._loop.create_task(self._write(sink, queue, under_way)))
            self._linked[number] = _own_task()
            try:
                await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            finally:
                del self._linked[number], self._windows[number]
                for task in work:  # before the sockets are closed: their numbers are soon those of others
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)
        except OSError:
            pass
        finally:
            _end(near)
            _end(far)

    async def _read(
        self, number: int, way: str, source: socket.socket, queue: asyncio.Queue[tuple[float, bytes]], under_way: _Window
    ) -> None:
        """One direction of one connection, as it comes."""
        while data := await self._loop.sock_recv(source, READ_BYTES):
            if self._record:
                self.recorded.setdefault((number, way), bytearray()).extend(data)
            faults = self.faults
            wait = faults.delay_seconds + self._random.uniform(-1, 1) * faults.jitter_seconds
            queue.put_nowait((self._loop.time() + max(wait, 0.0), data))
            await under_way.add(len(data))
        queue.put_nowait((0.0, b""))
        await asyncio.Event().wait()  # the other half ends the connection when all has been written

    async def _write(self, sink: socket.socket, queue: asyncio.Queue[tuple[float, bytes]], under_way: _Window) -> None:
        """The same direction, when the time of each piece has come."""
        while True:
            due, data = await queue.get()
            if not data:
                return
            await asyncio.sleep(max(due - self._loop.time(), 0.0))
            faults = self.faults
            if faults.bytes_per_second:
                await asyncio.sleep(len(data) / faults.bytes_per_second)
            if faults.stall_probability:
                lost = sum(self._random.random() < faults.stall_probability for _ in range(0, len(data), SEGMENT_BYTES))
                await asyncio.sleep(lost * faults.stall_seconds)
            while self.faults.blackhole:
                await asyncio.sleep(TURN_SECONDS)
            cut = self._cut_after is not None and self.passed_bytes + len(data) >= self._cut_after
            if cut:
                data = data[: max((self._cut_after or 0) - self.passed_bytes, 0)]
                self._cut_after = None
            elif faults.break_probability and self._random.random() < faults.break_probability:
                cut, data = True, data[: len(data) // 2]
            await self._loop.sock_sendall(sink, data)
            self.passed_bytes += len(data)
            under_way.take(len(data))
            if cut:
                self.resets += 1
                return

    async def _reset(self) -> int:
        tasks = list(self._linked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.resets += len(tasks)
        return len(tasks)

    async def _close(self) -> int:
        own = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not own]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening.close()
        return 0


@dataclass
class _Window:
    """Bytes under way in one direction, at most about WINDOW_BYTES."""

    held: int = 0
    room: asyncio.Event = field(default_factory=asyncio.Event)

    async def add(self, count: int) -> None:
        """Returns when there is room for more."""
        self.held += count
        while self.held > WINDOW_BYTES:
            self.room.clear()
            await self.room.wait()

    def take(self, count: int) -> None:
        self.held -= count
        self.room.set()


def _own_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def _end(end: socket.socket) -> None:
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    end.close()
