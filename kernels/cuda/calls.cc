#include "kernels/cuda/calls.h"

namespace tributary::cuda {
namespace {

struct Launcher {
  Projection& projection;
  cudaStream_t stream;

  void operator()(const AppendLaunch& launch) const { append(launch, stream); }
  void operator()(const AttendLaunch& launch) const { attend(launch, stream); }
  void operator()(const MergeLaunch& launch) const { merge(launch, stream); }
  void operator()(const GatherLaunch& launch) const { gather(launch, stream); }
  void operator()(const GemmCall& call) const { projection.gemm(*call.weight, call.args); }
  void operator()(const RmsNormArgs& args) const { rms_norm(args, stream); }
  void operator()(const RopeLaunch& launch) const { rope(launch, stream); }
  void operator()(const LatentRowsLaunch& launch) const { latent_rows(launch, stream); }
  void operator()(const ConvertArgs& args) const { convert(args, stream); }
  void operator()(const DenseAttendArgs& args) const { attend_dense(args, stream); }
};

}  // namespace

void make_call(const Call& call, Projection& projection, cudaStream_t stream) {
  std::visit(Launcher{projection, stream}, call);
}

}  // namespace tributary::cuda
