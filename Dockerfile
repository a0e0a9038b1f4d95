# One image for operator and API. Nothing runs in it as root, nothing in it is written to.
ARG BASE=python:3.11.14-slim-bookworm

FROM ${BASE} AS build
# Empty, or `fastembed`: models inside the API's process (docs/embeddings.md).
ARG EXTRA
# Where the embedding model is read from: empty is Maven Central, else a mirror's URL, image/NAME.jar, or `none`.
ARG MODEL_URL
ENV PIP_NO_CACHE_DIR=1
WORKDIR /source
COPY . .
RUN ["image/install.sh", "/opt/agentmemory"]

FROM ${BASE}
ARG BASE
LABEL org.opencontainers.image.title="agentmemory-operator" \
      org.opencontainers.image.description="Operator and retrieval API for the long-term memory of agents in Qdrant" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE}"
COPY --from=build /opt/agentmemory /opt/agentmemory
ENV PATH=/opt/agentmemory/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["agentmemory"]
