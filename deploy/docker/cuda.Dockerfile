# A worker on NVIDIA GPUs, or a whole pool: `docker run --gpus all llamapool-worker-cuda serve`.
#   docker build -f deploy/docker/cuda.Dockerfile -t llamapool-worker-cuda:0.1.0 .
ARG CUDA=12.6.3
FROM nvidia/cuda:${CUDA}-devel-ubuntu24.04 AS build
# The architectures of your GPUs: 80 A100, 86 RTX 30, 89 L4 and RTX 40, 90 H100, 120 RTX 50.
ARG CUDA_ARCHITECTURES=80;86;89;90
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential cmake git make python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Makefile constraints.txt pyproject.toml README.md ./
COPY .ci/progress.py .ci/progress.py
COPY gateway gateway
COPY protocol protocol
COPY worker worker
# The driver's library is only there when a container runs on a GPU: link with its stub.
RUN ln -s /usr/local/cuda/lib64/stubs/libcuda.so /usr/local/cuda/lib64/stubs/libcuda.so.1 \
    && LIBRARY_PATH=/usr/local/cuda/lib64/stubs make build VENV=/opt/llamapool \
        CMAKE_ARGS="-DGGML_CUDA=ON -DGGML_NATIVE=OFF -DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES}" \
    && /opt/llamapool/bin/pip install --no-deps --no-build-isolation --force-reinstall .

FROM nvidia/cuda:${CUDA}-runtime-ubuntu24.04
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home llamapool \
    && install -d -o llamapool -m 700 /run/llamapool /var/cache/llamapool /var/lib/llamapool
COPY --from=build /opt/llamapool /opt/llamapool
COPY --chmod=755 deploy/docker/entrypoint.sh deploy/docker/healthcheck.sh /usr/local/bin/
ENV PATH=/opt/llamapool/bin:$PATH LLAMAPOOL_ROLE=worker RUNTIME_DIRECTORY=/run/llamapool \
    HF_HOME=/var/cache/llamapool LLAMA_ARG_HOST=0.0.0.0 LLAMA_ARG_REQUIRE_KEY=1 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=600s --interval=10s --timeout=5s CMD ["healthcheck.sh"]
ENTRYPOINT ["entrypoint.sh"]
