"""`headrace serve`: what is typed wrong, and how it ends."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing
from pathlib import Path

import pytest

from deploy.cli import main as cli
from deploy.cli.policies import serve
from learner.weights import checkpoint
from tests.deploy.views.serving.served import TOKEN, ask, write_version
from tests.deploy.views.serving.test_recording import process
from tests.harness.waiting import wait_until

MISTAKES = (
    (["--port", "70000"], 2, "no port 70000"),
    (["--bind", "somewhere"], 2, "is no address"),
    (["--bind", "0.0.0.0"], 3, "without TLS the token would travel in clear"),
    (["--bind", "192.0.2.7", "--port", "5"], 3, "without TLS"),
    (["--certificate", "x.pem"], 2, "belong together"),
    (["--certificate", "x.pem", "--private-key", "y.pem"], 2, "no file x.pem"),
    (["--certificate", "text", "--private-key", "text"], 2, "not a certificate"),
    (["--origin", "https://a/b"], 2, "is no site"),
    (["--share", "0%"], 2, "is not a share"),
    (["--promote-after", "10"], 2, "add --share"),
    (["--follow", "best"], 2, "is for a run"),
    (["--record"], 2, "--record-to FOLDER"),
    (["--record", "--record-to", "x"], 2, "not allowed with"),
    (["--record-to", "text"], 2, "cannot make the folder"),
)


@pytest.mark.parametrize(("words", "status", "says"), MISTAKES)
def test_a_mistake_is_one_line(
    words: list[str], status: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_TOKEN", TOKEN)
    Path("text").write_text("no certificate")
    assert cli.main(["serve", "zoo:cartpole", *words]) == status
    told = capsys.readouterr().err
    assert says in told and len(told.splitlines()) <= 2 and "Traceback" not in told


def test_what_cannot_serve_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_TOKEN", "short")
    assert cli.main(["serve", "zoo:cartpole"]) == 2 and "16 to 256" in capsys.readouterr().err
    monkeypatch.setenv("HEADRACE_TOKEN", TOKEN)
    assert cli.main(["serve", "zoo:cartpol"]) == 2 and "zoo:cartpole" in capsys.readouterr().err
    Path("damaged.safetensors").write_bytes(b"damaged")
    assert cli.main(["serve", "damaged.safetensors"]) == 2 and "not a safetensors file" in capsys.readouterr().err
    write_version(Path("coded.safetensors"), 1)
    weights, metadata = checkpoint.read(Path("coded.safetensors"))
    coded = metadata["config"].replace('"name": "sac"', '"name": "evil:Algorithm"')
    assert coded != metadata["config"]
    checkpoint.write(Path("coded.safetensors"), weights, metadata | {"config": coded})
    assert cli.main(["serve", "coded.safetensors"]) == 2 and "--trust-config" in capsys.readouterr().err
    monkeypatch.setattr(serve, "REQUIRED", ("no_such_package",))
    assert cli.main(["serve", "zoo:cartpole"]) == 2 and "[serve]" in capsys.readouterr().err


@pytest.mark.flow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_answers_what_has_arrived_and_ends(number: signal.Signals) -> None:
    asked, answered, refused = [0] * 8, [0] * 8, [0] * 8
    with process("zoo:cartpole") as served:

        def client(k: int) -> None:
            try:
                if k % 2:
                    with served.websocket() as websocket:
                        while True:
                            asked[k] += 1
                            ask(websocket, observation=[0, 0, 0, 0])
                            answered[k] += 1
                with closing(served.connection()) as connection:
                    while True:
                        asked[k] += 1
                        served.act_over(connection, observation=[0, 0, 0, 0])
                        answered[k] += 1
            except Exception as error:  # the next request finds no server
                refused[k] += not isinstance(error, AssertionError)

        threads = [threading.Thread(target=client, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        wait_until(lambda: min(answered) > 20)
        status, rest = served.end(number)
        for thread in threads:
            thread.join()
    assert status == 0 and rest.splitlines()[-1] == "ended: every request that had arrived is answered"
    assert refused == [1] * 8 and all(sent - got == 1 for sent, got in zip(asked, answered, strict=True))
