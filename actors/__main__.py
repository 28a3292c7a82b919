"""`python -m actors RUN_DIR --actor I`: one actor process of a run. `--wait` alone: these words arrive on standard input."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from actors.actor import Actor, describe
from actors.envs.make import leave
from actors.errors import EnvError
from actors.settings import check_trusted, read_settings
from actors.trust import FLAG, UntrustedSettings
from learner.devices.errors import DeviceError
from learner.inference.remote import InferenceError
from learner.weights.errors import CheckpointError
from replay.client.base import ReplayRefused
from transport.experience import SpecError
from transport.files.documents import Damaged
from transport.lifetime import Lifetime, command_arguments
from transport.messages.control import Assignment
from transport.names import UnknownName
from transport.run_dir import RunDir
from transport.text import say

REFUSALS = (
    *(Damaged, msgspec.ValidationError, SpecError, EnvError, DeviceError, CheckpointError, InferenceError),
    *(ReplayRefused, UnknownName, UntrustedSettings),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m actors", description="One actor process of a run.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--actor", type=int, required=True, metavar="I", help="which actor of the run, from 0")
    parser.add_argument("--environments", type=int, metavar="N", help="environments of the whole run; default: as configured")
    parser.add_argument("--first-seed", type=int, metavar="S", help="seed of its first environment; default: by the run's seed")
    parser.add_argument("--level", type=int, default=0, metavar="L", help="level of the curriculum, if there is one")
    text = "allow settings that name code in the folder of a run that this account has not made on this machine"
    parser.add_argument(FLAG, dest="trusted", action="store_true", help=text)
    if (words := command_arguments()) is None:
        return 0
    arguments = parser.parse_args(words)
    run_dir = RunDir(arguments.run_dir)
    try:
        if not arguments.trusted:
            check_trusted(run_dir, arguments.actor)
        settings = read_settings(run_dir, arguments.actor)
        lifetime = Lifetime(f"actor-{arguments.actor}", run_dir, describe)
        if arguments.environments is not None and arguments.first_seed is not None:
            place = settings.assignment.offset, arguments.environments, arguments.first_seed
            lifetime.assignment = Assignment(*place, arguments.level)
        Actor(settings, run_dir, lifetime).run()
    except REFUSALS as error:
        say(f"actor-{arguments.actor}: {error}")
        return 2
    lifetime.close()
    return 0


if __name__ == "__main__":
    leave(main)
