# The menu. `make run` and `make test` are all that a fresh machine with Python 3.11 or newer needs.

VENV ?= .venv
GATEWAY_VENV ?= .venv-gateway
LLAMACPP_VENV ?= .venv-llamacpp
CLIENTS ?= .clients
PEERS_VENV ?= .venv-peers
PYTEST ?= -q
BENCH ?=
GPU_CHECK ?=
# The machine may reach nothing: whatever Python is there and holds torch.
GPU_PYTHON ?= $(if $(wildcard $(VENV)/bin/python),$(VENV)/bin/python,python3)
FUZZ_VENV ?= .venv-fuzz
FUZZ_S ?= 600
FUZZ ?=
SOAK ?=
LOAD_S ?= 300
LOAD ?=

.DEFAULT_GOAL := help
.PHONY: help run test test-gateway test-long test-llamacpp clients bench-gateway bench-engine bench-conductor gpu-check fuzz soak load first-use lint format lock

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

run: ## set everything up, bring the embedded model, serve on http://127.0.0.1:8700
	@scripts/setup $(VENV) worker
	@test -f tandem.yaml || cp deploy/tandem.example.yaml tandem.yaml
	@$(VENV)/bin/tandem fetch-model
	@exec $(VENV)/bin/tandem serve

test: ## all tests of the gate
	@scripts/setup $(VENV) test-worker
	@$(VENV)/bin/tandem fetch-model || true
	$(VENV)/bin/pytest $(PYTEST)

test-gateway: ## the same tests in an environment without torch (the worker's are skipped)
	@scripts/setup $(GATEWAY_VENV) test
	$(GATEWAY_VENV)/bin/pytest $(PYTEST)

test-long: ## the worker's tests over more: every drafter over 500 tokens, kept states over 10,000 steps, questions beside a long answer
	@scripts/setup $(VENV) test-worker
	@OMP_WAIT_POLICY=PASSIVE $(VENV)/bin/pytest -q -m long tests/worker tests/e2e

test-llamacpp: ## against llama.cpp's servers and its logits (built from source in an environment of its own)
	@scripts/setup $(VENV) test-worker
	@scripts/setup-llamacpp $(LLAMACPP_VENV)
	@$(VENV)/bin/tandem fetch-model
	TANDEM_LLAMACPP_PYTHON=$(LLAMACPP_VENV)/bin/python TANDEM_LLAMA_SERVER=$(LLAMACPP_VENV)/bin/llama-server \
		OMP_WAIT_POLICY=PASSIVE $(VENV)/bin/pytest -q -s -m llamacpp tests/e2e tests/worker/test_llamacpp_oracle.py

clients: ## opencode, Qwen Code and Continue, each two turns with a tool through the conductor (Node 20; 500 MB)
	@scripts/setup $(GATEWAY_VENV) test
	@scripts/setup-clients $(CLIENTS)
	TANDEM_CLIENTS=$(CLIENTS) $(GATEWAY_VENV)/bin/pytest -q -m clients tests/e2e/clients

bench-gateway: ## what a request costs here, in nginx, Envoy and LiteLLM (6 min; BENCH=--quick: 1.5 min)
	@scripts/setup $(GATEWAY_VENV) test
	@bench/setup-peers $(PEERS_VENV)
	@$(GATEWAY_VENV)/bin/python -m bench.gateway --tandem $(GATEWAY_VENV)/bin/tandem --peers $(PEERS_VENV)/bin $(BENCH)

bench-conductor: ## what planning a turn costs, in processor time (BENCH=--rounds=50)
	@scripts/setup $(GATEWAY_VENV) test
	@$(GATEWAY_VENV)/bin/python -m bench.conductor $(BENCH)

bench-engine: ## speed beside transformers and llama.cpp (45 min; BENCH='--only speculation')
	@scripts/setup $(VENV) test-worker
	@scripts/setup-llamacpp $(LLAMACPP_VENV)
	@$(VENV)/bin/tandem fetch-model
	@$(VENV)/bin/python -m bench.engine --llamacpp $(LLAMACPP_VENV)/bin/python $(BENCH)

gpu-check: ## what the engine is and does on this machine's GPU (8 min at most; GPU_CHECK='--only G1')
	@$(GPU_PYTHON) scripts/gpu-check $(GPU_CHECK)

fuzz: ## look for inputs that break the gateway (FUZZ_S=600: for so many seconds)
	@scripts/setup $(FUZZ_VENV) fuzz
	@PYTHONPATH=. nice -n 15 $(FUZZ_VENV)/bin/python -m tests.fuzz --seconds $(FUZZ_S) $(FUZZ)

soak: ## 10,000 requests of every kind: what they leave behind, what refused ones cost a stream
	@scripts/setup $(GATEWAY_VENV) test
	@PYTHONPATH=. $(GATEWAY_VENV)/bin/python -m tests.soak $(SOAK)

load: ## 64 impatient clients on four lanes of the engine: order, estimates, leaks (LOAD_S=300: for so many seconds)
	@scripts/setup $(VENV) test-worker
	@PYTHONPATH=. nice -n 10 $(VENV)/bin/python -m tests.load --seconds $(LOAD_S) $(LOAD)

first-use: ## `make run` as a newcomer sees it: serving, one answer, a clean end
	@scripts/first-use

lint: ## style, types, dead links
	@scripts/setup $(VENV) test-worker
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: ## rewrite the code in the house's layout
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

lock: ## resolve pyproject.toml into requirements/*.lock again (needs uv)
	python3 scripts/lock
