# Hosts models: torch, Ray, and the compiler that torch.compile needs. On the CPU, or on a CUDA base on NVIDIA GPUs.
#
#   docker build -f docker/serve.Dockerfile -t tailrate-serve:0.1.0 .
#   docker build -f docker/serve.Dockerfile -t tailrate-serve:0.1.0-cuda \
#     --build-arg BASE=nvidia/cuda:13.0.2-base-ubuntu24.04 --build-arg TORCH=cuda .
#
# `--secret id=pip_conf,src=FILE` is a pip.conf with indexes of your own, of which nothing stays in the image.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE}

# g++ for Inductor's code on the CPU, and for Triton's launchers; Python itself where the base has none
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates g++ tini \
 && { command -v python3 || apt-get install -y --no-install-recommends python3-dev python3-venv; } \
 && rm -rf /var/lib/apt/lists/*

# Which file of docker/constraints says what torch is: cpu, cuda, one of yours, or auto: cpu where an index of pip's has
# that, else cuda, which runs on the CPU too. From what seldom changes to what often does: torch, other dependencies, code.
ARG TORCH=auto
COPY docker/constraints /opt/constraints
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    python3 -m venv /opt/tailrate \
 && install_torch() { \
      { cat "/opt/constraints/$1.txt"; grep -v '^torch' /opt/constraints/common.txt; } > /opt/tailrate/constraints.txt \
      && /opt/tailrate/bin/pip install --no-cache-dir -c /opt/tailrate/constraints.txt torch torchvision; \
    } \
 && if [ "${TORCH}" != auto ]; then install_torch "${TORCH}"; \
    elif ! install_torch cpu; then \
      echo "No index that pip was given has torch for the CPU alone, so this image gets CUDA's, gigabytes larger (docs/deploy.md)" \
      && install_torch cuda; \
    fi
ENV PATH=/opt/tailrate/bin:$PATH
# the least driver, where it serves on GPUs: CUDA 13's
LABEL tailrate.nvidia-driver=">=580.65.06"

# More than serve: onnx, openvino, int8, diffusion, tensorrt
ARG EXTRAS=serve
COPY pyproject.toml docker/dependencies.py /src/
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    python /src/dependencies.py /src/pyproject.toml "${EXTRAS}" > /src/dependencies.txt \
 && pip install --no-cache-dir -c /opt/tailrate/constraints.txt -r /src/dependencies.txt
COPY . /src
RUN pip install --no-cache-dir --no-deps --no-build-isolation /src

RUN useradd --create-home --uid 10001 tailrate && install -d -o tailrate /var/cache/tailrate

# What is compiled here need not be at the first start, such as WARM="custom_cnn --threads 4". It is root's, and apart from
# the cache, which a volume hides; on a GPU that is only possible where the build has one, so there such a volume is the way.
# The headers that Inductor precompiles in /tmp stay: even a warm start makes them, for five seconds, where they are not.
ARG WARM=
RUN install -d -o tailrate /opt/baked \
 && if [ -n "${WARM}" ]; then \
      HOME=/home/tailrate TAILRATE_CACHE=/opt/baked \
        setpriv --reuid=tailrate --regid=tailrate --init-groups tailrate serve ${WARM} > /tmp/warm 2>&1 & \
      while ! grep -q '^ready:' /tmp/warm; do kill -0 $! && sleep 1 || { cat /tmp/warm; exit 1; }; done; \
      kill $! && wait $! && rm /tmp/warm; \
    fi \
 && chown -R root:root /opt/baked && chmod -R go=rX /opt/baked

USER tailrate
WORKDIR /home/tailrate
# what this image serves is reached through the ports that are published, so it listens on every interface
ENV TAILRATE_CACHE=/var/cache/tailrate TAILRATE_BAKED=/opt/baked TAILRATE_SERVE_HOST=0.0.0.0

EXPOSE 8000
# compiling may take many minutes at the first start
HEALTHCHECK --start-period=30m --interval=10s --timeout=5s --retries=3 \
  CMD ["python", "-m", "tailrate.serve.deploy.probe"]
ENTRYPOINT ["tini", "--", "tailrate"]
CMD ["serve", "custom_cnn"]
