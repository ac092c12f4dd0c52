# vLLM's attention backend: what it hands to a layer goes to the step of the tier.
from dataclasses import replace

import torch
import torch.nn.functional

from .interface import (CPUMLAImpl, MLACommonBackend, MLACommonImpl, MLACommonMetadata,
                        MLACommonMetadataBuilder, MultipleOf, current_platform,
                        get_current_vllm_config, get_forward_context, get_kv_transfer_group)


class TributaryBackend(MLACommonBackend):
    supported_dtypes = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes = ["auto"]

    @classmethod
    def get_supported_head_sizes(cls):
        return []  # any

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None):
        return [MultipleOf(1)]

    @classmethod
    def supports_block_size(cls, block_size):
        return True

    @staticmethod
    def get_name():
        return "TRIBUTARY_MLA"

    @staticmethod
    def get_impl_cls():
        return TributaryImpl

    @staticmethod
    def get_builder_cls():
        return TributaryMetadataBuilder

    @classmethod
    def customize_spec(cls, spec):
        """vLLM's own cache holds nothing: one element a token."""
        return replace(super().customize_spec(spec), state_content_bytes=spec.dtype.itemsize)


class TributaryMetadataBuilder(MLACommonMetadataBuilder[MLACommonMetadata]):
    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        metadata = super().build(common_prefix_len, common_attn_metadata, fast_build)
        metadata.starts = common_attn_metadata.query_start_loc_cpu.tolist()
        metadata.lengths = common_attn_metadata.seq_lens.tolist()
        slots = common_attn_metadata.slot_mapping.tolist()
        block_size = self.kv_cache_spec.block_size
        metadata.newest_blocks = [slots[end - 1] // block_size
                                  for end in metadata.starts[1:metadata.num_reqs + 1]]
        return metadata


def lay_out_weights(layer):
    """vLLM leaves its absorbed weights as strided views of `kv_b_proj`, for which torch's product of a
    few tokens takes ten times as long on CPUs (bf16, 16 heads: 3.6 ms, 0.34 contiguous)."""
    if not current_platform.is_cpu():
        return
    for name in ("W_UK_T", "W_UV"):
        if (weight := getattr(layer, name, None)) is not None:
            weight.data = weight.data.contiguous()


# On CUDA, where nobody has tried it yet: "CUSTOM".
class TributaryImpl(CPUMLAImpl if current_platform.is_cpu() else MLACommonImpl):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._context = get_current_vllm_config().compilation_config.static_forward_context
        self._name = None

    def _batch_and_layer(self):
        if self._name is None:
            self._name = next(name for name, layer in self._context.items()
                              if getattr(layer, "impl", None) is self)
        worker = get_kv_transfer_group().worker
        metadata = get_forward_context().attn_metadata
        if isinstance(metadata, dict):
            metadata = metadata[self._name]
        return worker.batch or worker.new_batch(metadata), worker.layers[self._name]

    def do_kv_cache_update(self, kv_c_normed, k_pe, kv_cache, slot_mapping, kv_cache_dtype,
                           k_scale):
        batch, layer = self._batch_and_layer()
        batch.add_rows(layer, torch.cat([kv_c_normed, k_pe.squeeze(1)], -1))

    def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer):
        batch, number = self._batch_and_layer()
        query = torch.cat(q, -1) if isinstance(q, tuple) else q
        return batch.attend(number, query, self._attend_here), None

    def _attend_here(self, query, rows):
        """As the tier: query [t, H, C + R] of the newest tokens among rows [n, C + R]."""
        scores = torch.einsum("thd,nd->thn", query.float(), rows.float()) * self.scale
        first = rows.shape[0] - query.shape[0]
        seen = torch.ones(query.shape[0], rows.shape[0], dtype=torch.bool).tril(first)
        weights = scores.masked_fill(~seen[:, None].to(scores.device), -torch.inf).softmax(-1)
        return (weights @ rows[:, :self.kv_lora_rank].float()).to(query.dtype)

    def forward_mha(self, q, kv_c_normed, k_pe, kv_c_and_k_pe_cache, attn_metadata, k_scale, output,
                    output_scale=None):
        if attn_metadata.prefill.chunked_context is None and not current_platform.is_cpu():
            return super().forward_mha(q, kv_c_normed, k_pe, kv_c_and_k_pe_cache, attn_metadata,
                                       k_scale, output, output_scale)
        batch, number = self._batch_and_layer()
        first = batch.prefills[0].begin
        for part in batch.prefills:
            tokens = slice(part.begin - first, part.end - first)
            output[tokens] = self._attend_prompt(q[tokens], part.held.rows(number)).flatten(1)

    def _attend_prompt(self, query, rows):
        """Of a prompt or its newest chunk: the rows before it lie here, not in vLLM's cache. torch
        has its fast kernel on CPUs where keys and values are of one width: 30 times as fast in
        bf16, 5 times in fp32 as vLLM's own way."""
        n, t = rows.shape[0], query.shape[0]
        kv = self.kv_b_proj(rows[:, :self.kv_lora_rank].contiguous())[0].view(
            n, self.num_heads, self.qk_nope_head_dim + self.v_head_dim)
        k_nope, v = kv.split([self.qk_nope_head_dim, self.v_head_dim], -1)
        k_pe = rows[:, None, self.kv_lora_rank:].expand(-1, self.num_heads, -1)
        key = torch.cat([k_nope, k_pe], -1)
        width = max(key.shape[-1], self.v_head_dim)
        seen = None if n == t else torch.ones(t, n, dtype=torch.bool,
                                              device=query.device).tril(n - t)
        return torch.nn.functional.scaled_dot_product_attention(
            *(torch.nn.functional.pad(part, (0, width - part.shape[-1])).transpose(0, 1)[None]
              for part in (query, key, v)), attn_mask=seen, is_causal=seen is None,
            scale=self.scale)[0, ..., :self.v_head_dim].transpose(0, 1)
