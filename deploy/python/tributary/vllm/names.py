# The names of a request's blocks: the hashes of vLLM's prefix cache, as they are.
import hashlib
import math

import tributary

PAGE_TOKENS = 64
MOST_KEYS = 4096  # of a prefix


class BlockNames:
    """vLLM hashes a request's tokens in blocks, each hash for all tokens up to its block's end, from
    a root that is equal in all engines (sha256) or in those of one seed (PYTHONHASHSEED); a request's
    `cache_salt` is part of it. The tier's blocks are the smallest that end where both vLLM's blocks and
    the tier's pages do. What the rows depend on beside the tokens is the model: it is the salt."""

    def __init__(self, config, hash_tokens):
        self.block_tokens = math.lcm(PAGE_TOKENS, hash_tokens)
        self._hashes = self.block_tokens // hash_tokens  # of a block of the tier
        model = config.model_config
        words = [model.model, model.revision, model.dtype, model.quantization]
        self._salt = hashlib.sha256("\0".join(map(str, words)).encode()).digest()

    def of(self, request, tokens):
        """The Prefix of its first `tokens` tokens; None where they fill no block."""
        blocks = min(tokens // self.block_tokens, MOST_KEYS)
        keys = request.block_hashes[self._hashes - 1:blocks * self._hashes:self._hashes]
        if not keys:
            return None
        return tributary.Prefix(self.block_tokens, [bytes(key) for key in keys],
                                cache_salt=self._salt)
