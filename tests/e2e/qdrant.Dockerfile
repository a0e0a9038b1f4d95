# The development server in the place of Qdrant's image: `make e2e-node` reaches no registry.
ARG BASE
FROM ${BASE}
WORKDIR /source
COPY requirements/run.txt requirements/backend.txt ./
RUN python3 -m venv /opt/build && /opt/build/bin/pip --quiet install --require-hashes -r backend.txt \
 && python3 -m venv /opt/devserver \
 && /opt/devserver/bin/pip --quiet install --require-hashes --no-deps --only-binary :all: -r run.txt
COPY devserver devserver
RUN /opt/build/bin/pip --quiet wheel --no-deps --no-build-isolation --wheel-dir /wheels ./devserver \
 && /opt/devserver/bin/pip --quiet install --no-deps --no-index /wheels/*.whl
ENV PATH=/opt/devserver/bin:$PATH PYTHONUNBUFFERED=1
USER 1000:2000
WORKDIR /tmp
# It listens on loopback only; probes and other pods use the address of the pod.
ENTRYPOINT ["sh", "-c", "exec python -c 'from qdrant_devserver import __main__, server; server.LOOPBACK = \"0.0.0.0\"; __main__.main()' --data /data --port 6333 --api-key \"$QDRANT__SERVICE__API_KEY\""]
