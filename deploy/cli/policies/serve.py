"""`headrace serve`: a policy answers programs over HTTP and WebSocket."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import ssl
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.envs.foreign.plain_data import to_plain
from actors.trust import FLAG
from deploy import runs
from deploy.cli.common import DONE, add_policy, add_trust
from deploy.cli.policies.common import check_weights, refreshed, trusted
from deploy.config import trust
from deploy.config.values import COUNT, SHARE
from deploy.errors import ConfigError, RunRefused
from deploy.signals import stop_signals
from deploy.views.sharing.named import policy_file
from learner.devices import installing
from learner.devices.errors import DeviceError
from learner.weights.checkpoint import CheckpointError
from replay.config import ReplayConfig
from replay.shards import shard_of
from transport.files.token import VARIABLE, own_token, token_file
from transport.names import UnknownName
from transport.run_dir import RunDir
from transport.sockets import keys
from transport.sockets.authenticator import new_pair
from transport.system import is_loopback, is_wildcard
from transport.text import say

if TYPE_CHECKING:
    from deploy.views.serving.recording import Recording
    from deploy.views.serving.server import PolicyServer
    from deploy.views.serving.sources import Source

USAGE_LINE = (
    "headrace serve [RUN | FILE | zoo:NAME] [--port N] [--bind ADDRESS --certificate FILE --private-key FILE] [--origin URL …]\n"
    "                      [--follow best|latest|live|none] [--share PERCENT] [--promote-after N] [--record | --record-to FOLDER]"
)
DESCRIPTION = """\
Let a policy answer programs: HTTP and WebSocket, JSON or MessagePack.

  headrace serve zoo:cartpole
  headrace serve night --port 8000 --share 10%     new versions answer a tenth of all clients until they are promoted
  headrace serve night --record                    what clients send flows into the run's replay as experience

At its start it prints what to type elsewhere. POST /act {"observation": …} is answered by {"action": …, "policy_version": N};
GET /policy says what serves. A WebSocket at /act takes the same messages, and is a session: a policy with a memory needs one.

It listens on 127.0.0.1; with --bind other machines reach it, and it needs a certificate. Every request carries the token of this
account, which is in ~/.config/headrace/token or in HEADRACE_TOKEN, in the header `Authorization: Bearer TOKEN`.

A better policy of the run, or another file in FILE's place, is adopted while it serves. One that is damaged, does not fit or has
outputs that are not finite is refused or taken back within a second. POST /promote ends a trial; POST /rollback goes back.
"""
REQUIRED = ("uvicorn", "h11", "websockets")
BEST, LATEST, LIVE, NONE = "best", "latest", "live", "none"
SHOWN = 12  # numbers of an observation in the example


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    add_policy(target)
    target.add_argument("--port", type=int, default=0, metavar="N", help="listen on this port (default: any that is free)")
    target.add_argument("--bind", default="127.0.0.1", metavar="ADDRESS", help="listen on this address (default: 127.0.0.1)")
    target.add_argument("--certificate", metavar="FILE", help="certificate chain, PEM; clients then use https and wss")
    target.add_argument("--private-key", metavar="FILE", help="its private key, PEM")
    target.add_argument(
        "--origin", action="append", default=[], metavar="URL", help="allow pages of this site, such as https://example.org"
    )
    target.add_argument(
        "--follow",
        choices=(BEST, LATEST, LIVE, NONE),
        help="new versions of a run: its best evaluated weights (default), its newest saved ones, or live those of its learner; "
        "none: what is there now",
    )
    target.add_argument(
        "--share", type=SHARE, default=1.0, metavar="PERCENT", help="of clients that a new version answers at first, such as 10%%"
    )
    target.add_argument(
        "--promote-after", type=COUNT, default=0, metavar="N", help="requests without fault after which it answers all clients"
    )
    record = target.add_mutually_exclusive_group()
    record.add_argument(
        "--record", action="store_true", help="send the experience of clients to the replay of the run, which is up"
    )
    record.add_argument("--record-to", metavar="FOLDER", help="write it to a folder that is read as a data set")
    add_trust(target)


def run(parsed: argparse.Namespace) -> int:
    """Serves until Ctrl-C."""
    if missing := [name for name in REQUIRED if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"a policy server needs {' and '.join(missing)}: {installing.headrace(keys.SERVE)}")
    _check_address(parsed)
    if parsed.promote_after and parsed.share == 1:
        raise ConfigError("--promote-after is for a trial: add --share, such as --share 10%")
    try:
        served = _open(parsed)
    except (CheckpointError, DeviceError, UnknownName) as error:
        raise ConfigError(str(error)) from error
    with stop_signals(lambda number, frame: served.stop()):
        print("\n".join(_greeting(served, parsed)), flush=True)
        served.serve()
    say("ended: every request that had arrived is answered")
    return DONE


def _check_address(parsed: argparse.Namespace) -> None:
    """Raises ConfigError, RunRefused."""
    if not 0 <= parsed.port <= 65535:
        raise ConfigError(f"--port: there is no port {parsed.port}")
    try:
        is_wildcard(parsed.bind)
    except ValueError:
        raise ConfigError(
            f"--bind: {parsed.bind} is no address, such as 192.168.1.5, or 0.0.0.0 for all of this machine"
        ) from None
    if (parsed.certificate is None) != (parsed.private_key is None):
        raise ConfigError("--certificate and --private-key belong together")
    for flag, name in (("--certificate", parsed.certificate), ("--private-key", parsed.private_key)):
        if name is not None and not Path(name).is_file():
            raise ConfigError(f"{flag}: there is no file {name}")
    for origin in parsed.origin:
        if not re.fullmatch(r"https?://[^/\s]+", origin):
            raise ConfigError(f"--origin: {origin} is no site: write https://example.org, without a path")
    if not is_loopback(parsed.bind) and parsed.certificate is None:
        raise RunRefused(
            f"--bind {parsed.bind} can be reached from other machines, and without TLS the token would travel in clear: "
            "add --certificate and --private-key, or forward the port: ssh -L PORT:127.0.0.1:PORT MACHINE"
        )


def _open(parsed: argparse.Namespace) -> PolicyServer:
    from deploy.views.serving.server import PolicyServer, Tls
    from deploy.views.serving.sources import FileSource, Fixed
    from deploy.views.serving.versions import Versions

    name = parsed.run_flag or parsed.run
    file = policy_file(name) if name else None
    source: Source
    if file is not None:
        if parsed.follow not in (None, NONE):
            raise ConfigError(f"--follow {parsed.follow} is for a run: {name} is a file, and another one in its place is adopted")
        if parsed.record:
            raise ConfigError("--record is for a run that is up: add --record-to FOLDER instead")
        source, folder = FileSource(file, partial(_check_file, file, parsed.trusted)), None
    else:
        folder = trusted(parsed)
        source = _of_run(folder, parsed)
    if parsed.follow == NONE:
        source = Fixed(source)
    first = source.first()
    if fault := first.fault(source.about.zeros()):
        raise ConfigError(f"{first.name} cannot serve: {fault}")
    versions = Versions(first, parsed.share, parsed.promote_after, say)
    recording = partial(_recording, parsed, folder, source, first.acting.annotate)
    tls = Tls(parsed.certificate, parsed.private_key) if parsed.certificate else None
    try:
        return PolicyServer(source, versions, recording, own_token(), parsed.bind, parsed.port, parsed.origin, tls)
    except ssl.SSLError as error:
        raise ConfigError(
            f"--certificate, --private-key: not a certificate and its key, in PEM ({error.reason or error})"
        ) from error
    except OSError as error:
        if error.filename is not None:
            raise
        raise ConfigError(f"--port: cannot listen at {parsed.bind}, port {parsed.port} ({error.strerror})") from error


def _of_run(folder: RunDir, parsed: argparse.Namespace) -> Source:
    """Raises ConfigError."""
    from deploy.views.serving.sources import LiveSource, RunSource

    follow = parsed.follow or BEST
    parsed.best = follow == BEST or (follow in (LIVE, NONE) and folder.best.exists())
    try:
        check_weights(parsed, folder)
    except ConfigError as error:
        if parsed.best and folder.latest.exists():
            raise ConfigError(f"{error}, or add --follow {LATEST}") from error
        raise
    refreshed(folder)
    file = RunSource(folder, folder.best if parsed.best else folder.latest)
    return LiveSource(folder, file, _key(folder, keys.SERVE)) if follow == LIVE else file


def _recording(parsed: argparse.Namespace, folder: RunDir | None, source: Source, annotate: Any, port: int) -> Recording | None:
    """Raises ConfigError, OSError."""
    from deploy.views.serving.recording import MOST_STREAMS, Recording
    from deploy.views.serving.sinks import FolderSink, ReplaySink

    if parsed.record_to:
        sink = FolderSink(Path(parsed.record_to), source.about)
        return Recording(sink.spec, sink, None)
    if not parsed.record:
        return None
    if folder is None or not runs.is_up(folder):
        raise ConfigError("--record: the run is not up; start it, or record into a folder: --record-to FOLDER")
    spec = source.about.spec
    if spec.unit == "rollouts" or spec.goals:
        why = "learns from hindsight, which needs the environment" if spec.goals else "learns from its own actors' rollouts alone"
        raise ConfigError(f"--record: {source.about.algorithm} {why}; record into a folder: --record-to FOLDER")
    name = f"{keys.SERVE}-{port}"
    replay: ReplayConfig = refreshed(folder).replay
    address = folder.endpoint(shard_of(name, replay.shards).name)
    if address is None:
        raise ConfigError(f"--record: replay of run {folder.name} is not there yet; try again in a moment")
    _key(folder, name)
    return Recording(spec, ReplaySink(address, name, folder, spec, MOST_STREAMS), annotate)


def _key(folder: RunDir, name: str) -> str:
    """The name, which the run's list of keys has from now on, if the run has keys. Raises KeysError, OSError."""
    if folder.keys(keys.OPERATOR) is not None:
        keys.make(folder.key_folder, (name,), new_pair)
    return name


def _check_file(file: Path, trust_it: bool, config: dict[str, Any]) -> None:
    if not trust_it:
        trust.check_exported({"algorithm": config.get("algorithm", {})}, file, f"add {FLAG}")


def _greeting(served: PolicyServer, parsed: argparse.Namespace) -> list[str]:
    about = served.about
    secret = f"${VARIABLE}" if os.environ.get(VARIABLE) else f"$(cat {token_file()})"
    observation = {"observation": to_plain(about.observation_space.sample())}
    example = json.dumps(observation | ({"session": "a"} if served.needs_session else {}))
    path = f"-d '{example}' {served.address}/act" if example.count(",") < SHOWN else f"{served.address}/policy"
    ending = "" if is_loopback(parsed.bind) else "; the certificate must be one that clients trust"
    return [
        f"{served.serving} ({about.algorithm}, {about.env}) at {served.address}{ending}",
        f'try: curl -H "Authorization: Bearer {secret}" {path}',
        "Ctrl-C ends it",
    ]
