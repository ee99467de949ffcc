# Device samples and the clock of one host, beside whatever serves models there: no torch, no Ray.
#
#   docker build -f docker/agent.Dockerfile -t tailrate-agent:0.1.0 .
#   docker run --rm --gpus all --network host -e TAILRATE_TOKEN tailrate-agent:0.1.0
#
# With the host's network it has the host's name and its traffic. `--secret id=pip_conf,src=FILE` is a pip.conf with indexes
# of your own, of which nothing stays in the image.
ARG PYTHON_VERSION=3.12

FROM python:${PYTHON_VERSION}-slim-bookworm AS build
COPY pyproject.toml docker/dependencies.py docker/constraints/common.txt /src/
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    python -m venv /opt/tailrate \
 && python /src/dependencies.py /src/pyproject.toml agent > /src/dependencies.txt \
 && /opt/tailrate/bin/pip install --no-cache-dir --no-compile -c /src/common.txt -r /src/dependencies.txt
COPY . /src
RUN /opt/tailrate/bin/pip install --no-compile --no-deps --no-build-isolation /src

FROM python:${PYTHON_VERSION}-slim-bookworm
COPY --from=build /opt/tailrate /opt/tailrate
# NVIDIA's runtime brings the driver's library to a container that asks for its tools
ENV PATH=/opt/tailrate/bin:$PATH TAILRATE_AGENT_HOST=0.0.0.0 NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=utility
RUN useradd --no-create-home --home-dir / --uid 10001 tailrate
USER tailrate
EXPOSE 9410
ENTRYPOINT ["tailrate", "agent"]
