"""`python -m benchmarks.clients.measured ADDRESS FILE`: docs/clients/cartpole.py; FILE gets the seconds of its round trips."""

from __future__ import annotations

import importlib.util
import sys
import time
from array import array
from pathlib import Path
from typing import Any

from benchmarks.clients.programs import FOLDER

SAMPLES = 256  # between two writes: 8 bytes each


def main(address: str, path: str) -> None:
    spec = importlib.util.spec_from_file_location("cartpole", FOLDER / "cartpole.py")
    assert spec is not None and spec.loader is not None
    client: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(client)
    seconds = array("d")

    class Timed(client.Connection):
        def ask(self, message: Any) -> Any:
            began = time.perf_counter()
            answer = super().ask(message)
            seconds.append(time.perf_counter() - began)
            if len(seconds) == SAMPLES:
                with Path(path).open("ab") as file:
                    seconds.tofile(file)
                del seconds[:]
            return answer

    client.Connection = Timed
    sys.argv[1:] = [address]
    client.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
