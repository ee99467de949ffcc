# Hosts models: torch, Ray, and the compiler that torch.compile needs. On the CPU, or on a CUDA base on NVIDIA GPUs.
#
#   docker build -f docker/serve.Dockerfile -t headroom-serve:0.1.0 .
#   docker build -f docker/serve.Dockerfile -t headroom-serve:0.1.0-cuda \
#     --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 .
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE}

# g++ for Inductor's code on the CPU, and for Triton's launchers; Python itself where the base has none
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates g++ tini \
 && { command -v python3 || apt-get install -y --no-install-recommends python3-dev python3-venv; } \
 && rm -rf /var/lib/apt/lists/*

# Such as 2.11.0+cpu: without a version, the newest of the index that pip is set to (PIP_EXTRA_INDEX_URL adds another).
# A layer of its own, so that a change of our code does not fetch gigabytes again.
ARG TORCH_VERSION=
ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=
RUN python3 -m venv /opt/headroom \
 && /opt/headroom/bin/pip install --no-cache-dir "torch${TORCH_VERSION:+==${TORCH_VERSION}}" torchvision
ENV PATH=/opt/headroom/bin:$PATH

# More than serve: onnx, openvino, int8, diffusion, tensorrt
ARG EXTRAS=serve
COPY . /src
RUN pip install --no-cache-dir "/src[${EXTRAS}]"

RUN useradd --create-home --uid 10001 headroom && install -d -o headroom /var/cache/headroom
USER headroom
WORKDIR /home/headroom
# what this image serves is reached through the ports that are published, so it listens on every interface
ENV HEADROOM_CACHE=/var/cache/headroom HEADROOM_SERVE_HOST=0.0.0.0

# What is compiled here need not be at the first start, such as WARM="custom_cnn --threads 4"; on a GPU that is only possible
# where the build has one, so there a volume at /var/cache/headroom keeps what the first start compiled.
ARG WARM=
RUN if [ -n "${WARM}" ]; then \
      headroom serve ${WARM} > /tmp/warm 2>&1 & \
      while ! grep -q '^ready:' /tmp/warm; do kill -0 $! && sleep 1 || { cat /tmp/warm; exit 1; }; done; \
      kill $! && wait $! && rm /tmp/warm; \
    fi

EXPOSE 8000
# compiling may take many minutes at the first start
HEALTHCHECK --start-period=30m --interval=10s --timeout=5s --retries=3 \
  CMD ["python", "-m", "serve.health"]
ENTRYPOINT ["tini", "--", "headroom"]
CMD ["serve", "custom_cnn"]
