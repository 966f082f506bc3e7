# A worker on CPUs with the small model, or a whole pool: `docker run llamapool-worker-cpu serve`.
#   docker build -f deploy/docker/cpu.Dockerfile -t llamapool-worker-cpu:0.1.0 .
FROM python:3.11-slim-bookworm AS build
# Without GGML_NATIVE it runs on other CPUs than this one; -DGGML_NATIVE=ON is faster on the same.
ARG CMAKE_ARGS=-DGGML_NATIVE=OFF
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential cmake git make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Makefile constraints.txt pyproject.toml README.md ./
COPY .ci/progress.py .ci/progress.py
COPY gateway gateway
COPY protocol protocol
COPY worker worker
# The stamps build everything; then the editable install gives way to a real one.
RUN make build VENV=/opt/llamapool CMAKE_ARGS="${CMAKE_ARGS}" \
    && /opt/llamapool/bin/pip install --no-deps --no-build-isolation --force-reinstall .

FROM python:3.11-slim-bookworm
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home llamapool \
    && install -d -o llamapool -m 700 /run/llamapool /var/cache/llamapool /var/lib/llamapool
COPY --from=build /opt/llamapool /opt/llamapool
COPY --chmod=755 deploy/docker/entrypoint.sh deploy/docker/healthcheck.sh /usr/local/bin/
ENV PATH=/opt/llamapool/bin:$PATH LLAMAPOOL_ROLE=worker RUNTIME_DIRECTORY=/run/llamapool \
    HF_HOME=/var/cache/llamapool LLAMA_ARG_HOST=0.0.0.0 LLAMA_ARG_REQUIRE_KEY=1
USER 10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=300s --interval=10s --timeout=5s CMD ["healthcheck.sh"]
ENTRYPOINT ["entrypoint.sh"]
