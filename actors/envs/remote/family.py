"""`--env remote`: programs that connect, in any language; `--env openenv:URL`: a server to which an actor connects."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated, cast

from msgspec import Meta, Struct, structs

from actors.envs.base import EnvironmentFamily, Setup, Simulators, variant
from actors.errors import EnvError
from learner.devices import installing
from transport.files.token import own_token, token_place
from transport.names import FIXED
from transport.system import is_loopback

if TYPE_CHECKING:
    import ssl

    import gymnasium

    from actors.envs.remote.server import SessionServer
    from actors.envs.remote.session import RemoteEnv, Session

LOOPBACK = "127.0.0.1"


class RemoteOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Where programs connect."""

    port: Annotated[
        int,
        Meta(
            ge=0,
            le=65_000,
            description="port on which the first actor listens, each further actor on the next one; 0 means a free one, which a "
            "resumed run keeps",
        ),
    ] = 0
    bind: Annotated[
        str, Meta(description="address on which actors listen; beyond 127.0.0.1 env.certificate and env.private-key are needed")
    ] = LOOPBACK
    certificate: Annotated[str, Meta(description="file with the certificate (PEM) for TLS: programs connect by wss://")] = ""
    private_key: Annotated[str, Meta(description="file with the certificate's private key (PEM)")] = ""
    origins: Annotated[
        tuple[str, ...],
        Meta(description="pages that may connect from a browser, as http://localhost:8000, separated by commas"),
    ] = ()
    silence_seconds: Annotated[
        float, Meta(gt=0, description="time after which a program that does not answer an action is disconnected")
    ] = 60.0


class Remote(EnvironmentFamily):
    """remote: the environment is whatever connects."""

    about = "programs of your own, in any language, that connect by WebSocket"
    Options = RemoteOptions
    ends_episodes = True  # or not: that is the program's
    decides_steps = True
    options: RemoteOptions

    def pin_options(self) -> RemoteOptions:
        _require("remote")
        options = self.options
        files = {
            name: str(Path(getattr(options, name)).resolve()) for name in ("certificate", "private_key") if getattr(options, name)
        }
        return structs.replace(options, port=options.port or _free_port(options.bind), **files)

    def announcement(self) -> str:
        scheme = "wss" if self.options.certificate else "ws"
        where = f"{scheme}://{self.options.bind}:{self.options.port}"
        return f"waiting for a program to connect to {where} with the token in {token_place()}"

    def make(self, setup: Setup) -> gymnasium.Env:
        """Waits for a program, whose first environment it is."""
        _require("remote")
        from actors.envs.remote.session import RemoteEnv

        arrived: SimpleQueue[Session] = SimpleQueue()
        over = threading.Event()

        def keep(session: Session) -> None:
            arrived.put(session)
            over.wait()  # its connection is closed when this returns

        print(self.announcement(), file=sys.stderr, flush=True)
        server = self.listen(0, keep, lambda line: None)

        def close() -> None:
            over.set()
            server.close()

        return RemoteEnv(arrived.get(), close)

    def simulators(self, env: gymnasium.Env, count: int) -> Simulators | None:
        return cast("RemoteEnv", env).simulators if env is env.unwrapped else None

    def listen(self, number: int, serve: Callable[[Session], None], refused: Callable[[str], None]) -> SessionServer:
        _require("remote")
        from actors.envs.remote.server import SessionServer

        options = self.options
        address = options.bind, options.port + number if options.port else 0
        silence, tls = options.silence_seconds, _tls(options)
        return SessionServer(address, own_token(), serve, refused, silence, options.origins, tls)


class OpenEnvOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent sees and does: OpenEnv's servers say neither."""

    observation: Annotated[
        tuple[str, ...],
        Meta(
            description="fields of the observation that the agent sees, numbers or lists of them, separated by commas; left out: "
            "all fields that are numbers",
            extra=FIXED,
        ),
    ] = ()
    action: Annotated[str, Meta(description="field of the action that the agent fills", extra=FIXED)] = "action_id"
    choices: Annotated[int, Meta(ge=0, description="number of values of that field, counted from 0", extra=FIXED)] = 0
    size: Annotated[int, Meta(ge=0, description="in place of choices: real numbers in a list in that field", extra=FIXED)] = 0
    low: Annotated[float, Meta(description="least value of these", extra=FIXED)] = -1.0
    high: Annotated[float, Meta(description="greatest value of these", extra=FIXED)] = 1.0
    answer_seconds: Annotated[float, Meta(gt=0, description="longest wait for an answer of the server")] = 60.0


class OpenEnv(EnvironmentFamily):
    """openenv:http://127.0.0.1:8000."""

    about = "an environment of an OpenEnv server: openenv:http://127.0.0.1:8000 --env.choices 3"
    Options = OpenEnvOptions
    options: OpenEnvOptions

    def make(self, setup: Setup) -> gymnasium.Env:
        _require("openenv")
        import gymnasium

        from actors.envs.remote.openenv import OpenEnvClient, address

        env: gymnasium.Env = OpenEnvClient(address(variant(self.env_id)), self.options)
        return gymnasium.wrappers.TimeLimit(env, setup.max_episode_steps) if setup.max_episode_steps else env


def _require(name: str) -> None:
    """Raises EnvError."""
    if find_spec("websockets") is None:
        raise EnvError(f"{name} needs websockets, which is not installed: {installing.headrace('remote')}")


def _tls(options: RemoteOptions) -> ssl.SSLContext | None:
    """None on the loopback address without a certificate. Raises EnvError."""
    import ssl

    if not options.certificate:
        if not is_loopback(options.bind):
            raise EnvError(
                f"env.bind {options.bind}: the token would be sent in clear: name --env.certificate and --env.private-key, or "
                "forward the port by ssh"
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.certificate, options.private_key or None)
    except OSError as error:  # ssl's errors are some of them
        raise EnvError(f"env.certificate {options.certificate}: {error.strerror or error}") from None
    return context


def _free_port(host: str) -> int:
    """Raises EnvError."""
    from actors.envs.remote.server import listen

    try:
        with listen(host, 0) as found:
            return int(found.getsockname()[1])
    except OSError as error:
        raise EnvError(f"env.bind {host}: this machine cannot listen there ({error.strerror or error})") from None
