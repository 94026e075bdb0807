# specchat serve in a container.
#
# CPU:   docker build -t specchat .
# CUDA:  docker build -t specchat:cuda --build-arg TORCH=cu128 .
#
# docker run -p 8000:8000 -v specchat:/data -e SPECCHAT_API_KEY=... specchat
# docker run --gpus all -p 8000:8000 -v specchat:/data -e SPECCHAT_API_KEY=... specchat:cuda
#
# Models and settings are in /data. `docker stop -t 35` gives running replies the time of --drain.

FROM python:3.12-slim-bookworm AS build
# cpu, or a CUDA release that PyTorch has an index of
ARG TORCH=cpu
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/specchat
ENV PATH=/opt/specchat/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
COPY constraints.txt ./
RUN pip install -c constraints.txt torch --index-url "https://download.pytorch.org/whl/${TORCH}"
COPY . .
RUN pip install -c constraints.txt .

FROM python:3.12-slim-bookworm
# PyTorch's compiler, which a GPU uses, needs a C compiler.
ARG TORCH=cpu
# hadolint ignore=DL3008
RUN if [ "$TORCH" != cpu ]; then \
        apt-get update \
        && apt-get install -y --no-install-recommends gcc libc6-dev \
        && rm -rf /var/lib/apt/lists/*; \
    fi \
    && useradd --create-home --uid 1000 specchat \
    && install -d -o specchat -g specchat /data
COPY --from=build /opt/specchat /opt/specchat
ENV PATH=/opt/specchat/bin:$PATH SPECCHAT_HOME=/data PYTHONUNBUFFERED=1
USER 1000
VOLUME /data
EXPOSE 8000
HEALTHCHECK --start-period=10m --interval=30s --timeout=5s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["specchat"]
# Other machines are let in, so a key is required: SPECCHAT_API_KEY.
CMD ["serve", "--host", "0.0.0.0"]
