"""Uploads exported weights with their model card to the Hugging Face Hub, and downloads such weights.

What travels is a safetensors file and text: nothing that could hold code.
"""

from __future__ import annotations

from pathlib import Path

from sfactory.errors import CannotSaveError, CheckpointError, named
from sfactory.system.optional_packages import required

WEIGHTS, CARD = "policy.safetensors", "README.md"
_LOG_IN = "log in with: hf auth login (or set HF_TOKEN), and check the name and the network"


def push_to_hub(repository: str, weights: bytes, card: str) -> str:
    """Upload both as one commit to USER/NAME, which is made if it does not exist; returns its address.

    Raises ConfigError if huggingface_hub is missing, CannotSaveError if it is not done.
    """
    package = required("huggingface_hub", f"--push_to_hub={repository}", "hub")
    contents = {WEIGHTS: weights, CARD: card.encode()}
    operations = [
        package.CommitOperationAdd(path_in_repo=name, path_or_fileobj=data) for name, data in contents.items()
    ]
    api = package.HfApi()
    try:
        repository = api.create_repo(repository, exist_ok=True).repo_id
        api.create_commit(repository, operations, commit_message="Policy exported by sfactory")
    except Exception as error:  # of several libraries
        raise CannotSaveError(f"--push_to_hub={repository} was not uploaded: {named(error)}; {_LOG_IN}") from error
    return f"{api.endpoint}/{repository}"


def load_from_hub(repository: str) -> Path:
    """Download the weights of USER/NAME; returns the file, which lies in the Hub's own cache.

    Raises ConfigError if huggingface_hub is missing, CheckpointError if there are no such weights.
    """
    package = required("huggingface_hub", f"--load_from_hub={repository}", "hub")
    try:
        return Path(package.hf_hub_download(repository, WEIGHTS))
    except Exception as error:  # of several libraries
        raise CheckpointError(
            f"--load_from_hub={repository}: {WEIGHTS} was not downloaded: {named(error)}; if it is private, {_LOG_IN}"
        ) from error
