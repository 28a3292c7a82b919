"""All messages that a host sends and receives are read, as they are before encryption: no secret key is in any of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from zmq.utils import z85

from tests.harness import spy
from tests.harness.spread import Spread
from tests.harness.waiting import PATIENCE_SECONDS
from transport.sockets.keys import KeyList, read_pair, read_ticket

pytestmark = [
    pytest.mark.flow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes by their environment"),
]


def forms(key: str) -> list[bytes]:
    """How a key may be written: as text, as its bytes, and these in hexadecimal."""
    raw = z85.decode(key)
    return [key.encode(), raw, raw.hex().encode()]


@pytest.mark.slow
def test_no_message_of_a_host_holds_a_secret_key(tmp_path: Path) -> None:
    run = Spread(tmp_path, "tests.chaos.simulator:slow_vector")
    try:
        run.start()
        run.environment = spy.environment(tmp_path / "spy", run.environment)
        run.join("host-0", "--allow", "tests")
        run.until(lambda: run.collected("actor-0") and run.collected("actor-1"), "steps of both are acknowledged")
        keys = run.run_dir.key_folder
        ticket = read_ticket(keys / "tickets" / "host-0.ticket").pair
        public = KeyList(keys / "public").by_name()
        pairs = [read_pair(keys, path.stem) for path in keys.glob("*.secret")]
        assert run.interrupt() == 0
        assert run.agents["host-0"].wait(PATIENCE_SECONDS) == 0
    finally:
        run.close()
    heard = spy.heard(tmp_path / "spy")
    sent, received = b"\n".join(heard.sent), b"\n".join(heard.received)
    made = {secret.decode() for secret in heard.secrets}
    assert len(made) == 3, "the host has made a pair for itself and one for each actor"
    secrets = {ticket.secret, *made, *(pair.secret for pair in pairs)}
    told = [form for secret in secrets for form in forms(secret) if form in sent or form in received]
    assert not told
    assert all(public[name].encode() in sent for name in ("host-0", "actor-0", "actor-1")), "public keys are told, and are found"
    assert all(public[name].encode() in received for name in ("replay", "learner"))
