# Models of transformers for the stage `engines`, and tiers that hold their caches.
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import pytest
import torch

import models
import tributary
from models import tier_of

# Two cores, and the tier's workers beside the model.
torch.set_num_threads(1)


@pytest.fixture(scope="session", params=models.DEEPSEEK)
def deepseek(request):
    return models.deepseek(request.param)


@pytest.fixture(scope="session")
def deepseek_tier(deepseek, tmp_path_factory):
    with tier_of(deepseek.config, tmp_path_factory.mktemp("shape")) as tier:
        yield tier


@pytest.fixture
def client(deepseek, deepseek_tier):
    yield tributary.Client(deepseek_tier.url, timeout=60.0)
    deepseek_tier.wait_all_free()  # whatever the test did
