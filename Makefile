# Every target sets up what it needs; `make setup` is instant when nothing changed.
PYTHON ?= python3
BIN := .venv/bin
# Tests that share a host or a pair of servers stay in one worker; what takes longest comes first.
BESIDE ?= -n 2 --dist loadscope --no-loadscope-reorder
GPU_PYTHON ?= $(PYTHON)
RUNS ?= 1000
MINUTES ?= 60
ENGINE_VERSIONS ?= 0.5.12.post1 0.5.13.post1 0.5.10.post1 0.5.23

.PHONY: help setup demo engine-news test test-engine test-long test-upstream engine check format docs site release bench score fuzz gpu clean

help:
	@echo 'make demo         a cluster without the fix, a hang, its diagnosis, and the same with the fix'
	@echo 'make test         unit and system tests'
	@echo 'make test-engine  tests against real SGLang servers, on a CPU (ENGINE_VERSIONS=...)'
	@echo 'make test-long    long proofs: every drill, every version, thousands of looks, hundreds of kills'
	@echo 'make test-upstream FOLDER=...  tests of SGLang itself, with and without the hooks of pdctl'
	@echo 'make engine-news  the newest SGLang: which seams changed, the model-free harness and one pair on it'
	@echo 'make check        lint, format, types, layering, documentation in step'
	@echo 'make site         the documentation with search, to read without a network, in site/'
	@echo 'make release      wheel, sdist, SBOM, notes and checksums in dist/; tries the wheel on each Python that is here'
	@echo 'make bench        what the agent and the recorder cost'
	@echo 'make score        known harm to labs: what pdctl tells, misses and makes up (RUNS=1000 MINUTES=60)'
	@echo 'make fuzz         everything that is read from files and sockets, fuzzed for 10 minutes each'
	@echo 'make gpu          everything that needs a card, in one go (GPU_PYTHON=..., with torch; installs nothing)'
	@echo 'make format docs  bring format and generated documentation in step'

setup:
	@$(PYTHON) -m tools.setup_env

demo: setup
	@$(BIN)/pdctl demo

test: setup
	$(BIN)/python -m pytest tests/unit tests/system -m 'not long' -n auto --dist loadscope --no-loadscope-reorder --durations 20

engine: setup
	@$(BIN)/python -m tests.engine.install --versions $(ENGINE_VERSIONS)

test-engine: engine
	$(BIN)/python -m pytest tests/engine -m 'not long' $(BESIDE) --durations 20

engine-news: engine
	@$(BIN)/python -m tests.engine.news

test-long: ENGINE_VERSIONS := $(ENGINE_VERSIONS) 0.5.11 0.5.15 0.5.18 0.5.22
test-long: engine
	PDCTL_TEST_DRILLS=all $(BIN)/python -m pytest tests/system/test_drills.py
	PDCTL_TEST_DRAWS=new $(BIN)/python -m pytest tests/unit
	$(BIN)/python -m pytest tests/unit tests/system -m long
	$(BIN)/python -m tests.engine.versions
	$(BIN)/python -m pytest tests/engine -m long --ignore-glob '*/test_light*.py' --ignore tests/engine/test_heartbeats.py

test-upstream: setup
	@$(BIN)/python -m tests.engine.upstream $(FOLDER)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tools.gen_docs --check
	$(BIN)/python -m tools.gen_findings --check
	$(BIN)/python -m tools.gen_schemas --check
	$(BIN)/python -m tools.pages

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup
	$(BIN)/python -m tools.gen_docs
	$(BIN)/python -m tools.gen_findings
	$(BIN)/python -m tools.gen_schemas
	$(BIN)/python -m tools.gen_notebooks

site: setup
	@$(BIN)/python -m tools.build_site

release: setup
	@$(BIN)/python -m tools.release

bench: setup
	$(BIN)/python -m benchmarks

score: setup
	$(BIN)/python -m benchmarks.score --out build/score --runs $(RUNS) --minutes $(MINUTES)
	$(BIN)/python -m benchmarks.score --out build/score --report

fuzz: setup
	@test -d .fuzz/atheris || $(PYTHON) -m pip install --quiet --target .fuzz atheris
	PYTHONPATH=.fuzz $(BIN)/python -m tests.fuzz --seconds 600

gpu:
	$(GPU_PYTHON) -m tests.gpu --rows docs/track-record.md

clean:
	rm -rf .venv .fuzz .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site
