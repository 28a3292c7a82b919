# Forwards to the `headrace` command, which does the work on every system: `.venv/bin/headrace --help`.
# Variables: make up ENV=mario ACTORS=4 ALGO= RUN= ARGS='--total-steps 1e6'
# They are read from make's command line only: ENV has another meaning to a shell.
ENV = mario
ACTORS =
ALGO =
RUN =
# The address that servers listen on over TCP; empty: private sockets of this user. Other machines' needs `headrace keys`.
BIND =
ARGS =
# What to install: simulators and tools by name, and the torch build (auto, cpu, cuda, cu126, cu130, rocm, xpu). Empty: as before,
# at first all that is usual, and the build for this machine.
EXTRAS =
TORCH =
# For torch-check: 2.4.1, the oldest that is supported, or newest, or any between.
TORCH_VERSION = newest

BOOTSTRAP := $(shell command -v python3 || command -v python3.11)
NO_PYTHON = echo "Headrace needs Python 3.11. On Debian: sudo apt install python3.11 python3.11-venv" >&2; exit 1
PYTHON := .venv/bin/python
HEADRACE := .venv/bin/headrace

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help environment install up down scale status top logs eval demo bench chaos learn-check gpu-check torch-check windows-check docs docs-check lint test

help:
	@echo "make up        start replay, learner, actors and evaluator and follow their log; Ctrl-C stops all"
	@echo "make down      stop the running run"
	@echo "make status    what each process does"
	@echo "make top       the same, live"
	@echo "make scale     change the number of actors: ACTORS=12"
	@echo "make logs      the merged log"
	@echo "make eval      play episodes with a run's policy and count"
	@echo "make demo      watch that policy, or ARGS='--video out.mp4'"
	@echo "make bench     measure the replay service on this machine"
	@echo "make chaos     rehearse faults and attacks, about 45 minutes: ARGS=--short, ARGS='R1 S6', ARGS=--help"
	@echo "make learn-check  train what is known to learn, and the other slow tests, under an hour"
	@echo "make gpu-check    the learner on a stand-in for a GPU, some ten minutes; needs g++"
	@echo "make torch-check  the learner's tests on another torch: TORCH_VERSION=2.4.1"
	@echo "make windows-check  tests and whole runs on Windows' Python, under Wine: Linux, root, 4 GB; ARGS=tests/replay"
	@echo "make docs      the documentation as web pages, docs/_build/html/index.html"
	@echo "make docs-check  run every command that it shows, some twenty minutes: ARGS=README.md"
	@echo "make install   only make the environment, .venv (every target does so first)"
	@echo "make lint      style and types"
	@echo "make test      style, types and tests"
	@echo
	@echo "up takes ENV=mario ACTORS=4 ALGO=dqn BIND=127.0.0.1; all take RUN=name and ARGS='--more --flags'."

environment:
	@$(if $(BOOTSTRAP),,$(NO_PYTHON))
	@$(BOOTSTRAP) -I deploy/install.py $(if $(EXTRAS),--extras "$(EXTRAS)") $(if $(TORCH),--torch "$(TORCH)")

install: environment
	@echo "Ready: $(HEADRACE)"

# exec: otherwise a shell between make and headrace would die of Ctrl-C and make would call an orderly stop a failure.
up: environment
	@exec $(HEADRACE) up --env "$(ENV)" $(if $(ALGO),--algo "$(ALGO)") $(if $(ACTORS),--actors "$(ACTORS)") $(if $(RUN),--run "$(RUN)") $(if $(BIND),--deploy.bind "$(BIND)") $(ARGS)

scale: environment
	@$(if $(ACTORS),,echo "make scale ACTORS=12 says how many" >&2; exit 2)
	@exec $(HEADRACE) scale "$(ACTORS)" $(if $(RUN),--run "$(RUN)") $(ARGS)

down status logs top: environment
	@exec $(HEADRACE) $@ $(if $(RUN),--run "$(RUN)") $(ARGS)

demo: environment
	@exec $(HEADRACE) demo $(if $(RUN),"$(RUN)") $(ARGS)

eval: environment
	@exec $(HEADRACE) eval $(if $(RUN),"$(RUN)") $(ARGS)

bench: environment
	@exec $(HEADRACE) bench replay $(ARGS)

chaos: environment
	@exec $(PYTHON) -m tests.chaos $(ARGS)

# All slow tests but those of the documentation.
learn-check: environment
	@exec $(PYTHON) -m pytest -m slow --ignore tests/docs -rA $(ARGS)

gpu-check: environment
	@exec $(PYTHON) -m pytest -m slow tests/labs/gpu tests/learner/networks/test_stack_kernel.py -rA $(ARGS)

# In an environment of its own. `newest` stays what it was when that was made: remove .venv-torch-newest to renew it.
torch-check:
	@$(if $(BOOTSTRAP),,$(NO_PYTHON))
	@$(BOOTSTRAP) -I deploy/install.py --venv ".venv-torch-$(TORCH_VERSION)" --extras dev $(if $(TORCH),--torch "$(TORCH)") --torch-version "$(TORCH_VERSION)"
	@exec .venv-torch-$(TORCH_VERSION)/bin/python -m pytest -m "not flow" tests/learner $(ARGS)

# The first time it makes the lab: WINDOWS_LAB=FOLDER keeps that elsewhere. ARGS=tests/transport runs the tests of that folder alone.
WINDOWS_LAB = build/windows-lab
windows-check:
	@exec tests/labs/windows/check "$(WINDOWS_LAB)" $(ARGS)

# The reference of the configuration is written anew from the structs.
docs: environment
	@$(PYTHON) docs/generate.py
	@exec $(PYTHON) -m sphinx -q -W --keep-going -b html docs docs/_build/html $(ARGS)

docs-check: environment
	@exec $(PYTHON) -m tests.docs $(ARGS)

lint: environment
	@$(PYTHON) -m ruff check
	@$(PYTHON) -m ruff format --check -q
	@.venv/bin/lint-imports --no-logo
	@$(PYTHON) -m basedpyright --pythonpath $(PYTHON) & pyright=$$!; \
	$(PYTHON) -m pyrefly check --python-interpreter-path $(PYTHON) --progress-bar no; pyrefly=$$?; wait $$pyright && exit $$pyrefly

# Tests that measure time, or look for anything that a run has left, have the machine for themselves, one by one, and last.
# The others share two cores, three at a time: while some wait for processes, others compute.
# They are in these folders only, which tests/conftest.py checks: collecting all tests again would take ten seconds.
ALONE = tests/chaos tests/flow tests/headrace
test: lint
	@$(PYTHON) -m pytest -m "not slow and not alone" --numprocesses 3 --dist loadgroup $(ARGS)
	@$(PYTHON) -m pytest -o testpaths="$(ALONE)" -m "not slow and alone" $(ARGS)
