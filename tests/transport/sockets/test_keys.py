"""Keys on disk, and sockets that authenticate their peers by them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.harness.waiting import wait_until
from tests.transport.keys import Ring
from transport.messages.replay import Credit, Hold, Refused
from transport.messages.weights import Announce
from transport.sockets import channel, keys
from transport.sockets.authenticator import AUTHENTICATOR, new_pair
from transport.sockets.client import Client, Listener
from transport.sockets.keys import ClientKeys, Keys, KeysError
from transport.sockets.server import Announcer, Server

posix = pytest.mark.skipif(os.name != "posix", reason="only POSIX has file modes")


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    return Ring(tmp_path / "keys")


def test_a_pair_is_read_back_and_its_repr_keeps_the_secret(ring: Ring) -> None:
    own = ring.of("actor-0")
    assert own.client_name("replay", own.pair.public) == "actor-0"
    assert len(own.pair.secret) == 40 and own.pair.secret not in repr(own.pair)


def test_all_replay_shards_have_the_key_of_replay(ring: Ring) -> None:
    shard = ring.of("replay-3")
    assert shard.name == "replay" and shard.pair == ring.of("replay").pair
    assert shard.client_name("supervisor", shard.pair.public) == "replay"
    assert shard.client_name("replay", ring.of("actor-1").pair.public) == "actor-1"


def test_making_again_makes_only_what_is_missing_and_renewing_all(ring: Ring) -> None:
    before = ring.of("actor-0").pair
    assert keys.make(ring.folder, ("actor-0", "actor-5"), new_pair) == ["actor-5"]
    assert ring.of("actor-0").pair == before
    assert keys.make(ring.folder, ("actor-0",), new_pair, renew=True) == ["actor-0"]
    assert ring.of("actor-0").pair != before and ring.of("replay").client_name("replay", before.public) is None


@posix
def test_keys_are_made_for_this_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Ring(tmp_path / "keys")
    finally:
        os.umask(before)
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "keys").iterdir()} == {0o600}


@posix
@pytest.mark.parametrize("what", ["folder", "file", "link", "owner"])
def test_a_secret_that_others_could_read_is_refused_and_the_line_names_the_file(ring: Ring, what: str) -> None:
    secret = ring.folder / "actor-0.secret"
    if what == "folder":
        ring.folder.chmod(0o750)
    elif what == "file":
        secret.chmod(0o640)
    elif what == "link":
        secret.rename(ring.folder / "elsewhere")
        secret.symlink_to(ring.folder / "elsewhere")
    elif os.getuid():
        pytest.skip("only root can give a file away")
    else:
        os.chown(secret, 65534, 65534)
    with pytest.raises(KeysError, match=r"keys( |/actor-0.secret ).*chmod"):
        ring.of("actor-0")


@pytest.mark.parametrize(
    ("file", "text", "name"),
    [
        *(("actor-0.secret", text, "actor-0") for text in ("", "public x\nsecret y\n", "public\n", "\udcff")),
        *(("public", text, "replay") for text in ("replay short\n", "replay\n", f"actor-0 {'x' * 40}\n", "\x00")),
    ],
)
def test_a_damaged_secret_or_list_is_refused_without_printing_any_of_a_secret(
    ring: Ring, file: str, text: str, name: str
) -> None:
    (ring.folder / file).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(KeysError) as caught:
        ring.of(name)
    assert name == "replay" or ("damaged" in str(caught.value) and caught.value.__cause__ is None)


def test_what_is_exported_holds_one_secret_and_the_servers_public_keys(ring: Ring, tmp_path: Path) -> None:
    keys.export(ring.folder, "actor-1", tmp_path / "copy")
    assert {file.name for file in (tmp_path / "copy").iterdir()} == {"actor-1.secret", "public"}
    listed = keys.KeyList(tmp_path / "copy" / "public").by_name()
    assert set(listed) == {"actor-1", "learner", "replay", "supervisor"}
    assert Keys(tmp_path / "copy", "actor-1").server("weights") == listed["learner"]


@pytest.mark.parametrize("endpoint", keys.CLIENTS)
def test_each_endpoint_admits_the_roles_of_its_list_and_no_others(ring: Ring, endpoint: str) -> None:
    own = ring.of(keys.OWNERS[endpoint])
    admitted = {name for name in (*keys.ALWAYS, "actor-0") if own.client_name(endpoint, ring.of(name).pair.public)}
    assert (
        admitted
        == {
            "replay": {"actor-0", "learner"},
            "weights": {"actor-0", "evaluator", "inference"},
            "payload": {"actor-0", "evaluator", "inference"},
            "supervisor": {"actor-0", "replay", "learner", "evaluator", "inference", "operator"},
        }[endpoint]
    )
    assert own.client_name(endpoint, new_pair().public) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_client_is_authorised_for_its_own_name_and_role_only(ring: Ring, host: str) -> None:
    try:
        server = ring.server(address=f"tcp://{host}:*")
    except OSError as error:
        pytest.skip(str(error))
    clients = {name: ring.client(server, name) for name in ("actor-0", "actor-1", "learner-1")}  # learners share a key
    for name, client in clients.items():
        client.send(Hold(), [b"part"])
        arrival = server.receive(30)
        assert arrival is not None and arrival[1] == Hold() and arrival[2] == [b"part"]
        assert not server.authorise(arrival[0], keys.role_of(name), name)
        assert server.impostors == 0
        assert keys.key_name(name) in server.authorise(arrival[0], "actor", "actor-7") and server.impostors == 1
        assert server.authorise(arrival[0], "operator")
        server.impostors = 0
        assert server.send(arrival[0], Hold()) and client.receive(30) is not None
        client.close()
    server.close()


def test_a_listener_with_a_key_receives_announcements(ring: Ring) -> None:
    announcer = Announcer("tcp://127.0.0.1:*", ring.of("learner"), "weights")
    listener = Listener(announcer.address, ring.of("evaluator"), "weights")

    def received() -> bool:
        announcer.announce(Announce(1, 2, 10, "s"))
        return listener.newest() is not None

    wait_until(received, what="the announcement")
    listener.close()
    announcer.close()


def test_a_key_added_to_the_list_is_admitted_without_a_restart_and_its_owner_is_warned_before(
    ring: Ring, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "HANDSHAKE_MS", 300)  # what a client waits before it tries again
    other = Ring(tmp_path / "other", actors=10)
    (other.folder / "public").write_bytes((ring.folder / "public").read_bytes())
    server = ring.server()
    late = Client(server.address, keys=other.of("actor-9"), endpoint="replay")
    late.send(Hold())

    output = ""

    def refused_and_warned() -> bool:
        nonlocal output
        server.receive()
        late.receive()
        output += capfd.readouterr().out
        return server.handshakes_failed >= 2 and "no connection to replay at tcp://127.0.0.1:" in output

    wait_until(refused_and_warned, what="refusals and a warning")
    with (ring.folder / "public").open("a") as file:
        file.write(f"actor-9 {other.of('actor-9').pair.public}\n")
    arrival = server.receive(30)
    assert arrival is not None and not server.authorise(arrival[0], "actor", "actor-9")
    late.close()
    server.close()


def test_a_key_that_is_replaced_is_refused_at_once_also_over_a_connection_that_exists(ring: Ring, tmp_path: Path) -> None:
    server = ring.server()
    before = ring.client(server, "actor-0")
    before.send(Hold())
    assert server.receive(30) is not None
    later = Ring(tmp_path / "later")
    keys.admit(ring.folder, "actor-0", later.of("actor-0").pair.public)
    after = Client(
        server.address, keys=ClientKeys("actor-0", later.of("actor-0").pair, ring.of("actor-0").listed()), endpoint="replay"
    )
    after.send(Credit(7))
    got = []

    def refused() -> bool:
        before.send(Hold())
        if (arrival := server.receive(0.01)) is not None:
            got.append(arrival[1])
        answer = before.receive()
        return answer is not None and isinstance(answer[0], Refused) and "has been replaced" in answer[0].reason

    wait_until(refused, what="its owner is told")
    assert server.expelled()
    before.close()
    if Credit(7) not in got:
        wait_until(
            lambda: (arrival := server.receive(0.01)) is not None and arrival[1] == Credit(7), what="the new key is served"
        )
    keys.refuse(ring.folder, ["actor-0"])

    def refused_as_well() -> bool:
        after.send(Hold())
        server.receive(0.01)
        return after.receive() is not None

    wait_until(refused_as_well, what="a key taken from the list is refused as well")
    after.close()
    server.close()


def test_the_key_of_a_process_of_this_machine_is_made_anew_only_where_another_has_its_place(ring: Ring) -> None:
    own = ring.of("actor-0").pair
    keys.reclaim(ring.folder, "actor-0", new_pair)
    assert ring.of("actor-0").pair == own
    for change in (lambda: keys.admit(ring.folder, "actor-0", new_pair().public), lambda: keys.refuse(ring.folder, ["actor-0"])):
        change()
        keys.reclaim(ring.folder, "actor-0", new_pair)
        now = ring.of("actor-0")
        assert now.pair != own and now.listed()["actor-0"] == now.pair.public
        own = now.pair


def test_a_ticket_has_its_own_key_and_the_supervisors_and_no_other_user_may_read_it(ring: Ring, tmp_path: Path) -> None:
    pair, path = new_pair(), tmp_path / "tickets" / "host-3.ticket"
    keys.write_ticket(path, "ticket-3", pair, "s" * 40)
    ticket = keys.read_ticket(path)
    assert (ticket.name, ticket.pair, ticket.server("supervisor")) == ("ticket-3", pair, "s" * 40)
    with pytest.raises(KeysError):
        ticket.server("replay")
    assert pair.secret not in repr(ticket.pair)
    path.write_text(path.read_text().replace("ticket-3", "operator"))
    with pytest.raises(KeysError, match="is not a ticket"):
        keys.read_ticket(path)
    if os.name == "posix":
        path.chmod(0o644)
        with pytest.raises(KeysError, match="chmod 600"):
            keys.read_ticket(path)


def test_the_authenticator_ends_with_the_last_server_and_starts_with_the_next(ring: Ring) -> None:
    before = AUTHENTICATOR.alarms  # it is one for all tests of this process
    for _ in range(20):  # libzmq frees an address late unless it is unbound explicitly
        ring.server().close()
    first, second = ring.server(), ring.server("supervisor")
    first.close()
    client = ring.client(second, "operator", "supervisor")
    client.send(Hold())
    assert second.receive(30) is not None
    second.close()
    third = ring.server()
    assert AUTHENTICATOR.alarms == before
    third.close()
    client.close()


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:*", "tcp://[::]:*", "tcp://10.0.0.5:*", "tcp://eth0:*", "tcp://*:*"])
def test_an_address_that_others_reach_is_never_bound_without_keys(address: str) -> None:
    with pytest.raises(KeysError, match="headrace keys"):
        Server(address)
    with pytest.raises(KeysError, match="headrace keys"):
        Announcer(address)
