# One image for operator and API. Nothing runs in it as root, nothing in it is written to.
ARG BASE=python:3.11.14-slim-bookworm

FROM ${BASE} AS build
ENV PIP_NO_CACHE_DIR=1
WORKDIR /source
COPY . .
RUN ["image/install.sh", "/opt/agentmemory"]

FROM ${BASE}
COPY --from=build /opt/agentmemory /opt/agentmemory
ENV PATH=/opt/agentmemory/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["agentmemory"]
