# The connector that vLLM makes twice: beside its scheduler, and in its worker.
import dataclasses

import tributary

from .admissions import Admissions, HandOff, hash_of
from .interface import (KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole,
                        KVConnectorWorkerMetadata, RequestStatus, check_interface)
from .names import BlockNames
from .options import Options, check, log
from .worker import Worker


@dataclasses.dataclass(frozen=True)
class Scheduled:
    """A request of a step, as its worker needs it."""

    first_block: int   # names it to vLLM where its rows are lost
    newest_block: int  # names it in the attention's metadata
    last: int          # tokens that it may have in the end, without the last, which has no row
    hands_over: bool   # another engine decodes it


@dataclasses.dataclass
class StepMetadata(KVConnectorMetadata):
    requests: dict = dataclasses.field(default_factory=dict)   # request -> Scheduled
    sequences: dict = dataclasses.field(default_factory=dict)  # request -> its new sequence
    claimed: list = dataclasses.field(default_factory=list)    # requests whose rows are all there
    present: dict = dataclasses.field(default_factory=dict)    # request -> how many are, of others
    dropped: list = dataclasses.field(default_factory=list)    # preempted requests


@dataclasses.dataclass
class WorkerMetadata(KVConnectorWorkerMetadata):
    sequences: dict  # request -> the sequence that the worker has admitted for it

    def aggregate(self, other):
        return WorkerMetadata(self.sequences | other.sequences)


def hands_over(request):
    """Whether another engine is going to decode it. The words are those of vLLM's routers."""
    return bool((request.kv_transfer_params or {}).get("do_remote_decode"))


def handed_over(request):
    """What the engine which computed its prompt has answered with."""
    given = request.kv_transfer_params or {}
    if not given.get("do_remote_prefill") or "tributary_sequence" not in given:
        return None
    return HandOff(given["tributary_sequence"], given.get("tributary_prompt"),
                   request.all_token_ids)


class TributaryConnector(KVConnectorBase_V1):
    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        from .backend import TributaryBackend, TributaryImpl, TributaryMetadataBuilder
        check_interface(TributaryConnector, TributaryBackend, TributaryMetadataBuilder, TributaryImpl)
        check(vllm_config)
        self._options = Options.of(vllm_config)
        self._client = self._options.client()
        self._block_size = vllm_config.cache_config.block_size
        if role == KVConnectorRole.SCHEDULER:
            if vllm_config.cache_config.enable_prefix_caching:
                log.info("vLLM's own prefix cache is off: the tier has one")
                vllm_config.cache_config.enable_prefix_caching = False
            self._names = BlockNames(vllm_config, kv_cache_config.hash_block_size)
            self._admissions = Admissions(self._client, self._options)
            self._requests = {}   # id -> vLLM's
            self._blocks = {}     # id -> its blocks
            self._sequences = {}  # id -> its sequence, or None where it has none
            self._unsent = {}     # id -> what the worker does not know yet
            self._present = {}    # id -> tokens whose rows were there when it was admitted
        else:
            self.worker = Worker(self._client, self._options, vllm_config)

    @property
    def requires_kv_delivery(self):
        return False

    # The scheduler calls these.

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        """(None, False) until the tier has room: the scheduler asks again."""
        name = request.request_id
        self._requests[name] = request
        # Of these vLLM does not wait for the answer: they are admitted when they decode.
        if request.skip_reading_prefix_cache:
            self._sequences.setdefault(name, None)
        if name not in self._sequences:
            # All but the last token come as a prompt: that one may come alone, as a decode, and
            # nobody would push its row.
            prompt_tokens = request.num_tokens - 1
            new_tokens = max(1, min(self._options.reserve_tokens,
                                    self._last(request) - prompt_tokens))
            if not self._admissions.ask(name, prompt_tokens, new_tokens,
                                        self._names.of(request, prompt_tokens),
                                        handed_over(request)):
                return None, False
            sequence, claimed = self._admissions.take(name)
            self._sequences[name] = sequence
            self._present[name] = 0
            if sequence is not None:
                self._unsent[name] = sequence.to_json()
                self._present[name] = prompt_tokens if claimed else sequence.present_tokens
        return self._present.get(name, 0), False

    def _last(self, request):
        longest = self._vllm_config.model_config.max_model_len
        if hands_over(request):
            return longest - 1
        return min(request.num_prompt_tokens + request.max_tokens, longest) - 1

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        pass

    def build_connector_meta(self, scheduler_output):
        metadata = StepMetadata()
        for name in scheduler_output.preempted_req_ids or ():
            log.info("request %s is preempted", name)
            self._drop(name, self._requests[name])
            metadata.dropped.append(name)
        for new in scheduler_output.scheduled_new_reqs:
            self._blocks[new.req_id] = list(new.block_ids[0])
            self._begin(metadata, new.req_id, new.num_computed_tokens)
            self._schedule(metadata, new.req_id, new.num_computed_tokens, scheduler_output)
        cached = scheduler_output.scheduled_cached_reqs
        for i, name in enumerate(cached.req_ids):
            if name in cached.resumed_req_ids:
                self._blocks[name] = []
                self._begin(metadata, name, cached.num_computed_tokens[i])
            if cached.new_block_ids[i]:
                self._blocks[name] += cached.new_block_ids[i][0]
            self._schedule(metadata, name, cached.num_computed_tokens[i], scheduler_output)
        if not scheduler_output.total_num_scheduled_tokens:
            self._admissions.wait_briefly()
        return metadata

    def _begin(self, metadata, name, computed):
        """Of a request that was not running: `computed` of its tokens are not computed here."""
        self._present.pop(name, None)
        if not computed:
            return
        if computed == self._requests[name].num_tokens - 1:
            metadata.claimed.append(name)
        else:
            metadata.present[name] = computed

    def _schedule(self, metadata, name, computed, scheduler_output):
        blocks = self._blocks[name]
        end = computed + scheduler_output.num_scheduled_tokens[name]
        request = self._requests[name]
        metadata.requests[name] = Scheduled(blocks[0], blocks[(end - 1) // self._block_size],
                                            self._last(request), hands_over(request))
        if name in self._unsent:
            metadata.sequences[name] = self._unsent.pop(name)

    def update_connector_output(self, connector_output):
        metadata = connector_output.kv_connector_worker_meta
        for name, text in (metadata.sequences if metadata else {}).items():
            sequence = self._client.adopt(tributary.Sequence.from_json(text), trusted=True)
            if name in self._requests:
                self._sequences[name] = sequence  # the worker has freed the one before
            else:
                self._admissions.free(sequence)

    def request_finished(self, request, block_ids):
        name = request.request_id
        answer = None
        if hands_over(request) and request.status == RequestStatus.FINISHED_LENGTH_CAPPED:
            answer = self._hand_over(request)
        # Of one that was aborted a step may be under way.
        ended = request.status in (RequestStatus.FINISHED_STOPPED,
                                   RequestStatus.FINISHED_LENGTH_CAPPED)
        self._drop(name, request if ended else None)
        self._requests.pop(name, None)
        self._blocks.pop(name, None)
        return False, answer

    def _hand_over(self, request):
        """The lease is that of the engine that gets the answer, and claims the sequence in time."""
        sequence = self._sequences.pop(request.request_id, None)
        if sequence is None:
            return None
        text = sequence.to_json()
        self._client.release(sequence)
        return {"do_remote_prefill": True, "do_remote_decode": False, "tributary_sequence": text,
                "tributary_prompt": hash_of(request.all_token_ids[:sequence.prompt_tokens]),
                "remote_engine_id": self._vllm_config.kv_transfer_config.engine_id}

    def _drop(self, name, request=None):
        """request: of which all rows but the last token's are there."""
        self._admissions.give_up(name)
        self._unsent.pop(name, None)
        self._present.pop(name, None)
        sequence = self._sequences.pop(name, None)
        if sequence is not None:
            self._admissions.free(
                sequence, request and self._names.of(request, request.num_tokens - 1))

    def shutdown(self):
        if self.role == KVConnectorRole.SCHEDULER:
            for sequence in filter(None, self._sequences.values()):
                self._admissions.free(sequence)
            self._sequences.clear()
            self._admissions.close()
        else:
            self.worker.close()

    # The worker calls these.

    def register_kv_caches(self, kv_caches):
        self.worker.start()

    def bind_connector_metadata(self, connector_metadata):
        super().bind_connector_metadata(connector_metadata)
        self.worker.begin(connector_metadata)

    def start_load_kv(self, forward_context, **kwargs):
        pass

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self):
        self.worker.end()

    def get_finished(self, finished_req_ids):
        for name in finished_req_ids:
            self.worker.drop(name)
        return None, None

    def get_block_ids_with_load_errors(self):
        return self.worker.take_lost()

    def build_connector_worker_meta(self):
        sequences = self.worker.take_admitted()
        return WorkerMetadata(sequences) if sequences else None
