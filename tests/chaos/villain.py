"""`python -m tests.chaos.villain ADDRESS KIND SECONDS`: a thousand messages a second that no honest peer would send."""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Iterator

import msgpack
import msgspec

from tests.chaos.raw import Raw, message
from tests.chaos.siege import SPEC
from transport.messages.codec import pack
from transport.messages.fields import PROTOCOL
from transport.messages.replay import Insert, SampleRequest, WriterHello

MESSAGES_PER_SECOND = 1000


def hello(name: str, incarnation: int = 7) -> bytes:
    return pack(WriterHello(name, incarnation, PROTOCOL, SPEC.digest, 1, 0))


def broken(seed: int) -> Iterator[tuple[bytes, ...]]:
    """Messages of every kind that no honest peer sends, without end."""
    generator = random.Random(seed)
    whole = [hello("stranger"), pack(Insert(0, 0, 16, 0)), pack(SampleRequest(0, 1))]
    for number in itertools.count():
        body = bytearray(generator.choice(whole))
        body[generator.randrange(len(body))] ^= 1 << generator.randrange(8)
        yield [
            (generator.randbytes(generator.randrange(300)),),
            (bytes(body),),
            (b"\x91" * 60_000,),
            (b"\xdd\xff\xff\xff\xff",),
            (pack(Insert(number, 0, 16, 0)), generator.randbytes(100)),
            tuple(b"" for _ in range(5000)),
            (msgpack.packb({"type": "sample_request", "slot": 64, "generation": 2**62}),),
        ][number % 7]


def insolent(kind: str, life: int) -> Iterator[tuple[bytes, ...]]:
    """Messages in the right form: the same chunk again and again, or chunks that are none."""
    yield (hello("villain", life),)
    for sequence in itertools.count():
        body = (bytes(SPEC.chunk_bytes),) if kind == "unfit" else (bytes(100_000),)
        yield (pack(Insert(sequence if kind == "unfit" else 0, 0, 16, 1)), *body)


def main() -> int:
    address, kind, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    began, sent, connections, within_seconds = time.monotonic(), 0, 0, 0.0
    nonsense = itertools.cycle([message(parts) for parts in itertools.islice(broken(9), 70)])  # made once: it need not cost much
    raw: Raw | None = None
    while (now := time.monotonic() - began) < seconds:
        if sent > now * MESSAGES_PER_SECOND:
            time.sleep(0.001)
            continue
        sent += 1
        try:
            if raw is None:
                raw = Raw(address)
                connections += 1
                messages = nonsense if kind == "broken" else map(message, insolent(kind, connections))
            raw.socket.sendall(next(messages))
        except OSError:
            within_seconds = within_seconds or time.monotonic() - began
            if raw is not None:
                raw.close()
            raw = None
    print(msgspec.json.encode({"sent": sent, "connections": connections, "within_seconds": within_seconds}).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
