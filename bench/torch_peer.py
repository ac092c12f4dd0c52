# Absorbed MLA decode in PyTorch, bf16 through oneDNN: a peer of bench/cpu_limits (peer_lines.py says
# how it is asked). Two forms: all rows of the cache at once, or 4096 at a time; both fold heads into
# rows. `layer` is a whole layer of DeepSeek-V3, a token for each sequence.
import torch

import peer_lines
from peer_lines import RANK, ROPE, SCALE

HIDDEN, HEADS, Q_RANK, NOPE, VALUE = 7168, 128, 1536, 128, 128  # DeepSeek-V3


def whole(query, cache):
    scores = (query @ cache.T).float() * SCALE
    lse = torch.logsumexp(scores, dim=-1)
    return torch.softmax(scores, dim=-1).bfloat16() @ cache[:, :RANK], lse


def blocked(query, cache, block=4096):
    maximum = torch.full((query.shape[0], 1), float("-inf"))
    total = torch.zeros_like(maximum)
    out = torch.zeros(query.shape[0], RANK)
    for begin in range(0, cache.shape[0], block):
        rows = cache[begin:begin + block]
        scores = (query @ rows.T).float() * SCALE
        top = torch.maximum(maximum, scores.amax(dim=-1, keepdim=True))
        weights = torch.exp(scores - top)
        factor = torch.exp(maximum - top)
        total = total * factor + weights.sum(dim=-1, keepdim=True)
        out = out * factor + (weights.bfloat16() @ rows[:, :RANK]).float()
        maximum = top
    return out / total, (maximum + torch.log(total)).squeeze(-1)


class Layer:
    """A step of a layer: projections, absorbed attention over all sequences at once, o_proj."""

    def __init__(self, sequences, length):
        def weight(*shape):
            return (torch.randn(*shape) * 0.02).bfloat16()
        self.down = weight(Q_RANK + RANK + ROPE, HIDDEN)
        self.q_b = weight(HEADS * (NOPE + ROPE), Q_RANK)
        self.w_uk = weight(HEADS, NOPE, RANK)
        self.w_uv = weight(HEADS, RANK, VALUE)
        self.o_proj = weight(HIDDEN, HEADS * VALUE)
        self.norms = torch.ones(Q_RANK).bfloat16(), torch.ones(RANK).bfloat16()
        angle = torch.rand(1, 1, ROPE // 2)
        self.cos, self.sin = angle.cos(), angle.sin()
        self.hidden = weight(sequences, HIDDEN)
        self.cache = torch.randn(sequences, length, RANK + ROPE).bfloat16()

    def rotated(self, x):
        even, odd = x[..., 0::2].float(), x[..., 1::2].float()
        return torch.stack((even * self.cos - odd * self.sin, even * self.sin + odd * self.cos),
                           dim=-1).flatten(-2).bfloat16()

    def __call__(self):
        functional = torch.nn.functional
        q, kv, k_rope = functional.linear(self.hidden, self.down).split((Q_RANK, RANK, ROPE), dim=-1)
        self.cache[:, -1, :RANK] = functional.rms_norm(kv, (RANK,), self.norms[1])
        self.cache[:, -1, RANK:] = self.rotated(k_rope.unsqueeze(1)).squeeze(1)
        q = functional.linear(functional.rms_norm(q, (Q_RANK,), self.norms[0]), self.q_b)
        nope, rope = q.view(-1, HEADS, NOPE + ROPE).split((NOPE, ROPE), dim=-1)
        absorbed = torch.bmm(nope.transpose(0, 1), self.w_uk).transpose(0, 1)
        query = torch.cat((absorbed, self.rotated(rope)), dim=-1)
        scores = torch.bmm(query, self.cache.transpose(1, 2)).float() * SCALE
        latent = torch.bmm(torch.softmax(scores, dim=-1).bfloat16(), self.cache[:, :, :RANK])
        values = torch.bmm(latent.transpose(0, 1), self.w_uv).transpose(0, 1)
        return functional.linear(values.flatten(1), self.o_proj)


def version():
    capability = getattr(torch.backends.cpu, "get_cpu_capability", lambda: "unknown")()
    one_dnn = [part.strip() for part in torch.__config__.show().splitlines() if "MKL-DNN" in part]
    return f"PyTorch {torch.__version__}, {' '.join(one_dnn)[:100]}, {capability}"


def forms_of(case):
    if case.what == "layer":
        return [Layer(case.sequences, case.length)]
    batch = [(torch.randn(int(case.what), RANK + ROPE).bfloat16(),
              torch.randn(case.length, RANK + ROPE).bfloat16()) for _ in range(case.sequences)]
    return [lambda form=form: [form(*sequence) for sequence in batch] for form in (whole, blocked)]


if __name__ == "__main__":
    torch.manual_seed(1)
    with torch.no_grad():
        peer_lines.answer(version(), torch.set_num_threads, forms_of)
