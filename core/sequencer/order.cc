// Layout: round, members, generation, the table if there is one, stop, number of operations; per
// operation its kind (its index in the variant) and its fields in the order of declaration; the
// copies and the step's items as lists; the canary. No struct with padding is written as it lies in
// memory: those bytes hold anything.
#include "core/sequencer/order.h"

#include <type_traits>
#include <utility>

#include "core/base/byte_stream.h"

namespace tributary {
namespace {

enum class Kind : std::uint8_t {
  kAdmit,
  kExtend,
  kCommit,
  kTruncate,
  kFree,
  kMove,
  kRaiseLimit,
  kHome,
  kLose
};

void encode(const Sequence& s, ByteWriter& out) {
  out.value(s.id);
  out.value(s.epoch);
  out.value(s.lost_since);
  out.value(s.home);
  out.value(s.tag);
  out.value(s.prompt_tokens);
  out.value(s.present_tokens);
  out.value(s.limit_tokens);
  out.value(s.length);
  out.value(static_cast<std::uint32_t>(s.leaves.size()));
  for (const Leaf& leaf : s.leaves) {
    out.value(leaf.owner);
    out.list(std::span<const std::int32_t>(leaf.pages));
  }
}

void encode(const AdmitOp& op, ByteWriter& out) {
  out.value(Kind::kAdmit);
  encode(op.sequence, out);
}

void encode(const ExtendOp& op, ByteWriter& out) {
  out.value(Kind::kExtend);
  out.value(op.id);
  out.value(op.leaf);
  out.value(op.owner);
  out.list(std::span<const std::int32_t>(op.pages));
}

void encode(const MoveOp& op, ByteWriter& out) {
  out.value(Kind::kMove);
  out.value(op.id);
  out.value(op.first_leaf);
  out.value(op.owner);
  out.list(std::span<const std::int32_t>(op.pages));
}

void encode(const RaiseLimitOp& op, ByteWriter& out) {
  out.value(Kind::kRaiseLimit);
  out.value(op.id);
  out.value(op.limit_tokens);
  out.list(std::span<const std::int32_t>(op.owners));
}

void encode(const CommitOp& op, ByteWriter& out) {
  out.value(Kind::kCommit);
  out.value(op.id);
  out.value(op.accepted);
}

void encode(const TruncateOp& op, ByteWriter& out) {
  out.value(Kind::kTruncate);
  out.value(op.id);
  out.value(op.epoch);
  out.value(op.length);
  out.value(op.copied_page);
}

void encode(const FreeOp& op, ByteWriter& out) {
  out.value(Kind::kFree);
  out.value(op.id);
}

void encode(const HomeOp& op, ByteWriter& out) {
  out.value(Kind::kHome);
  out.value(op.id);
  out.value(op.home);
}

void encode(const LoseOp& op, ByteWriter& out) {
  out.value(Kind::kLose);
  out.value(op.id);
  out.value(op.epoch);
  out.list(std::span<const std::int32_t>(op.leaves));
}

void encode(const TableOp& op, ByteWriter& out) {
  std::visit([&out](const auto& alternative) { encode(alternative, out); }, op);
}

Sequence decode_sequence(ByteReader& in) {
  Sequence s;
  s.id = in.value<SequenceId>();
  s.epoch = in.value<std::uint32_t>();
  s.lost_since = in.value<std::uint32_t>();
  s.home = in.value<std::int32_t>();
  s.tag = in.value<std::int64_t>();
  s.prompt_tokens = in.value<std::int64_t>();
  s.present_tokens = in.value<std::int64_t>();
  s.limit_tokens = in.value<std::int64_t>();
  s.length = in.value<std::int64_t>();
  const auto leaves = in.value<std::uint32_t>();
  for (std::uint32_t i = 0; i < leaves; ++i) {
    const auto owner = in.value<std::int32_t>();
    s.leaves.push_back({owner, in.list<std::int32_t>()});
  }
  return s;
}

ExtendOp decode_extend(ByteReader& in) {
  ExtendOp op;
  op.id = in.value<SequenceId>();
  op.leaf = in.value<std::int32_t>();
  op.owner = in.value<std::int32_t>();
  op.pages = in.list<std::int32_t>();
  return op;
}

MoveOp decode_move(ByteReader& in) {
  MoveOp op;
  op.id = in.value<SequenceId>();
  op.first_leaf = in.value<std::int32_t>();
  op.owner = in.value<std::int32_t>();
  op.pages = in.list<std::int32_t>();
  return op;
}

RaiseLimitOp decode_raise_limit(ByteReader& in) {
  RaiseLimitOp op;
  op.id = in.value<SequenceId>();
  op.limit_tokens = in.value<std::int64_t>();
  op.owners = in.list<std::int32_t>();
  return op;
}

CommitOp decode_commit(ByteReader& in) {
  CommitOp op;
  op.id = in.value<SequenceId>();
  op.accepted = in.value<std::int32_t>();
  return op;
}

TruncateOp decode_truncate(ByteReader& in) {
  TruncateOp op;
  op.id = in.value<SequenceId>();
  op.epoch = in.value<std::uint32_t>();
  op.length = in.value<std::int64_t>();
  op.copied_page = in.value<std::int32_t>();
  return op;
}

HomeOp decode_home(ByteReader& in) {
  HomeOp op;
  op.id = in.value<SequenceId>();
  op.home = in.value<std::int32_t>();
  return op;
}

LoseOp decode_lose(ByteReader& in) {
  LoseOp op;
  op.id = in.value<SequenceId>();
  op.epoch = in.value<std::uint32_t>();
  op.leaves = in.list<std::int32_t>();
  return op;
}

TableOp decode_op(ByteReader& in) {
  const auto kind = in.value<Kind>();
  switch (kind) {
    case Kind::kAdmit:
      return AdmitOp{decode_sequence(in)};
    case Kind::kExtend:
      return decode_extend(in);
    case Kind::kCommit:
      return decode_commit(in);
    case Kind::kTruncate:
      return decode_truncate(in);
    case Kind::kFree:
      return FreeOp{in.value<SequenceId>()};
    case Kind::kMove:
      return decode_move(in);
    case Kind::kRaiseLimit:
      return decode_raise_limit(in);
    case Kind::kHome:
      return decode_home(in);
    case Kind::kLose:
      return decode_lose(in);
  }
  fail(ErrorCode::kMalformedInput, "order: operation kind is {}, expected 0 .. {}",
       static_cast<int>(kind), static_cast<int>(Kind::kLose));
}

}  // namespace

std::vector<std::byte> encode_order(const Order& order) {
  ByteWriter out;
  out.value(order.round);
  out.list(std::span<const std::int32_t>(order.members));
  out.value(order.generation);
  out.value(static_cast<std::uint8_t>(order.table.has_value()));
  if (order.table) {
    out.value(static_cast<std::uint32_t>(order.table->size()));
    for (const Sequence& sequence : *order.table) encode(sequence, out);
  }
  out.value(static_cast<std::uint8_t>(order.stop));
  out.value(static_cast<std::uint32_t>(order.ops.size()));
  for (const TableOp& op : order.ops) encode(op, out);
  out.list(std::span<const PageCopy>(order.copies));
  out.value(static_cast<std::uint32_t>(order.step.size()));
  const auto write = [&](const auto&... field) { (out.value(field), ...); };
  for (const StepItem& item : order.step) StepItem::fields(write, item);
  out.value(order.canary);
  return out.take();
}

Order decode_order(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  Order order;
  order.round = in.value<std::uint64_t>();
  order.members = in.list<std::int32_t>();
  order.generation = in.value<std::uint64_t>();
  if (in.value<std::uint8_t>() != 0) {
    order.table.emplace();
    const auto sequences = in.value<std::uint32_t>();
    for (std::uint32_t i = 0; i < sequences; ++i) order.table->push_back(decode_sequence(in));
  }
  order.stop = in.value<std::uint8_t>() != 0;
  const auto ops = in.value<std::uint32_t>();
  for (std::uint32_t i = 0; i < ops; ++i) order.ops.push_back(decode_op(in));
  order.copies = in.list<PageCopy>();
  const auto items = in.value<std::uint32_t>();
  const auto read = [&](auto&... field) {
    ((field = in.value<std::decay_t<decltype(field)>>()), ...);
  };
  for (std::uint32_t i = 0; i < items; ++i) StepItem::fields(read, order.step.emplace_back());
  order.canary = in.value<CanaryOrder>();
  if (!in.empty()) fail(ErrorCode::kMalformedInput, "order: bytes left after the last field");
  return order;
}

}  // namespace tributary
