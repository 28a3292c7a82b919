"""The whole folder of a stopped run, made without any process."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from actors.envs.spaces import describe_space
from deploy import settings
from deploy.config.layers import load_run_config
from learner.description import PolicyDescription
from learner.weights.checkpoint import Checkpoints, write_listed
from replay.config import ReplayConfig
from replay.log.journal import Journal
from replay.table.ring import Ring
from tests.deploy.views.web.made_up import made_up
from tests.replay.examples import make_spec, stream_chunks
from transport.compression import crc32, pack_chunk
from transport.experience import write_spec
from transport.messages.replay import Insert
from transport.run_dir import RunDir

SPEC = make_spec(length=4, stack=2, n_step=2)
CHUNKS = 40


def stopped_run(folder: Path, chunks: int = CHUNKS) -> RunDir:
    """Its experience lies in several segments."""
    import gymnasium

    run = made_up(folder, seconds=30, replay__capacity=400, replay__min_size=64)
    config = load_run_config(run)
    run.spec.write_bytes(write_spec(SPEC))
    spaces = {"observation": gymnasium.spaces.Box(-1, 1, ()), "action": gymnasium.spaces.Discrete(4)}
    run.spaces.write_bytes(msgspec.json.encode({name: describe_space(space) for name, space in spaces.items()}))
    run.policy.write_bytes(msgspec.json.encode(PolicyDescription({})))
    run.device.write_bytes(b'{"device": "cpu", "precision": "float32"}')
    settings.write(run, config)
    weights = {"policy/weight": np.arange(8, dtype=np.float32)}
    metadata = {"spec_digest": SPEC.digest, "env": "CartPole-v1", "algorithm": "dqn", "spec": write_spec(SPEC).decode()}
    for epoch in (1, 2, 3):
        metadata |= {"epoch": str(epoch), "policy_version": str(epoch)}
        counters = {"counters": '{"updates": 100.0, "items": 12800.0}', "progress": '{"updates": 100}'}
        Checkpoints(run.checkpoints, 3).write(epoch, weights, metadata | counters)
    for path in (run.latest, run.best):
        write_listed(path, {"weight": weights["policy/weight"]}, metadata)
    run.announced.write_text("3")
    fill(run, config.replay, chunks)
    return run


def fill(run: RunDir, config: ReplayConfig, chunks: int = CHUNKS) -> None:
    """Adds experience of two actors, as replay does."""
    ring = Ring(SPEC, config, 0)
    journal = Journal(run.segments, ring, config, lambda: False)
    for number, chunk in enumerate(stream_chunks(SPEC, {}, SPEC.chunk_length * (chunks + 1))[:chunks]):
        parts = pack_chunk(SPEC, chunk)
        journal.append(f"actor-{number % 2}", 7, Insert(number // 2, 0, chunk.length, crc32(parts)), parts)
        ring.insert(chunk)
    journal.close(lambda: {})
