"""The page of `headrace up --web`: a separate process, which takes no time from the supervisor. It ends with that command."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.children import POSIX, child_environment, python_command
from deploy.cli.browser.web import Buttons, TheseRuns, links
from deploy.cli.streams import UnbreakableStream
from transport.run_dir import RunDir

END_SECONDS = 5.0


@contextmanager
def page_beside(run: RunDir) -> Iterator[None]:
    """Serves the page of a run until the end of the block, or of this process. The links are printed on this terminal."""
    own_group = 0 if POSIX else subprocess.CREATE_NEW_PROCESS_GROUP  # type: ignore[attr-defined]
    process = subprocess.Popen(
        python_command("deploy.cli.browser.beside", str(run.path)),
        stdin=subprocess.PIPE,
        env=child_environment(),
        start_new_session=POSIX,  # Ctrl-C is for the run, whose end the page still shows
        creationflags=own_group,
    )
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    from deploy.views.web.server import WebServer

    server = WebServer(TheseRuns([RunDir(Path(sys.argv[1]))]), Buttons())
    sys.stdout = UnbreakableStream(sys.stdout)  # type: ignore[assignment]
    print("\n".join(links(server)), flush=True)
    threading.Thread(target=_wait_for_parent, args=(server.stop,), daemon=True).start()
    server.serve()


def _wait_for_parent(stop: Callable[[], None]) -> None:
    """The pipe from the process that has started this one closes when that ends, however it ends."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    stop()


if __name__ == "__main__":
    main()
