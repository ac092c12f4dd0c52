# The cache that a program hands to generate(): no rows in this process, all of them in the tier.
"""`TributaryCache`: what transformers asks of a cache, and one forward pass after the other."""

from __future__ import annotations

import contextlib
import math
import threading

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from ..errors import FailedPrecondition, InvalidArgument
from .heads import heads_of, model_of
from .passes import STEP_TOKENS, PromptPass, StepPass, free, pull, real_tokens, visible

# A layer's update() comes just before its attention function, in the same thread.
_handed_over = threading.local()


def take_update(module):
    """(cache, rows [B, T, C + R]) of the update that this attention module has just made."""
    update, _handed_over.update = getattr(_handed_over, "update", None), None
    if update is None or update[1] != module.layer_idx:
        raise FailedPrecondition(
            'attn_implementation="tributary" without its cache: give the model '
            "past_key_values=tributary.transformers.TributaryCache(client, model.config, ...)")
    return update[0], update[2]


def _fork(sequence):
    """Another one of the same rows and the same room."""
    room = sequence.prompt_tokens + sequence.max_new_tokens - sequence.length
    return sequence.fork(max_new_tokens=max(room, 1))


class _Layer(CacheLayerMixin):
    """One layer: hands its new rows to the attention function, and keeps none."""

    is_sliding = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, cache: TributaryCache, layer: int):
        super().__init__()
        self._cache, self._layer = cache, layer
        self._indexer_keys = None
        self.is_initialized = True  # there is nothing to allocate

    def lazy_initialization(self, key_states, value_states):
        pass

    def update(self, key_states, value_states, *arguments, **options):
        """Returns what the model attends to by itself: all of a prompt or of what follows on one. Of
        a step it returns what it is given, the new tokens' alone."""
        before = getattr(_handed_over, "update", None)
        if before is not None and before[0] is self._cache:
            _handed_over.update = None
            raise FailedPrecondition(
                f"the attention of layer {before[1]} was not the tier's: load the model with "
                'attn_implementation="tributary"')
        rows = self._cache.heads.rows(key_states, value_states)
        if self._cache.length and self._cache.is_prompt(rows.shape[1]):
            past = self._cache.heads.states(self._cache.pull(self._layer, rows))
            key_states, value_states = (torch.cat([old.to(new), new], dim=2) for old, new in
                                        zip(past, (key_states, value_states)))
        _handed_over.update = self._cache, self._layer, rows
        return key_states, value_states

    def select(self, indices):
        """The batch's sequences `indices`, in their order."""
        if self._indexer_keys is not None:
            self._indexer_keys = self._indexer_keys[indices.to(self._indexer_keys.device)]

    def update_indexer(self, keys):
        """Adds the new tokens' keys [B, T, D] of the model's indexer, which selects rows in this
        process; returns those of all tokens. Of a pass that was given up none remain."""
        past = [self._indexer_keys[:, :self._cache.length]] if self._cache.length else []
        self._indexer_keys = torch.cat([*past, keys], dim=1)
        return self._indexer_keys

    def get_seq_length(self):
        return self._cache.length

    def get_max_length(self):
        return -1

    def get_mask_sizes(self, query_length):
        return self._cache.length + query_length, 0


class TributaryCache(Cache):
    """The rows of a batch of prompts in a decode tier.

        with TributaryCache(client, model.config, max_new_tokens=64) as cache:
            model.generate(**inputs, past_key_values=cache, max_new_tokens=64)

    The first forward pass brings the prompts: the model attends to them itself, and their rows go
    to the tier. A later one of at most 16 tokens is a decode step. One of more, the next turn of a
    conversation, is like a prompt: the model gets the rows back that there are, the tier keeps
    them, and only the new ones are sent. Padding stays here. A pass that fails leaves the sequences
    as they were before it. The sequences are freed by close(), at the end of the block, or by
    reset(); else the tier keeps them for as long as `client` lives.

    Greedy decoding, sampling, beam search and assisted generation. Errors are tributary.Error and
    below, as those of the calls underneath.
    """

    def __init__(self, client, config, max_new_tokens: int, **options):
        """config: the model's. max_new_tokens: room of each sequence besides its prompt; a later
        pass of more than 16 tokens makes as much room behind them. options: of Client.admit(),
        `wait` and `spread`. Raises Unsupported for a model that a tier does not serve."""
        if max_new_tokens < 0:
            raise InvalidArgument(f"max_new_tokens {max_new_tokens}: expected 0 or more")
        config = config.get_text_config(decoder=True)
        self._model = model_of(config)
        self.heads = heads_of(config, self._model)
        super().__init__(layers=[_Layer(self, i) for i in range(self._model.layers)])
        self._client, self._room, self._options = client, max_new_tokens, options
        self._norm_eps = None  # of a model whose steps the pool's weights compute
        self._sequences, self._pass = [], None
        self.reset()

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.close()

    @property
    def sequences(self) -> list:
        """The tributary.Sequence of each prompt; none before the first forward pass."""
        return list(self._sequences)

    @property
    def length(self) -> int:
        """Tokens of each prompt so far, with padding."""
        return self._real.shape[1]

    def close(self) -> None:
        """Frees the sequences; the cache can be used again, from an empty one."""
        self._give_up()
        free(self._sequences)
        self._sequences = []
        self._real = torch.empty(0, 0, dtype=torch.bool)

    def reset(self) -> None:
        self.close()

    def crop(self, tokens_to_remove: int) -> None:
        """Drops the last `-tokens_to_remove` tokens, what assisted generation did not accept."""
        if tokens_to_remove > 0:
            raise InvalidArgument(f"crop({tokens_to_remove}): expected 0 or less, tokens to drop")
        if tokens_to_remove == 0:
            return
        self._give_up()
        real = self._real[:, :tokens_to_remove]
        if not real.shape[1]:
            return self.close()
        for sequence, length in zip(self._sequences, real.sum(1).tolist()):
            if length < sequence.length:
                sequence.truncate(length)
        self._real = real

    def reorder_cache(self, beam_idx):
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats):
        self.batch_select_indices(torch.arange(len(self._real)).repeat_interleave(repeats))

    def batch_select_indices(self, indices):
        """Who is taken more than once is forked, who is not taken is freed."""
        self._give_up()
        chosen, forks = [], []
        left = dict(enumerate(self._sequences))
        try:
            for index in indices.tolist() if self._sequences else ():
                sequence = left.pop(index, None)
                if sequence is None:
                    sequence = _fork(self._sequences[index])
                    forks.append(sequence)
                chosen.append(sequence)
        except BaseException:
            free(forks)
            raise
        free(left.values())
        self._sequences, self._real = chosen, self._real[indices.cpu()]
        for layer in self.layers:
            layer.select(indices)

    # The attention function's side.

    def is_prompt(self, tokens: int) -> bool:
        """Whether the model attends to a pass of as many tokens by itself."""
        return not self.length or tokens > STEP_TOKENS

    def pull(self, layer: int, like: torch.Tensor) -> torch.Tensor:
        """The rows of a layer that there are, [B, L, C + R]; zeros stand for padding."""
        if not any(sequence.length for sequence in self._sequences):
            return like.new_zeros(*self._real.shape, like.shape[-1])
        return pull(self._client, self._sequences, self._real, layer, like)

    def selected(self, indices: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """What the new tokens select, [B, T, K] of all tokens so far with padding, as positions of
        their sequences; -1 for what the mask hides."""
        real = torch.cat([self._real, self._pass.real], dim=1)
        positions = torch.where(real, real.cumsum(1) - 1, -1)[:, None].expand(-1, indices.shape[1], -1)
        indices = indices.cpu().long()
        seen = visible(mask, real.shape[1]).expand(len(real), -1, -1)
        return torch.where(seen.gather(2, indices), positions.gather(2, indices), -1).int()

    @contextlib.contextmanager
    def layer_of_pass(self, layer: int, batch: int, tokens: int, mask: torch.Tensor | None):
        """The block of one layer of a forward pass of [B, T] tokens: gives the pass, which begins
        with the first layer, ends with the last, and is given up where a block raises."""
        try:
            if layer == 0:
                self._begin(batch, tokens, mask)
            elif self._pass is None:
                raise FailedPrecondition(f"layer {layer} of a forward pass that has been given up")
            yield self._pass
            if layer == len(self.layers) - 1:
                self._end()
        except BaseException:
            self._give_up()
            raise

    def _begin(self, batch, tokens, mask):
        self._give_up()  # what an exception of the model left
        past = self._real if self.length else torch.empty(batch, 0, dtype=torch.bool)
        if len(past) != batch:
            raise InvalidArgument(f"a batch of {batch}: the cache holds {len(past)} sequences")
        real = real_tokens(mask, past, tokens)
        if self.is_prompt(tokens):
            self._pass = PromptPass(self._client, real, self._sequences, self._room, self._check,
                                    **self._options)
        else:
            self._pass = StepPass(self._client, self._sequences, real)

    def use_pool_weights(self, norm_eps: float):
        """Before the first pass: from now on the pool's norms stand for the model's."""
        self._norm_eps = norm_eps

    def _check(self, shape):
        """Raises ValueError where a pool of `shape` is not of this model."""
        self._model.check(shape)
        if self._norm_eps is not None and not math.isclose(
                shape.latent_norm_eps, self._norm_eps, rel_tol=1e-6):
            raise ValueError(
                f"the pool's latent_norm_eps is {shape.latent_norm_eps:.3g}, the model's "
                f"{self._norm_eps:.3g}: tributary up --latent-norm-eps {self._norm_eps:.3g}")

    def _end(self):
        self._pass.end()
        if isinstance(self._pass, PromptPass):
            free(self._sequences)
            self._sequences = self._pass.sequences
        real = self._pass.real
        self._real = torch.cat([self._real, real], dim=1) if self.length else real
        self._pass = None

    def _give_up(self):
        running, self._pass = self._pass, None
        if running:
            running.give_up()
