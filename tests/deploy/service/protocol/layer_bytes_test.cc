#include "deploy/service/protocol/layer_bytes.h"

#include <gtest/gtest.h>

#include "core/model/mla_shape.h"

namespace tributary::wire {
namespace {

TEST(LayerBytes, UnabsorbedQueriesMakeTheMessagesShort) {
  PoolShape v3{attention_shape(find_mla_shape("deepseek-v3"), RowFormat::kBF16, DType::kBF16)};
  EXPECT_EQ(missing_weights(v3, LayerMode::kAttend), "");
  EXPECT_NE(missing_weights(v3, LayerMode::kAttendUnabsorbed), "");
  EXPECT_NE(missing_weights(v3, LayerMode::kAttendProjected), "");
  v3.qk_nope_head_dim = v3.v_head_dim = 128;
  EXPECT_EQ(missing_weights(v3, LayerMode::kAttendUnabsorbed), "");
  EXPECT_EQ(missing_weights(v3, LayerMode::kAttendProjected), "");
  EXPECT_EQ(missing_weights(v3, LayerMode::kForward), "model's weights");
  const TokenBytes absorbed = token_bytes(v3, LayerMode::kAttend);
  EXPECT_EQ(absorbed.input(), 148'608U);
  EXPECT_EQ(absorbed.output, 262'656U);
  const TokenBytes unabsorbed = token_bytes(v3, LayerMode::kAttendUnabsorbed);
  EXPECT_EQ(unabsorbed.input(), 50'304U);
  EXPECT_EQ(unabsorbed.output, 66'048U);
  v3.hidden_size = 7168;
  EXPECT_EQ(missing_weights(v3, LayerMode::kForward), "");
  const TokenBytes forward = token_bytes(v3, LayerMode::kForward);
  EXPECT_EQ(forward.input(), forward.output);
  EXPECT_EQ(forward.output, 28'672U);
}

TEST(LayerBytes, ASelectionRidesBehindTheRow) {
  PoolShape sparse{attention_shape(find_mla_shape("deepseek-v3"), RowFormat::kBF16, DType::kBF16)};
  sparse.topk = 2048;
  const TokenBytes bytes = token_bytes(sparse, LayerMode::kAttend);
  EXPECT_EQ(bytes.selected, 8'192U);
  EXPECT_EQ(bytes.input(), 148'608U + 8'192U);
  EXPECT_EQ(bytes.input(), sparse.token_record_bytes());
  EXPECT_EQ(bytes.query + bytes.row, sparse.selected_offset());
  sparse.qk_nope_head_dim = sparse.v_head_dim = 128;
  sparse.hidden_size = 7168;
  EXPECT_EQ(token_bytes(sparse, LayerMode::kAttendUnabsorbed).selected, 8'192U);
  EXPECT_NE(missing_weights(sparse, LayerMode::kForward), "") << "nobody selects";
}

}  // namespace
}  // namespace tributary::wire
