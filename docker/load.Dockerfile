# Drives load and reads runs: the base install, without torch and Ray.
#
#   docker build -f docker/load.Dockerfile -t headroom-load .
#   docker run --rm -v "$PWD/runs:/headroom/runs" headroom-load headroom run bert --host http://gpu-host:8000
ARG PYTHON_VERSION=3.12

FROM python:${PYTHON_VERSION}-slim-bookworm AS build
ARG PIP_INDEX_URL=
COPY . /src
# the tests of others are a tenth of what they install
RUN python -m venv /opt/headroom \
 && /opt/headroom/bin/pip install --no-cache-dir --no-compile /src \
 && find /opt/headroom/lib -type d -name tests -prune -exec rm -rf {} + \
 && cd /opt/headroom/lib/python*/site-packages && rm -rf pip setuptools pyarrow/include

FROM python:${PYTHON_VERSION}-slim-bookworm
COPY --from=build /opt/headroom /opt/headroom
ENV PATH=/opt/headroom/bin:$PATH
# locustfiles where the README has them
RUN useradd --no-create-home --home-dir /headroom --uid 10001 headroom \
 && install -d -o headroom /headroom /headroom/runs \
 && ln -s "$(python -c 'import loadtest; print(loadtest.__path__[0])')" /headroom/loadtest
USER headroom
WORKDIR /headroom
EXPOSE 8089
CMD ["headroom", "--help"]
