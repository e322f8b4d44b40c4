# How to build it, behind a proxy or with a registry of one's own too: docs/build-the-image.md
# Both bases need the same Python at the same path; the first one also pip, venv, and `strip` (binutils) for a smaller result.
ARG BUILD_BASE=python:3.11-bookworm
ARG BASE=python:3.11-slim-bookworm
# The package's version: the build fails where it is another one, so that the label says what is inside.
ARG VERSION=0.2.1
# requirements-transformer.lock: with the embedding providers `local` and `onnx` too.
ARG LOCK=requirements.lock

FROM ${BASE} AS base

FROM ${BUILD_BASE} AS build
# pip's settings come as the secret pip.conf; secrets are files while one step runs, and in no layer.
ENV PIP_CONFIG_FILE=/run/secrets/pip.conf \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_QUIET=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
ARG LOCK
COPY .ci/image/build.lock ${LOCK} ./
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.pem \
    python3 -m venv /build \
    && /build/bin/python -m pip install --no-compile --require-hashes --only-binary :all: -r build.lock \
    && python3 -m venv --without-pip /opt/reposync \
    && /build/bin/python -m pip --python /opt/reposync/bin/python install --no-compile --require-hashes \
        --only-binary :all: -r "${LOCK}"

COPY . .
ARG VERSION
RUN export PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheel \
    && /build/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheel . \
    && /build/bin/python -m pip --python /opt/reposync/bin/python install --no-compile --no-deps "reposync==${VERSION}" \
    && install -m 0755 .ci/image/health.py /opt/reposync/bin/reposync-health \
    && install -m 0755 /build/bin/dumb-init /opt/reposync/bin/dumb-init \
    && python3 .ci/image/slim.py /opt/reposync reposync reposync-health dumb-init \
    && /opt/reposync/bin/python .ci/image/bytecode.py /build/modules
RUN --mount=type=bind,from=base,source=/,target=/base \
    /build/bin/python .ci/image/sbom.py /opt/reposync/bin/python /base /opt/reposync/sbom.cdx.json

FROM base
ARG VERSION
ARG REVISION=unknown
LABEL org.opencontainers.image.title="reposync" \
      org.opencontainers.image.description="Keeps source code from GitLab searchable in the Qdrant vector database" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/reposync /opt/reposync
RUN --mount=type=bind,from=build,source=/src/.ci/image,target=/run/image \
    --mount=type=bind,from=build,source=/build/modules,target=/run/modules \
    ["python3", "-B", "/run/image/finish.py", "/run/modules", "/var/lib/reposync", "10001"]
# Two heaps, not one for each thread: batches that move between threads fragment them. And no thread of NumPy's for each
# core: it is used for a few vectors.
ENV MALLOC_ARENA_MAX=2 \
    OPENBLAS_NUM_THREADS=1 \
    PATH=/opt/reposync/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/var/lib/reposync \
    REPOSYNC_STATE_DIR=/var/lib/reposync \
    REPOSYNC_HOST=0.0.0.0 \
    ORT_DISABLE_TELEMETRY=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A repositories.yaml that is mounted here is found.
WORKDIR /etc/reposync
EXPOSE 8080
USER 10001:0
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s CMD ["reposync-health"]
# dumb-init passes signals on, to the program alone (its workers are its own affair), and buries orphans, such as an
# embedded engine that was started by a command typed in the container.
ENTRYPOINT ["dumb-init", "--single-child", "--", "reposync"]
CMD ["serve"]
