"""Threads of numpy's products."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from learner.engine.threads import functions

CODE = """
from learner.engine.threads import functions, limit_threads
before = [function() for function in functions("get_num_threads")]
limit_threads(1)
print(before, [function() for function in functions("get_num_threads")])
"""


@pytest.mark.skipif(not list(functions("get_num_threads")), reason="numpy has brought no OpenBLAS along")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core")
def test_their_number_is_what_is_set_whatever_the_environment_said() -> None:
    environment = os.environ | dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "2")
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=environment, check=True)
    assert found.stdout.strip() == "[2] [1]"
