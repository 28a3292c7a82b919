"""R31: a peer of another protocol, or of other experience, is refused at once with the reason, and no other peer is affected."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgpack
import msgspec
import pytest

from replay.client.base import ReplayRefused
from replay.config import ReplayConfig
from tests.chaos.rows import Row
from tests.harness.link import Link
from tests.replay.examples import make_spec, stream_chunks
from transport.experience import ExperienceSpec, observed
from transport.lifetime import new_incarnation
from transport.messages.codec import pack
from transport.messages.fields import PROTOCOL, Message
from transport.messages.replay import Refused, SamplerHello, WriterHello
from transport.sockets.client import Client

pytestmark = pytest.mark.chaos
SPEC = make_spec(length=8, stack=2, n_step=2)
CHUNKS = stream_chunks(SPEC, {9: "terminated"}, 200)
FREE = ReplayConfig(min_size=1, capacity=4_000, samples_per_insert_low=0, samples_per_insert_high=1e9)
OTHERS = {
    "other shape": msgspec.structs.replace(SPEC, fields=(observed("position", (2,), "<f4"),)),
    "other type": msgspec.structs.replace(SPEC, fields=(observed("position", (), "<f2"),)),
    "other length": msgspec.structs.replace(SPEC, chunk_length=16),
    "other stack": msgspec.structs.replace(SPEC, stack=3),
    "other steps": msgspec.structs.replace(SPEC, n_step=1),
}


def hellos(name: str, protocol: int, spec: ExperienceSpec) -> list[Message]:
    return [
        WriterHello(name, new_incarnation(), protocol, spec.digest, 1, 0),
        SamplerHello(name, new_incarnation(), protocol, spec.digest, 8, 2, ""),
    ]


def with_other_fields() -> list[bytes]:
    """Greetings as an old client may send them: with a field more, a field less, a field of another type."""
    true = msgpack.unpackb(pack(hellos("old", PROTOCOL, SPEC)[0]))
    without = {key: value for key, value in true.items() if key != "streams"}
    return [msgpack.packb(found) for found in (true | {"run_id": "mine"}, without, true | {"streams": "1"})]


@pytest.mark.row("R31", "an old client; one of another observation", "refused with a reason <= 1 s, server unaffected")
def test_a_peer_that_does_not_match_is_refused_at_once(row: Row, tmp_path: Path) -> None:
    times, slowest, reasons, sent = row.times(3, 100), 0.0, list[str](), 0
    with Link(tmp_path, SPEC, FREE) as link:
        server, writer = link.serve(), link.writer()
        link.until(lambda: writer.has_credit, writer)

        def greet(send: Callable[[Client], object], answered: Callable[[Client], bool], silent: bool = False) -> float:
            """One peer more, while the honest writer goes on. Returns the seconds to its answer."""
            nonlocal sent
            writer.insert(CHUNKS[sent % len(CHUNKS)])
            sent += 1
            client, began = Client(link.address), time.monotonic()
            send(client)
            link.until(lambda: answered(client), writer)
            assert not silent or client.receive() is None
            client.close()
            return time.monotonic() - began

        def refused(client: Client) -> bool:
            if (arrived := client.receive()) is None:
                return False
            assert isinstance(arrived[0], Refused) and "\n" not in arrived[0].reason
            reasons.append(arrived[0].reason)
            return True

        for _ in range(times):
            for version in (0, PROTOCOL - 1, PROTOCOL + 1):
                for hello in hellos("old", version, SPEC):
                    slowest = max(slowest, greet(lambda client, hello=hello: client.send(hello), refused))
                    assert "protocol" in reasons[-1]
            for spec in OTHERS.values():
                for hello in hellos("other", PROTOCOL, spec):
                    slowest = max(slowest, greet(lambda client, hello=hello: client.send(hello), refused))
                    assert "another experience spec" in reasons[-1]
        for greeting in with_other_fields():
            before = server.socket.malformed
            greet(
                lambda client, greeting=greeting: client._send_parts([greeting]),
                lambda _, before=before: server.socket.malformed > before,
                silent=True,
            )
        for spec in OTHERS.values():
            with pytest.raises(ReplayRefused, match="another experience spec"):
                link.until(lambda: False, writer, link.writer("actor-9", spec=spec))
        link.until(lambda: not writer.outstanding, writer)
        server.ring.check_invariants()
        row.measured(reasons[0], reasons[-1], refused=len(reasons), slowest_seconds=slowest, rejected=0, taken=sent)
        assert slowest <= row.limit(1.0)
        assert link.metrics.value("inserted_chunks") == sent and not link.metrics.value("rejected")
