"""R31: whoever speaks another protocol, or of other experience, is told so at once, and nobody else hears of it."""

from __future__ import annotations

import time
from pathlib import Path

import msgpack
import msgspec
import pytest
from torch import nn

from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.networks import q_network
from learner.inference.module import Module
from learner.serving.publish import WeightPublisher
from learner.weights.checkpoint import pack
from learner.weights.follow import WeightFollower
from replay.client.base import ReplayRefused
from replay.config import ReplayConfig
from tests.chaos.rows import Row
from tests.harness.link import Link
from tests.harness.waiting import wait_until
from tests.replay.examples import make_spec, stream_chunks
from transport.experience import ExperienceSpec, observed
from transport.lifetime import new_incarnation
from transport.messages.codec import pack as packed
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


@pytest.mark.row("R31", "an old client; one of another observation", "refused with a reason <= 1 s, server unaffected")
def test_a_peer_that_does_not_match_is_refused_at_once(row: Row, tmp_path: Path) -> None:
    times = row.times(3, 100)
    slowest = 0.0
    reasons: list[str] = []
    with Link(tmp_path, SPEC, FREE) as link:
        server, writer = link.serve(), link.writer()
        link.until(lambda: writer.has_credit, writer)
        sent = 0
        for _ in range(times):
            strangers = [
                *((hello, "protocol") for version in (0, PROTOCOL - 1, PROTOCOL + 1) for hello in hellos("old", version, SPEC)),
                *((hello, "another experience spec") for spec in OTHERS.values() for hello in hellos("other", PROTOCOL, spec)),
            ]
            for hello, why in strangers:
                writer.insert(CHUNKS[sent % len(CHUNKS)])
                sent += 1
                client, begun = Client(link.address), time.monotonic()
                client.send(hello)
                answers: list[object] = []

                def answered(client: Client = client, answers: list[object] = answers) -> bool:
                    if (arrived := client.receive()) is not None:
                        answers.append(arrived[0])
                    return bool(answers)

                link.until(answered, writer)
                slowest = max(slowest, time.monotonic() - begun)
                assert isinstance(answers[0], Refused) and why in answers[0].reason and "\n" not in answers[0].reason
                reasons.append(answers[0].reason)
                client.close()
        link.until(lambda: not writer.outstanding, writer)
        server.ring.check_invariants()
        row.measured(reasons[0], reasons[-1], refused=len(reasons), slowest_seconds=slowest, rejected=0, taken=sent)
        assert slowest <= row.limit(1.0)
        assert link.metrics.value("inserted_chunks") == sent and not link.metrics.value("rejected")


@pytest.mark.row("R31", "a client of a time when greetings had other fields", "never served, server unaffected")
def test_a_greeting_with_other_fields_is_no_greeting(row: Row, tmp_path: Path) -> None:
    true = msgpack.unpackb(packed(hellos("old", PROTOCOL, SPEC)[0]))
    with Link(tmp_path, SPEC, FREE) as link:
        link.serve()
        for told in (
            true | {"run_id": "mine"},
            {key: value for key, value in true.items() if key != "streams"},
            true | {"streams": "1"},
        ):
            client = Client(link.address)
            client._send_parts([msgpack.packb(told)])
            malformed = link.server.socket.malformed  # type: ignore[union-attr]
            link.until(lambda before=malformed: link.server.socket.malformed > before)  # type: ignore[misc, union-attr]
            assert client.receive() is None
            client.close()
        writer = link.writer()
        link.until(lambda: writer.has_credit, writer)
        row.measured(greetings=3, served=0)


@pytest.mark.row("R31", "an actor and a learner of another observation, as processes meet it", "one line that says why")
def test_the_real_clients_end_with_the_reason(row: Row, tmp_path: Path) -> None:
    with Link(tmp_path, SPEC, FREE) as link:
        link.serve()
        for spec in OTHERS.values():
            writer = link.writer("actor-9", spec=spec)
            with pytest.raises(ReplayRefused, match="another experience spec"):
                link.until(lambda: False, writer)
        row.measured(kinds=len(OTHERS))


@pytest.mark.row("R31", "weights of another network reach an actor", "rejected and counted; the last good ones stay")
def test_weights_of_another_network_are_not_adopted(row: Row, tmp_path: Path) -> None:
    publisher = WeightPublisher(f"ipc://{tmp_path}/weights", f"ipc://{tmp_path}/payload", 7)
    module = q_network(SPEC, DqnConfig(hidden=8, n_step=2))
    before = pack(module.state_dict())
    follower = WeightFollower(*publisher.addresses, Module(module))
    others: list[nn.Module] = [q_network(spec, DqnConfig(hidden=8, n_step=2)) for spec in OTHERS.values() if spec.stack == 2]
    wrong = [q_network(SPEC, DqnConfig(hidden=9, n_step=2)), others[0], nn.Linear(2, 2)]
    for version, other in enumerate(wrong, 1):
        publisher.publish(other, version)
        wait_until(lambda version=version: follower.poll() or follower.rejected >= version, what="an answer")  # type: ignore[misc]
        assert follower.version == -1 and pack(module.state_dict()) == before
        follower._asked = 0.0  # ask for the next at once
    row.measured(rejected=follower.rejected, adopted=0)
    follower.close()
    publisher.close()
