# The worker's half: which sequence holds which request's rows, across steps.
import atexit
import concurrent.futures

import torch

import tributary

from .batch import Batch
from .held import Held
from .options import check_pool, log
from .pulls import Pulls

RETRY_S = 0.1
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Worker:
    def __init__(self, client, options, config):
        self.client = client
        self.options = options
        self._config = config
        self.layers = {}      # name of a layer -> its number
        self._held = {}       # request -> Held
        self._owner = {}      # newest block -> request, of this step
        self._scheduled = {}  # request -> Scheduled, of this step
        self._lost = set()    # requests whose rows are nowhere
        self._admitted = {}   # request -> sequence that the scheduler has not heard of
        self._unfinished = []  # what close() waits for: frees, and pushes of what was handed over
        self.batch = None
        self._pulls = None    # of this step, where rows come from the tier
        # Prompts are pushed while the next layer is computed, and rows come back before it is; a lost
        # sequence's successor is found in a thread of its own, which may wait long.
        self.pulling = concurrent.futures.ThreadPoolExecutor(1, "tributary-pull")
        self.pushing = concurrent.futures.ThreadPoolExecutor(2, "tributary-push")
        self._settling = concurrent.futures.ThreadPoolExecutor(1, "tributary-settle")
        atexit.register(self.close)

    def start(self):
        """The model is loaded: its layers are known, and whether the pool is one for it."""
        from .backend import TributaryImpl, lay_out_weights
        context = self._config.compilation_config.static_forward_context
        attention = {name: layer for name, layer in context.items() if hasattr(layer, "impl")}
        if other := [name for name, layer in attention.items()
                     if not isinstance(layer.impl, TributaryImpl)]:
            raise ValueError(f"{other[0]} has a backend of vLLM's own: "
                             "attention_backend=\"CPU_MLA\"")
        self.layers = {name: number for number, name in enumerate(
            sorted(attention, key=lambda name: [int(part) for part in name.split(".")
                                                if part.isdigit()]))}
        for layer in attention.values():
            lay_out_weights(layer)
        impl = next(iter(attention.values())).impl
        self.kv_lora_rank = impl.kv_lora_rank
        self._model = dict(heads=impl.num_heads, kv_lora_rank=impl.kv_lora_rank,
                           qk_rope_head_dim=impl.qk_rope_head_dim, layers=len(attention),
                           softmax_scale=impl.scale)
        try:
            probe = self.client.admit(1, 0, wait=self.options.start_timeout)
        except tributary.PoolFull:
            return  # each sequence's pool is checked when it comes
        with probe:
            check_pool(probe.shape, **self._model)

    # The life of requests.

    def begin(self, metadata):
        self.batch = None
        for name in metadata.dropped:
            self.drop(name)
        self._scheduled = metadata.requests
        self._owner = {one.newest_block: name for name, one in metadata.requests.items()}
        for name, one in metadata.requests.items():
            if name not in self._held:
                self._held[name] = Held(len(self.layers), one.last, one.hands_over)
        for name, text in metadata.sequences.items():
            held = self._held[name]
            held.sequence = self.client.adopt(tributary.Sequence.from_json(text), trusted=True)
            if name in metadata.claimed:
                held.forget_rows()
                held.ready = True
            try:
                check_pool(held.sequence.shape, **self._model)
            except ValueError as error:
                if not held.ready:
                    raise
                self.lose(name, held, error)  # of a request, which must not end the engine
        present = {name: count for name, count in metadata.present.items()
                   if self._held[name].sequence is not None}
        self._pulls = Pulls(self, present) if present else None

    def drop(self, name):
        """The scheduler frees what it knows of, or has handed it over."""
        held = self._held.pop(name, None)
        if held is None:
            return
        held.over.set()
        if held.hands_over and held.sequence is not None:
            # A copy: a push of it may still be under way.
            self.client.release(tributary.Sequence.from_json(held.sequence.to_json()))
            self._finish(push for push, _ in held.pushes)
        if held.settled is not None:
            self.free([held.settled])
        if (sequence := self._admitted.pop(name, None)) is not None:
            self.free([sequence])

    def held(self, name):
        return self._held[name]

    def of_blocks(self, blocks):
        """(request, Held) by their newest blocks."""
        names = [self._owner[block] for block in blocks]
        return [(name, self._held[name]) for name in names]

    def rows_come(self, layer, like):
        """Before the step's own rows of a layer, `like` those: what the tier has is put in."""
        if self._pulls is not None:
            self._pulls.take(layer, like)

    def lose(self, name, held, error, here=True):
        """Its sequence is of no use any more. here: whether the rows are that `held` should have."""
        log.warning("request %s has lost %s: %s", name, held.sequence, error)
        self.free([held.sequence])
        held.sequence, held.ready, held.pushes = None, False, []
        if not (held.here and here):
            self._lost.add(name)

    def take_lost(self):
        lost = {self._scheduled[name].first_block for name in self._lost}
        self._lost.clear()
        return lost

    def take_admitted(self):
        admitted, self._admitted = self._admitted, {}
        return {name: sequence.to_json() for name, sequence in admitted.items()}

    def free(self, sequences):
        self._finish([self.pushing.submit(self._free, sequences)])

    def _finish(self, futures):
        self._unfinished = [one for one in self._unfinished if not one.done()]
        self._unfinished += futures

    def _free(self, sequences):
        # Copies: a push of one may still be under way, and a call has a sequence alone.
        copies = [self.client.adopt(tributary.Sequence.from_json(s.to_json()), trusted=True)
                  for s in sequences]
        try:
            self.client.free(copies, timeout=5.0)
        except tributary.Error as error:
            log.warning("%s end with their leases: %s", sequences, error)

    def end(self):
        if self.batch is not None:
            self.batch.commit()
        self.batch = None

    def close(self):
        atexit.unregister(self.close)
        for held in self._held.values():
            held.over.set()
            if held.hands_over:
                self._finish(push for push, _ in held.pushes)
        self._settling.shutdown(cancel_futures=True)
        self.pulling.shutdown(cancel_futures=True)
        concurrent.futures.wait(self._unfinished, timeout=self.options.timeout)
        self.pushing.shutdown(cancel_futures=True)
        admitted = [h.sequence for h in self._held.values()
                    if h.sequence is not None and not h.hands_over]
        admitted += [h.settled for h in self._held.values() if h.settled is not None]
        self._held.clear()
        if admitted:
            self._free(admitted)

    # A sequence for rows that are here.

    def settle(self, name, held):
        if not held.settling:
            held.settling = True
            self._settling.submit(self._settle, name, held)

    def _settle(self, name, held):
        sequence = None
        try:
            sequence = self._find_room(name, held)
            if sequence is None:
                return  # over, or never: `settling` stays
            n = sequence.prompt_tokens
            kind = self.types(sequence.shape)[1]
            for layer in range(len(self.layers)):
                if n:
                    sequence.push(layer, 0, held.snapshot(layer, 0, n).to("cpu", kind))
            sequence.wait_ready()
        except Exception as error:
            log.warning("request %s: %s", name, error)
            if sequence is not None:
                self._free([sequence])
            held.settling = False  # the next step asks again
            return
        held.settled = sequence
        held.settling = False
        if held.over.is_set():
            held.settled = None
            self._free([sequence])

    def _find_room(self, name, held):
        while not held.over.is_set():
            n = held.complete()
            new_tokens = max(1, min(self.options.reserve_tokens, held.last - n))
            try:
                return self.client.admit(n, new_tokens, spread=self.options.spread,
                                         timeout=min(2.0, self.options.timeout))
            except tributary.TooLarge as error:
                log.warning("request %s stays in the engine: %s", name, error)
                return None
            except tributary.PoolFull as error:
                held.over.wait(min(error.retry_after, RETRY_S))
            except tributary.Error:
                held.over.wait(RETRY_S)
        return None

    def move_in(self, name, held):
        """The sequence that settle() has found, from the next step on."""
        held.sequence, held.settled, held.ready = held.settled, None, True
        self._admitted[name] = held.sequence

    def new_batch(self, metadata):
        self.batch = Batch(self, metadata)
        return self.batch

    def types(self, shape):
        return TYPES[shape.query_dtype], TYPES[shape.row_values]
