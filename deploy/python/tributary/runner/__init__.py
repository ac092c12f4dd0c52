# The runner's names for programs.
"""A small model runner in NumPy whose cache can be a decode tier: for tests and demonstrations.

It needs `pip install --no-deps -r deploy/python/runner.txt` beside the package.
"""

from .generate import Prefilled, TierDecoder, generate_alone
from .llama import Llama, LocalCache, smollm2_path
from .tokenizer import make_tokenizer

__all__ = ["Llama", "LocalCache", "Prefilled", "TierDecoder", "generate_alone", "make_tokenizer",
           "smollm2_path"]
