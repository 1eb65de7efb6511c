# Builds the wheel, installs it with the locked dependencies, and keeps only what runs.
# tests/unit/test_container.py runs these steps without Docker.

FROM rust:1.95-slim-trixie AS wheel
RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements/build.txt requirements/
RUN python3 -m venv /build && /build/bin/pip install --no-cache-dir --require-hashes --requirement requirements/build.txt
COPY Cargo.toml Cargo.lock pyproject.toml LICENSE README.md ./
COPY rust rust
COPY loadtest/rig loadtest/rig
COPY proxy proxy
RUN /build/bin/maturin build --release --locked --compatibility off --out /wheels

FROM python:3.13-slim-trixie AS environment
COPY requirements/runtime.txt /requirements/
RUN python -m venv --without-pip /opt/foreword \
    && pip --python /opt/foreword/bin/python install --no-cache-dir --require-hashes --requirement /requirements/runtime.txt
COPY --from=wheel /wheels /wheels
RUN pip --python /opt/foreword/bin/python install --no-cache-dir --no-deps --no-index /wheels/*.whl

FROM python:3.13-slim-trixie
COPY --from=environment /opt/foreword /opt/foreword
ENV PATH=/opt/foreword/bin:$PATH PYTHONDONTWRITEBYTECODE=1 FOREWORD_HOST=0.0.0.0
USER 10001:10001
EXPOSE 8400
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import http.client as h, os, sys; c = h.HTTPConnection('127.0.0.1', int(os.environ.get('FOREWORD_PORT') or 8400), timeout=2); c.request('GET', '/health/live'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["foreword"]
CMD ["serve"]
