// The attention of each form over its cache.
#include <algorithm>

#include "bench/absorption_forms.h"

namespace tributary::bench {

void Decoder::attend() {
  if (form_ == Form::kAbsorbedConcatenated) concatenate();
  for (std::int64_t s = 0; s < batch_; ++s) {
    if (form_ == Form::kDecompressed) {
      attend_decompressed(s);
    } else if (form_ == Form::kCompressed) {
      attend_compressed(s);
    } else {
      attend_absorbed(s);
    }
  }
}

void Decoder::attend_decompressed(std::int64_t sequence) {
  const std::int64_t head_dim = nope_ + rope_;
  float* o = head_out_.data() + sequence * heads_ * value_;
  std::fill_n(o, heads_ * value_, 0.0F);
  arithmetic_->scores(
      HeadScores<bf16>{.heads = heads_,
                       .tokens = length_,
                       .dim = head_dim,
                       .q = query_.data() + sequence * heads_ * head_dim,
                       .q_stride = head_dim,
                       .keys = keys_.data() + sequence * length_ * heads_ * head_dim,
                       .token_stride = heads_ * head_dim,
                       .head_stride = head_dim,
                       .scores = scores_.data(),
                       .score_stride = length_});
  arithmetic_->softmax(scores_.data(), heads_, length_, scale_);
  arithmetic_->values(
      HeadValues<bf16>{.heads = heads_,
                       .tokens = length_,
                       .dim = value_,
                       .weights = scores_.data(),
                       .weight_stride = length_,
                       .values = values_.data() + sequence * length_ * heads_ * value_,
                       .o = o});
}

void Decoder::attend_compressed(std::int64_t sequence) {
  const std::int64_t head_dim = nope_ + rope_;
  const float* q = query_.data() + sequence * heads_ * head_dim;
  const bf16* c_kv = c_kv_.data() + sequence * length_ * rank_;
  const bf16* k_pe = k_pe_.data() + sequence * length_ * rope_;
  float* o = head_out_.data() + sequence * heads_ * value_;
  float* pe = rows_.data() + kDecompressChunk * rank_;
  std::fill_n(o, heads_ * value_, 0.0F);
  // Decompresses a chunk's keys or values into up_.
  const auto decompress = [&](std::int64_t begin, std::int64_t count, const Array<float>& weight,
                              std::int64_t dim) {
    arithmetic_->widen(c_kv + begin * rank_, count * rank_, rows_.data());
    arithmetic_->product({.m = count,
                          .n = heads_ * dim,
                          .k = rank_,
                          .a = rows_.data(),
                          .lda = rank_,
                          .b = weight.data(),
                          .ldb = rank_,
                          .transpose_b = true,
                          .c = up_.data(),
                          .ldc = heads_ * dim});
  };
  for (std::int64_t begin = 0; begin < length_; begin += kDecompressChunk) {
    const std::int64_t count = std::min(kDecompressChunk, length_ - begin);
    decompress(begin, count, weights_->k_up, nope_);
    arithmetic_->scores(HeadScores<float>{.heads = heads_,
                                          .tokens = count,
                                          .dim = nope_,
                                          .q = q,
                                          .q_stride = head_dim,
                                          .keys = up_.data(),
                                          .token_stride = heads_ * nope_,
                                          .head_stride = nope_,
                                          .scores = scores_.data() + begin,
                                          .score_stride = length_});
    arithmetic_->widen(k_pe + begin * rope_, count * rope_, pe);
    arithmetic_->scores(HeadScores<float>{.heads = heads_,
                                          .tokens = count,
                                          .dim = rope_,
                                          .q = q + nope_,
                                          .q_stride = head_dim,
                                          .keys = pe,
                                          .token_stride = rope_,
                                          .accumulate = true,
                                          .scores = scores_.data() + begin,
                                          .score_stride = length_});
  }
  arithmetic_->softmax(scores_.data(), heads_, length_, scale_);
  for (std::int64_t begin = 0; begin < length_; begin += kDecompressChunk) {
    const std::int64_t count = std::min(kDecompressChunk, length_ - begin);
    decompress(begin, count, weights_->v_up, value_);
    arithmetic_->values(HeadValues<float>{.heads = heads_,
                                          .tokens = count,
                                          .dim = value_,
                                          .weights = scores_.data() + begin,
                                          .weight_stride = length_,
                                          .values = up_.data(),
                                          .o = o});
  }
}

void Decoder::concatenate() {
  const std::int64_t latent = rank_ + rope_;
  for (std::int64_t i = 0; i < batch_ * heads_; ++i) {
    float* to = q_joined_.data() + i * latent;
    std::copy_n(q_c_.data() + i * rank_, rank_, to);
    std::copy_n(query_.data() + i * (nope_ + rope_) + nope_, rope_, to + rank_);
  }
  for (std::int64_t i = 0; i < batch_ * length_; ++i) {
    bf16* to = joined_.data() + i * latent;
    std::copy_n(c_kv_.data() + i * rank_, rank_, to);
    std::copy_n(k_pe_.data() + i * rope_, rope_, to + rank_);
  }
}

void Decoder::attend_absorbed(std::int64_t sequence) {
  const std::int64_t latent = rank_ + rope_;
  const float* c_rows = rows_.data();
  std::int64_t c_stride = rank_;
  if (form_ == Form::kAbsorbedConcatenated) {
    c_stride = latent;
    arithmetic_->widen(joined_.data() + sequence * length_ * latent, length_ * latent,
                       rows_.data());
    arithmetic_->product({.m = heads_,
                          .n = length_,
                          .k = latent,
                          .a = q_joined_.data() + sequence * heads_ * latent,
                          .lda = latent,
                          .b = c_rows,
                          .ldb = latent,
                          .transpose_b = true,
                          .c = scores_.data(),
                          .ldc = length_});
  } else {
    float* pe_rows = rows_.data() + length_ * rank_;
    arithmetic_->widen(c_kv_.data() + sequence * length_ * rank_, length_ * rank_, rows_.data());
    arithmetic_->widen(k_pe_.data() + sequence * length_ * rope_, length_ * rope_, pe_rows);
    arithmetic_->product({.m = heads_,
                          .n = length_,
                          .k = rank_,
                          .a = q_c_.data() + sequence * heads_ * rank_,
                          .lda = rank_,
                          .b = c_rows,
                          .ldb = rank_,
                          .transpose_b = true,
                          .c = scores_.data(),
                          .ldc = length_});
    const bool apart = form_ == Form::kMaterialised;
    const std::int64_t head_dim = apart ? rope_ : nope_ + rope_;
    const float* q_rope = apart ? q_rope_.data() : query_.data() + nope_;
    arithmetic_->product({.m = heads_,
                          .n = length_,
                          .k = rope_,
                          .a = q_rope + sequence * heads_ * head_dim,
                          .lda = head_dim,
                          .b = pe_rows,
                          .ldb = rope_,
                          .transpose_b = true,
                          .accumulate = true,
                          .c = scores_.data(),
                          .ldc = length_});
  }
  arithmetic_->softmax(scores_.data(), heads_, length_, scale_);
  arithmetic_->product({.m = heads_,
                        .n = rank_,
                        .k = length_,
                        .a = scores_.data(),
                        .lda = length_,
                        .b = c_rows,
                        .ldb = c_stride,
                        .c = latent_.data() + sequence * heads_ * rank_,
                        .ldc = rank_});
}

}  // namespace tributary::bench
