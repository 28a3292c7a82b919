"""Plays an episode of a run's log again, looks for the first success, or checks all episodes."""

from __future__ import annotations

import sys
from typing import TextIO

import gymnasium

from actors.config import ActorSettings
from actors.datasets.base import DatasetError
from actors.datasets.runs import Evicted, LoggedEpisode
from actors.envs.base import EnvPlace
from actors.envs.make import make_env, open_family
from actors.errors import EnvError
from actors.evaluation.repeat.episodes import Entry, Episodes
from actors.evaluation.repeat.playback_env import Departure, PlaybackEnv
from transport.text import reported

SHOWN_DEPARTURES = 5


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Repeater:
    """Keeps an environment for each stream, and plays the stream's episodes in it."""

    def __init__(self, settings: ActorSettings, episodes: Episodes) -> None:
        self._settings, self._episodes = settings, episodes
        self._envs: dict[tuple[str, int, int], tuple[PlaybackEnv, int]] = {}  # and the place of the episode that was played last

    def make(self, entry: Entry, pictures: bool) -> gymnasium.Env:
        """Raises EnvError, ImportError."""
        if open_family(self._settings.env).decides_steps:
            raise EnvError(f"{self._settings.env.id} is programs of others, which this command does not start")
        actor, _, environment = entry.logged.stream
        worker = int(actor.rpartition("-")[2]) + 1 if actor.rpartition("-")[2].isdecimal() else 0
        place = EnvPlace(worker, environment, entry.logged.start.seed if entry.logged.start else 0)
        return make_env(self._settings.env, "rgb_array" if pictures else None, place=place)

    def prepare(self, entry: Entry, env: PlaybackEnv, played: int = -1) -> LoggedEpisode:
        """Brings an environment to where the episode begins, and returns the episode with its rows. `played`: the place in the
        stream of the episode that was played last in this environment. Raises Evicted."""
        before = self._episodes.before(entry)
        first = entry.place - len(before)
        if first <= played < entry.place:
            before = before[played + 1 - first :]
        for episode in reported(before, "playing the episodes before it, from its seed on", say):
            env.skip(self._episodes.rows(episode))
        return self.rows(entry)

    def rows(self, entry: Entry) -> LoggedEpisode:
        return self._episodes.rows(entry.logged)

    def outcome(self, entry: Entry) -> tuple[Departure | None, bool | None]:
        """Plays the episode without pictures. Returns its departure, and whether it was a success; None if the environment does
        not say."""
        stream = entry.logged.stream
        env, played = self._envs.get(stream, (None, -1))
        if env is None:
            env = PlaybackEnv(self.make(entry, pictures=False), self._settings.spec)
        self._envs[stream] = env, -1  # which stays where the episode has been evicted meanwhile
        *_, departure = env.play(self.prepare(entry, env, played))
        self._envs[stream] = env, -1 if departure else entry.place
        return departure, env.success

    def close(self) -> None:
        for env, _ in self._envs.values():
            env.close()
        self._envs.clear()

    def explain(self, entry: Entry) -> str:
        """Says why an episode may have departed."""
        if not self._episodes.has_seeds:
            return "its log has no seeds: it is of an older version of headrace, or its environments take none one by one"
        if self._episodes.is_seeded(entry):
            return "the environment was seeded as it was then: it has changed since, or does not follow from its seed alone"
        return "the log does not reach back to the seed of its environment: what was before has been evicted or lost"


def first_success(repeater: Repeater, episodes: Episodes) -> Entry:
    """The first episode that the environment reports as a success. Raises DatasetError."""
    departed = 0
    for entry in reported(episodes.entries, "looking for a success", say):
        try:
            departure, success = repeater.outcome(entry)
        except Evicted:
            continue
        departed += departure is not None
        if departure is None and success is None:
            raise DatasetError("its environment does not report success: say which return is one, by --least-return X")
        if departure is None and success:
            if departed:
                say(f"{departed:,} episodes before it could not be repeated, so that it is not known whether they were successes")
            return entry
    raise DatasetError(
        f"no episode in the log is a success, as far as they can be repeated ({departed:,} cannot): it holds {episodes.range}"
    )


def check(repeater: Repeater, episodes: Episodes, out: TextIO | None) -> bool:
    """Plays every episode again, one stream after the other, and prints how many are exact. Returns whether all are."""
    departures: list[tuple[Entry, Departure]] = []
    stream, total = None, len(episodes.entries)
    for entry in reported(sorted(episodes.entries, key=lambda entry: (entry.logged.stream, entry.place)), "checking", say):
        if stream not in (None, entry.logged.stream):
            repeater.close()
        stream = entry.logged.stream
        try:
            departure = repeater.outcome(entry)[0]
        except Evicted:
            total -= 1
            continue
        if departure:
            departures.append((entry, departure))
    print(f"{total - len(departures):,} of {total:,} episodes repeat exactly", file=out, flush=True)
    for entry, departure in sorted(departures)[:SHOWN_DEPARTURES]:
        print(f"episode {entry.number:,} departs at {departure.where(entry.length)}: {departure.what}", file=out, flush=True)
    if departures:
        print(repeater.explain(min(departures)[0]), file=out, flush=True)
    return not departures
