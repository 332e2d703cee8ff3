# syntax=docker/dockerfile:1
# Trains on the CPU: docker build -t sfactory .
# With the default index of pip, whose torch has CUDA: docker build --build-arg TORCH_INDEX= -t sfactory:cuda .
# docs/docker.md says how to run it, and what its flags are for.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim-bookworm

# libegl1 and libgl1 draw MuJoCo's pictures without a screen, on a GPU or in software.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libegl1 libgl1 \
    && rm -rf /var/lib/apt/lists/*

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=atari,plot,video
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# torch is by far the largest layer, and changes least. Of one version, pip takes the one for CPUs (2.13.0+cpu) first.
COPY constraints.txt /build/
RUN pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} --constraint /build/constraints.txt torch

COPY setup.py pyproject.toml MANIFEST.in README.md LICENSE /build/
COPY sfactory /build/sfactory
COPY envs /build/envs
RUN pip install --constraint /build/constraints.txt "/build[${EXTRAS}]" && rm -r /build

# Everything in a GPU's driver that a run may use: computing, nvidia-smi, and drawing through EGL.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics

# With --user there may be no such user in the image: the home is one that anybody may write to.
RUN useradd --create-home --uid 1000 sfactory && mkdir /work && chmod 1777 /work /home/sfactory
ENV HOME=/home/sfactory
USER 1000
WORKDIR /work
ENTRYPOINT ["sfactory"]
CMD ["--help"]
