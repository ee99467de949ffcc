# Drives load and reads runs: the base install, without torch and Ray.
#
#   docker build -f docker/load.Dockerfile -t headroom-load .
#   docker run --rm -v "$PWD/runs:/headroom/runs" headroom-load headroom run bert --host http://gpu-host:8000
#
# `--secret id=pip_conf,src=FILE` is a pip.conf with indexes of your own, of which nothing stays in the image.
ARG PYTHON_VERSION=3.12

FROM python:${PYTHON_VERSION}-slim-bookworm AS build
COPY pyproject.toml docker/dependencies.py /src/
# the tests of others are a tenth of what they install
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    python -m venv /opt/headroom \
 && python /src/dependencies.py /src/pyproject.toml > /src/dependencies.txt \
 && /opt/headroom/bin/pip install --no-cache-dir --no-compile -r /src/dependencies.txt \
 && find /opt/headroom/lib -type d -name tests -prune -exec rm -rf {} + \
 && rm -rf /opt/headroom/lib/python*/site-packages/pyarrow/include

FROM build AS code
COPY . /src
RUN /opt/headroom/bin/pip install --no-compile --no-deps --no-build-isolation --prefix=/code /src

FROM build AS packages
RUN cd /opt/headroom/lib/python*/site-packages && rm -rf pip setuptools

FROM python:${PYTHON_VERSION}-slim-bookworm
COPY --from=packages /opt/headroom /opt/headroom
COPY --from=code /code /opt/headroom
ENV PATH=/opt/headroom/bin:$PATH
# locustfiles where the README has them
RUN useradd --no-create-home --home-dir /headroom --uid 10001 headroom \
 && install -d -o headroom /headroom /headroom/runs \
 && ln -s "$(python -c 'import loadtest; print(loadtest.__path__[0])')" /headroom/loadtest
USER headroom
WORKDIR /headroom
EXPOSE 8089
CMD ["headroom", "--help"]
