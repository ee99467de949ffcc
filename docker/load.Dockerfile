# Drives load and reads runs: the base install, without torch and Ray.
#
#   docker build -f docker/load.Dockerfile -t tailrate-load .
#   docker run --rm -v "$PWD/runs:/tailrate/runs" tailrate-load tailrate run bert --host http://gpu-host:8000
#
# `--secret id=pip_conf,src=FILE` is a pip.conf with indexes of your own, of which nothing stays in the image.
ARG PYTHON_VERSION=3.12

FROM python:${PYTHON_VERSION}-slim-bookworm AS build
COPY pyproject.toml docker/dependencies.py docker/constraints/common.txt /src/
# the tests of others are a tenth of what they install
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    python -m venv /opt/tailrate \
 && python /src/dependencies.py /src/pyproject.toml > /src/dependencies.txt \
 && /opt/tailrate/bin/pip install --no-cache-dir --no-compile -c /src/common.txt -r /src/dependencies.txt \
 && find /opt/tailrate/lib -type d -name tests -prune -exec rm -rf {} + \
 && rm -rf /opt/tailrate/lib/python*/site-packages/pyarrow/include

FROM build AS code
COPY . /src
RUN /opt/tailrate/bin/pip install --no-compile --no-deps --no-build-isolation --prefix=/code /src

FROM build AS packages
RUN cd /opt/tailrate/lib/python*/site-packages && rm -rf pip setuptools

FROM python:${PYTHON_VERSION}-slim-bookworm
COPY --from=packages /opt/tailrate /opt/tailrate
COPY --from=code /code /opt/tailrate
ENV PATH=/opt/tailrate/bin:$PATH
# locustfiles where the README has them
RUN useradd --no-create-home --home-dir /tailrate --uid 10001 tailrate \
 && install -d -o tailrate /tailrate /tailrate/runs \
 && ln -s "$(python -c 'from tailrate import loadtest; print(loadtest.__path__[0])')" /tailrate/loadtest
USER tailrate
WORKDIR /tailrate
EXPOSE 8089
CMD ["tailrate", "--help"]
