"""The control socket with keys: what a ticket and a host may do, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

from deploy import settings
from deploy.config.run import DeployConfig, RunConfig
from deploy.supervision.control import Control
from tests.harness.waiting import wait_until
from tests.transport.keys import Ring
from transport.messages.control import Look, Order, OrderOutcome, Progress, Scale, Scaling, Seen, Steer, Stop, Stopping, What
from transport.messages.fields import PROTOCOL, Message
from transport.messages.hosts import Enrol, Enrolled, HostHello, HostWelcome, Said
from transport.messages.replay import Refused
from transport.run_dir import RunDir
from transport.sockets import keys
from transport.sockets.authenticator import new_pair
from transport.sockets.client import Client
from transport.sockets.keys import ClientKeys, Pair


class Calls:
    """The run and its hosts: what was called."""

    def __init__(self, folder: Path) -> None:
        self.made: list[str] = []
        self._folder = folder

    def is_current(self, progress: Progress) -> bool:
        return False

    def on_progress(self, progress: Progress) -> None:
        self.made.append("heard")

    def on_remote_progress(self, progress: Progress) -> Message | None:
        self.made.append(f"heard {progress.name}")
        return None if progress.resting else Order("pause", 0)

    def scale(self, actors: int) -> Scaling | Stopping:
        self.made.append("scale")
        return Scaling(1, actors)

    def order(self, order: Order) -> OrderOutcome:
        self.made.append(order.what)
        return OrderOutcome("waiting", "the learner has not answered yet")

    def look(self, peer: bytes, look: Look) -> OrderOutcome | None:
        self.made.append(f"look {look.actor}")
        return OrderOutcome("refused", "it rests")

    def steer(self, peer: bytes, steer: Steer) -> OrderOutcome | None:
        self.made.append(f"steer {steer.actor}")
        return OrderOutcome("refused", "another person steers it")

    def seen(self, seen: Seen, parts: Sequence[bytes]) -> None:
        self.made.append(f"seen {seen.actor} {b''.join(parts)!r}")

    def stop(self, reason: str) -> None:
        self.made.append("stop")

    def say(self, text: str) -> None:
        self.made.append(text)

    def enrol(self, ticket: str, message: Enrol) -> Message:
        self.made.append(f"enrol {ticket}")
        keys.admit(self._folder, ticket.replace("ticket", "host"), message.public)
        return Enrolled(ticket.replace("ticket", "host"))

    def hello(self, message: HostHello) -> Message:
        self.made.append(f"hello {message.name}")
        return HostWelcome()

    def said(self, host_name: str, name: str, lines: Sequence[str]) -> None:
        self.made.append(f"said {host_name}")


class Served:
    """A control socket with keys, and clients of it."""

    def __init__(self, folder: Path) -> None:
        run = RunDir(folder)
        run.create()
        settings.write_acting(run, RunConfig(deploy=DeployConfig(bind="127.0.0.1")), "evaluator")
        self.ring = Ring(run.key_folder)
        self.calls = Calls(run.key_folder)
        self.control = Control(run, self.calls)
        self.control.hosts = self.calls
        self.clients: list[Client] = []

    def ticket(self, name: str) -> Client:
        path, pair = self.ring.folder / f"{name}.ticket", new_pair()
        keys.write_ticket(path, name, pair, self.ring.of("supervisor").pair.public)
        keys.admit(self.ring.folder, name, pair.public)
        return self.client(keys.read_ticket(path))

    def host(self, name: str, pair: Pair) -> Client:
        return self.client(ClientKeys(name, pair, {"supervisor": self.ring.of("supervisor").pair.public}))

    def client(self, own: ClientKeys) -> Client:
        self.clients.append(Client(self.control.address, keys=own, endpoint="supervisor"))
        return self.clients[-1]

    def answer(self, client: Client, message: Message) -> Any:
        client.send(message)
        got: list[Any] = []

        def answered() -> bool:
            self.control.listen(0.01)
            if (arrived := client.receive()) is not None:
                got.append(arrived[0])
            return bool(got)

        wait_until(answered, what="an answer")
        return got[0]

    def refused(self, client: Client, message: Message) -> bool:
        """Whether the message is counted as one that its key does not authorise."""
        server, before, calls = self.control._server, self.control._server.impostors, list(self.calls.made)
        client.send(message)

        def counted() -> bool:
            server.quarantine._counts.clear()
            self.control.listen(0.01)
            return server.impostors > before or self.calls.made != calls

        wait_until(counted, what="it is read")
        return self.calls.made == calls


SEEN = Seen("actor-0", 1, 1, 1, 0.0)
HELLO = HostHello("host-3", 1, PROTOCOL, 2, "", ())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "run")
    yield made
    for client in made.clients:
        client.close()
    made.control.close()


def others(name: str) -> list[Message]:
    """What neither a ticket nor a host may send."""
    reports = [Progress(each, 1, "ready", 1, {}) for each in ("actor-0", "replay", "learner", name)]
    orders = [Order(what, 1) for what in get_args(What)]
    return [
        Scale(50),
        Look("actor-0", 1),
        Steer("actor-0", 1, 5),
        SEEN,
        Stop("fire"),
        *orders,
        *reports,
        HostHello("host-9", 1, PROTOCOL, 2, "", ()),
    ]


def test_a_ticket_enrols_its_host_and_may_do_nothing_else(served: Served) -> None:
    ticket, own = served.ticket("ticket-3"), new_pair()
    assert served.answer(ticket, Enrol(PROTOCOL, own.public)) == Enrolled("host-3")
    made = list(served.calls.made)
    assert made == ["enrol ticket-3"]
    for message in (*others("ticket-3"), HELLO, Said("host-3", "actor-0", ("I am here",))):
        assert served.refused(ticket, message), message
    assert isinstance(served.answer(served.host("host-3", own), HELLO), HostWelcome)


def test_a_host_speaks_for_itself_and_may_do_nothing_else(served: Served) -> None:
    own = new_pair()
    served.answer(served.ticket("ticket-3"), Enrol(PROTOCOL, own.public))
    host = served.host("host-3", own)
    assert isinstance(served.answer(host, HELLO), HostWelcome)
    for message in (*others("host-3"), Enrol(PROTOCOL, own.public), Said("host-9", "actor-0", ("I am here",))):
        assert served.refused(host, message), message
    assert served.control.send("host-3", Stop("the run has ended")) and not served.control.send("host-9", Stop("no"))
    wait_until(lambda: (arrived := host.receive()) is not None and isinstance(arrived[0], Stop), what="it is told")


def test_no_other_key_enrols_or_speaks_as_a_host(served: Served) -> None:
    for name in ("actor-0", "operator", "learner"):
        client = served.client(served.ring.of(name))
        assert served.refused(client, Enrol(PROTOCOL, "k" * 40)) and served.refused(client, HELLO)
    assert served.calls.made == []


@pytest.mark.parametrize("what", get_args(What))
def test_only_an_operator_orders(served: Served, what: What) -> None:
    order = Order(what, 7)
    for name in ("actor-0", "learner", "evaluator", "replay"):
        answer = served.answer(served.client(served.ring.of(name)), order)
        assert isinstance(answer, Refused) and "does not authorise" in answer.reason
    assert served.calls.made == []
    assert isinstance(served.answer(served.client(served.ring.of("operator")), order), OrderOutcome)
    assert served.calls.made == [what]


def test_an_actor_of_elsewhere_hears_of_a_pause_in_the_answer_to_its_report(served: Served) -> None:
    actor = served.client(served.ring.of("actor-0"))
    assert served.answer(actor, Progress("actor-0", 1, "ready", 1, {})) == Order("pause", 0)


def test_only_an_operator_looks_and_only_an_actor_shows_what_it_sees_itself(served: Served) -> None:
    look = Look("actor-0", 7)
    for name in ("actor-0", "learner", "evaluator"):
        assert isinstance(served.answer(served.client(served.ring.of(name)), look), Refused)
    for name in ("operator", "learner", "actor-1"):
        assert served.refused(served.client(served.ring.of(name)), SEEN), name
    assert served.calls.made == []
    assert served.answer(served.client(served.ring.of("operator")), look) == OrderOutcome("refused", "it rests")
    actor = served.client(served.ring.of("actor-0"))
    actor.send(SEEN, [b"left", b"right"])
    served.answer(actor, Progress("actor-0", 1, "ready", 1, {}))
    assert served.calls.made[:2] == ["look actor-0", "seen actor-0 b'leftright'"]
